"""pydantic models of request bodies and query strings, which validate requests and appear in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator

from svc.asking.costs import PLAIN_LIMIT
from svc.asking.fields import (
    MAX_BATCH,
    MAX_BOOSTS,
    MAX_DISLIKES,
    MAX_EXCLUDED,
    MAX_HISTORY,
    MAX_INCLUDED,
    MAX_LIMIT,
    MAX_LIMITS,
    MAX_MATCHES,
    MAX_PINS,
    MAX_REASONS,
    MAX_SEED_CHARACTERS,
    MAX_SEEDS,
    MAX_SHOWN,
    MAX_USERS,
    BoostAsked,
    Dislike,
    Features,
    HistoryItem,
    Id,
    ItemFeatures,
    LimitAsked,
    Part,
    PinAsked,
    Place,
    ShownItem,
    Tree,
    digits,
    filter_at,
    filter_in_query,
    invalid,
    whole,
)
from svc.asking.parsing import Rejected, parse, validation_error
from svc.asking.rules import Answerable, items_at, rules_of
from svc.errors import UsersNotServed, ValidationFailed
from svc.model.ranking.filter_fields import ClientTree
from svc.model.ranking.query import Prepared, Restriction, Variation
from svc.names import MAX_ID_CHARACTERS, Order

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.model.ranking.item_sets import ItemSet


_READ = ConfigDict(extra="forbid", strict=True, frozen=True, cache_strings="keys")
"""Only keys are in pydantic's cache of strings. Most values are ids, which rarely repeat, so a look-up in the cache is
slower than creating a string."""


def _is_new(tree: object, served: Answerable) -> bool:
    """Return True if a request has this filter and it is not compiled yet."""
    return tree is not None and served.filters.cached(ClientTree(tree)) is None


def _items_of(tree: object, served: Answerable, part: Part = "body") -> ItemSet | None:
    """Return the items that satisfy the filter of a request, or None for all items. Raises ValidationFailed."""
    return None if tree is None else items_at(served, ("filter",), tree, part)


class Question(BaseModel):
    """A request to a verb other than a batch verb, with the compilation of its filters."""

    model_config = _READ

    @property
    def filters(self) -> list[object]:
        """The filters of the request, as the client wrote them."""
        return []

    def prepares_long(self, served: Answerable) -> bool:
        """Return True if a filter must be compiled. Compiling takes longer than all other work for the query."""
        return any(_is_new(tree, served) for tree in self.filters)

    def compile(self, served: Answerable) -> Iterator[None]:
        """Compile the filters of the request, so that `prepare` finds them compiled. Yields after each condition.

        Stops at an invalid filter without an error.
        """
        canonical = partial(filter_at, served.filters.kinds, ("filter",), "body")
        with suppress(ValidationFailed):  # `prepare` raises the same error
            for tree in self.filters:
                yield from served.filters.compile(ClientTree(tree), canonical)


class ItemsRequest(Question):
    """The fields that requests for items of one user or of related items share."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Most items to return."), BeforeValidator(whole)] = 10
    exclude_items: Annotated[
        list[Id],
        Field(
            default_factory=list,  # pydantic would copy a default deeply for each request
            max_length=MAX_EXCLUDED,
            fail_fast=True,
            description="Items to leave out of the answer. Unknown ids are ignored.",
            json_schema_extra={"default": []},
        ),
    ]
    filter: Annotated[
        Tree, Field(description="Conditions on the recipe's filter fields. Only items that satisfy them are ranked.")
    ] = None
    include_items: Annotated[
        list[Id] | None, Field(max_length=MAX_INCLUDED, fail_fast=True, description="Only these items are ranked.")
    ] = None
    offset: Annotated[Place, Field(description="Items of the ranking before the first that is returned.")] = 0
    explain: Annotated[
        int | None,
        Field(ge=1, le=MAX_REASONS, description="Most reasons for each item."),
        BeforeValidator(whole),
    ] = None
    diversity: Annotated[
        float | None, Field(ge=0, le=1, description="From 0, the items of highest score, to 1, the most varied items.")
    ] = None
    limits: Annotated[
        list[LimitAsked] | None,
        Field(max_length=MAX_LIMITS, description="Most items with the same value of a field."),
    ] = None
    boosts: Annotated[
        list[BoostAsked] | None, Field(max_length=MAX_BOOSTS, description="Factors for items that satisfy a filter.")
    ] = None
    pins: Annotated[
        list[PinAsked] | None,
        Field(
            max_length=MAX_PINS,
            description="Items at fixed places of the ranking. Items and places must be distinct.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = None

    @property
    def filters(self) -> list[object]:
        """The filter of the request and the filters of its boosts, as the client wrote them."""
        trees = [] if self.filter is None else [self.filter]
        return [*trees, *(boost.filter for boost in self.boosts or ())]

    def restriction(self, served: Answerable) -> Restriction:
        """Return the part of the query that restricts and reranks the answer. Raises ValidationFailed."""
        if self.offset + self.limit > MAX_LIMIT:
            raise _too_far("body")
        rules, pins = rules_of(served, self.diversity, self.limits, self.boosts, self.pins)
        allowed = served.allowed_items(_items_of(self.filter, served))
        return Restriction(self.offset, self.include_items, allowed, rules, pins, self.explain or 0)


def _too_far(part: Part) -> ValidationFailed:
    return invalid(["offset"], f"offset and limit add up to more than {MAX_LIMIT}", "too_far", part=part)


def _lacks(*names: str) -> ValidationFailed:
    message = f"give {', '.join(names[:-1])} or {names[-1]}"
    return ValidationFailed(message, errors=[{"loc": ["body", names[0]], "msg": message, "type": "missing"}])


class RecommendRequest(ItemsRequest):
    """Recommend items to one user: by `user_id`, `history`, `user_features`, or `fallback` for any user.

    One of the four is required, unless the recipe has a fallback.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"user_id": "u42", "limit": 5},
                {"user_features": {"country": "SE", "age": 34}},
                {"history": ["b3", {"item_id": "b9", "weight": 3.0}], "fallback": "popular"},
            ],
            "if": {"required": ["history_mode"], "properties": {"history_mode": {"const": "replace"}}},
            "then": {"required": ["history"], "properties": {"history": {"type": "array"}}},
        }
    )

    user_id: Annotated[Id | None, Field(description="A user of the training data.")] = None
    user_features: Annotated[
        Features | None, Field(description="Features of a user that training never saw. Not used for a known user.")
    ] = None
    include_seen: Annotated[
        bool | None,
        Field(
            description="Return items of the user's own history too. By default only if the model was trained with "
            "training.repeats."
        ),
    ] = None
    history: Annotated[
        list[HistoryItem] | None,
        Field(max_length=MAX_HISTORY, fail_fast=True, description="Items of the training data that the user chose."),
    ] = None
    history_mode: Annotated[
        Literal["append", "replace"],
        Field(description="Append `history` to the known history of the user, or replace the known history."),
    ] = "append"
    dislikes: Annotated[
        list[Dislike] | None,
        Field(
            max_length=MAX_DISLIKES,
            fail_fast=True,
            description="Items that the user rejects. They are never returned, and they lower the scores of others.",
        ),
    ] = None
    fallback: Annotated[
        Literal["none", "popular"] | None,
        Field(description="Answer for a user without any information. By default the recipe's."),
    ] = None
    shown: Annotated[
        list[ShownItem] | None,
        Field(
            max_length=MAX_SHOWN, fail_fast=True, description="Items that the user was shown before. They rank lower."
        ),
    ] = None
    rotation: Annotated[
        float,
        Field(ge=0, le=1, description="Score that an item loses each time it was shown, in standard deviations."),
    ] = 0.25
    seed: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_SEED_CHARACTERS, description="A text, such as a day, that varies the page."),
    ] = None
    shuffle: Annotated[
        float, Field(ge=0, le=1, description="Size of the noise of `seed`, in standard deviations of scores.")
    ] = 0.25

    @property
    def varies(self) -> bool:
        """True if the request asks for rotation or shuffling."""
        return bool((self.shown and self.rotation) or (self.seed and self.shuffle))

    def restriction(self, served: Answerable) -> Restriction:
        """Return the part of the query that restricts and reranks the answer, with new items, rotation and shuffling.

        Raises ValidationFailed.
        """
        restriction = super().restriction(served)._replace(new=served.new_items)
        if not self.shown and self.seed is None:
            return restriction
        variation = Variation(self.shown or (), self.rotation, self.seed, self.shuffle)
        return restriction._replace(variation=variation)

    def prepare(self, served: Answerable) -> Prepared:
        """Return the query for the served model. Raises the ApiError that refuses the request."""
        falls_back = served.policy.popular_fallback if self.fallback is None else self.fallback == "popular"
        inputs = (self.user_id, self.user_features, self.history, self.fallback, self.dislikes)
        if inputs == (None,) * len(inputs) and not falls_back:
            raise _lacks("user_id", "user_features", "history", "fallback")
        if self.history is None and self.history_mode == "replace":
            message = "there is no history to put in place of the known one; give history, or leave history_mode out"
            raise invalid(["history_mode"], message, "history_missing")
        self._require_distinct()
        prepared = served.model.prepare_recommend(
            user_id=self.user_id,
            user_features=self.user_features,
            limit=self.limit,
            exclude_items=self.exclude_items,
            include_seen=self.include_seen,
            restriction=self.restriction(served),
            history=self.history or (),
            replace=self.history_mode == "replace",
            fallback=falls_back,
            dislikes=self.dislikes or (),
        )
        if self._shows_profile() or prepared.query.popular:
            return prepared
        return prepared._replace(profile=None)

    def _require_distinct(self) -> None:
        """Raise ValidationFailed if an item is both chosen and disliked."""
        chosen = {interaction.item_id for interaction in self.history or ()} if self.dislikes else ()
        for position, dislike in enumerate(self.dislikes or ()):
            if dislike.item_id in chosen:
                message = "this item is in history too; leave it out of history or out of dislikes"
                raise invalid(["dislikes", position], message, "also_in_history")

    def _shows_profile(self) -> bool:
        """Return True if the answer must have the field `profile`, because the request sets a history or fallback."""
        has_history = self.history is not None or "history_mode" in self.model_fields_set
        return has_history or self.fallback is not None


class RelatedRequest(ItemsRequest):
    """Recommend items related to known items (`seed_items`) or unseen items (`item_features`).

    One of the two is required.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"seed_items": ["b1", "b7"], "limit": 5},
                {"item_features": {"genres": "Action", "year": 1999}},
                {"item_features": {"new-1": {"genres": ["Action", "Drama"]}}, "user_features": {"country": "SE"}},
            ],
        }
    )

    seed_items: Annotated[
        list[Id] | None,
        Field(
            min_length=1,
            max_length=MAX_SEEDS,
            fail_fast=True,
            description="Items of the training data. They are never returned.",
        ),
    ] = None
    item_features: Annotated[
        ItemFeatures | None, Field(description="Features of one unseen item, or of several by item id.")
    ] = None
    user_features: Annotated[Features | None, Field(description="Features of the user, added to the seeds.")] = None

    def prepares_long(self, served: Answerable) -> bool:
        """Return True if a filter must be compiled, or if `item_features` is long (100 items take 5 ms)."""
        return len(self.item_features or ()) > PLAIN_LIMIT or super().prepares_long(served)

    def prepare(self, served: Answerable) -> Prepared:
        """Return the query for the served model. Raises the ApiError that refuses the request."""
        if self.seed_items is None and self.item_features is None:
            raise _lacks("seed_items", "item_features")
        return served.model.prepare_related(
            seed_items=self.seed_items or (),
            item_features=self.item_features,
            user_features=self.user_features,
            limit=self.limit,
            exclude_items=self.exclude_items,
            restriction=self.restriction(served),
            new=served.new_items,
        )


class UsersRequest(Question):
    """Rank users for a known item by `item_id`, or for an unseen item by `item_features`.

    One of the two is required.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"item_id": "b1", "limit": 100, "order": "balanced"},
                {"item_features": {"genres": "Action", "year": 1999}, "min_history": 10},
            ],
        },
    )

    item_id: Annotated[Id | None, Field(description="An item of the training data.")] = None
    item_features: Annotated[
        Features | None,
        Field(
            description="Features of an item that training never saw. Not used for a known item. Refused with "
            "USERS_NOT_SERVED if only the model's part for unseen items learned from features, because it keeps no "
            "users."
        ),
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Most users to return."), BeforeValidator(whole)] = 10
    offset: Annotated[Place, Field(description="Users of the ranking before the first that is returned.")] = 0
    order: Annotated[
        Order,
        Field(
            description="score: by predicted interest in the item; lift: by the score in standard deviations above "
            "the mean of the user's scores of all items; balanced: half of each."
        ),
    ] = "score"
    min_history: Annotated[
        int | None,
        Field(ge=0, le=MAX_HISTORY, description="The shortest history; by default 5 for the order lift, else 1."),
        BeforeValidator(whole),
    ] = None
    include_users: Annotated[
        list[Id] | None,
        Field(max_length=MAX_USERS, fail_fast=True, description="Only these users are ranked, without unknown ones."),
    ] = None
    exclude_users: Annotated[
        list[Id] | None,
        Field(
            max_length=MAX_USERS,
            fail_fast=True,
            description="Users to leave out of the answer. Unknown ids are ignored.",
        ),
    ] = None
    include_seen: Annotated[
        bool | None,
        Field(
            description="Return users who have the item already, too. By default only if the model was trained with "
            "training.repeats."
        ),
    ] = None

    def prepare(self, served: Answerable) -> Prepared:
        """Return the query for the served model. Raises the ApiError that refuses the request."""
        if not served.policy.users:
            raise UsersNotServed
        return self.prepare_for(served.model)

    def prepare_for(self, model: Model) -> Prepared:
        """Return the query without checking that the recipe permits requests for users. Raises as `prepare`."""
        if self.item_id is None and self.item_features is None:
            raise _lacks("item_id", "item_features")
        if self.offset + self.limit > MAX_LIMIT:
            raise _too_far("body")
        return model.prepare_users(
            item_id=self.item_id,
            item_features=self.item_features,
            limit=self.limit,
            offset=self.offset,
            order=self.order,
            min_history=self.min_history,
            include_users=self.include_users,
            exclude_users=self.exclude_users or (),
            include_seen=self.include_seen,
        )


AnyRequest = RecommendRequest | RelatedRequest
AnyQuestion = AnyRequest | UsersRequest


class ItemSearch(BaseModel):
    """Items of the served model by id or metadata."""

    model_config = ConfigDict(strict=True, frozen=True)

    q: Annotated[
        str,
        Field(max_length=MAX_ID_CHARACTERS, description="Words that an item's id or metadata must all contain."),
    ] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_MATCHES, description="Most items to return."), BeforeValidator(digits)] = (
        MAX_MATCHES
    )


class SampleUserQuery(BaseModel):
    """One user of the served model, with a part of their history."""

    model_config = ConfigDict(strict=True, frozen=True)

    user_id: Annotated[Id | None, Field(description="A user of the training data, by default a random one.")] = None


class PopularQuery(BaseModel):
    """The most chosen items of the training data, all or those that satisfy a filter."""

    model_config = ConfigDict(strict=True, frozen=True)

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Most items to return."), BeforeValidator(digits)] = 10
    offset: Annotated[
        int,
        Field(ge=0, lt=MAX_LIMIT, description="Items of the list before the first that is returned."),
        BeforeValidator(digits),
    ] = 0
    filter: Annotated[
        Any,
        Field(
            description="Conditions on the recipe's filter fields, as JSON. Only items that satisfy them are listed.",
            examples=['{"genres": {"any": ["Crime"]}}'],
        ),
        BeforeValidator(filter_in_query),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = None

    def prepares_long(self, served: Answerable) -> bool:
        """Return True if the filter is not compiled yet. Compiling takes longer than all other work for the query."""
        return _is_new(self.filter, served)

    def prepare(self, served: Answerable) -> Prepared:
        """Return the query for the served model. Raises ValidationFailed."""
        if self.offset + self.limit > MAX_LIMIT:
            raise _too_far("query")
        restriction = Restriction(self.offset, None, served.allowed_items(_items_of(self.filter, served, "query")))
        return served.model.prepare_popular(limit=self.limit, restriction=restriction)


def _validated(request: type[AnyRequest], value: Any, validate: Callable[[Any], AnyRequest]) -> AnyRequest | Rejected:
    """Return an element of a batch, or a Rejected in its place if it is invalid, so that the batch stays valid."""
    if isinstance(value, Rejected):
        return value
    try:
        return validate(value)
    except ValidationError as error:
        return Rejected(validation_error(error, "request", request, most=1))  # the answer shows one


_Elements = Field(min_length=1, max_length=MAX_BATCH, description="An invalid element fails alone.")


class Batch(BaseModel):
    """The fields that batch verbs share."""

    model_config = _READ

    include_metadata: Annotated[bool, Field(description="Add item metadata to the answers.")] = False


class RecommendBatch(Batch):
    """Answer up to 256 requests of `:recommend` from one model. A failed request does not affect the others."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"requests": [{"user_id": "u42"}, {"user_id": "u43"}], "include_metadata": True}]
        }
    )

    requests: Annotated[
        list[Annotated[RecommendRequest, WrapValidator(partial(_validated, RecommendRequest))]], _Elements
    ]


class RelatedBatch(Batch):
    """Answer up to 256 requests of `:recommend-related` from one model. A failed request does not affect the others."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"requests": [{"seed_items": ["b1"]}, {"item_features": {"year": 1999}}]}]}
    )

    requests: Annotated[list[Annotated[RelatedRequest, WrapValidator(partial(_validated, RelatedRequest))]], _Elements]


AnyBatch = RecommendBatch | RelatedBatch


def parse_batch(schema: type[AnyBatch], body: bytes | Mapping[str, Any]) -> Iterator[AnyBatch | None]:
    """Yield None after each validated element of a large body, then the batch. Raises ValidationFailed.

    A caller can pause between two elements, to let other requests use its thread. Validating 256 histories of 1,000
    items takes 0.3 s.
    """
    asked = None if isinstance(body, bytes) else body.get("requests")
    if isinstance(body, Mapping) and isinstance(asked, list) and len(asked) <= MAX_BATCH:
        request = RecommendRequest if schema is RecommendBatch else RelatedRequest
        parsed = []
        for element in asked:
            parsed.append(_validated(request, element, request.model_validate))
            yield None
        body = {**body, "requests": parsed}
    yield parse(schema, body)


def elements(batch: AnyBatch) -> Sequence[AnyRequest | Rejected]:
    """Return the elements of a batch. An invalid element is a Rejected."""
    return batch.requests
