"""pydantic models of request bodies and query strings, which validate requests and appear in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, WrapValidator

from svc.asking.fields import (
    MAX_LIMIT,
    Asked,
    BoostAsked,
    Dislike,
    Features,
    HistoryItem,
    Id,
    ItemFeatures,
    Kind,
    LimitAsked,
    PinAsked,
    Place,
    ShownItem,
    Tree,
    digits,
    filter_in_query,
    invalid,
    listed,
    within,
)
from svc.asking.parsing import Rejected, parse, validation_error
from svc.errors import ValidationFailed
from svc.names import MAX_ID_CHARACTERS, Order

MAX_BATCH = 256
MAX_BOOSTS = 16
MAX_DISLIKES = 1000
MAX_EXCLUDED = 1000
MAX_HISTORY = 1000
MAX_INCLUDED = 1000
MAX_LIMITS = 4
MAX_MATCHES = 20
MAX_PINS = 16
MAX_REASONS = 10
MAX_SEED_CHARACTERS = 64
MAX_SEEDS = 100
MAX_SHOWN = 1000
MAX_USERS = 1000


class Question(Asked):
    """A request to a verb other than a batch verb."""

    @property
    def filters(self) -> list[object]:
        """The filters of the request, as the client wrote them."""
        return []


Excluded = Annotated[
    list[Id],
    *listed(
        Kind.IDS,
        MAX_EXCLUDED,
        "Items to leave out of the answer. Unknown ids are ignored.",
        default_factory=list,  # pydantic would copy a default deeply for each request
        json_schema_extra={"default": []},
    ),
]
FilterAsked = Annotated[
    Tree,
    Kind.FILTER,
    Field(description="Conditions on the recipe's filter fields. Only items that satisfy them are ranked."),
]
Unit = Annotated[
    Id | None,
    Field(
        description="Who is asked for, if there is no `user_id`: a visitor or a session. It decides the arm of the "
        "recipe's experiment, and changes nothing else."
    ),
]
Explain = Annotated[int | None, *within(1, MAX_REASONS, "Most reasons for each item.")]


class Selection(Question):
    """The fields that choose the items to rank, and the page of the ranking."""

    limit: Annotated[int, *within(1, MAX_LIMIT, "Most items to return.")] = 10
    exclude_items: Excluded
    filter: FilterAsked = None
    include_items: Annotated[list[Id] | None, *listed(Kind.IDS, MAX_INCLUDED, "Only these items are ranked.")] = None
    offset: Annotated[Place, Field(description="Items of the ranking before the first that is returned.")] = 0


class PageRules(Question):
    """The fields that explain and reorder a page."""

    explain: Explain = None
    diversity: Annotated[
        float | None, Field(ge=0, le=1, description="From 0, the items of highest score, to 1, the most varied items.")
    ] = None
    limits: Annotated[
        list[LimitAsked] | None, *listed(Kind.OBJECTS, MAX_LIMITS, "Most items with the same value of a field.")
    ] = None
    boosts: Annotated[
        list[BoostAsked] | None, *listed(Kind.OBJECTS, MAX_BOOSTS, "Factors for items that satisfy a filter.")
    ] = None


class ItemsRequest(PageRules, Selection):
    """The fields that requests for items of one user or of related items share."""

    pins: Annotated[
        list[PinAsked] | None,
        *listed(
            Kind.OBJECTS,
            MAX_PINS,
            "Items at fixed places of the ranking. Items and places must be distinct.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = None

    @property
    def filters(self) -> list[object]:
        """The filter of the request and the filters of its boosts, as the client wrote them."""
        trees = [] if self.filter is None else [self.filter]
        return [*trees, *(boost.filter for boost in self.boosts)] if self.boosts else trees


def lacks(*names: str) -> ValidationFailed:
    """Return the error for a request that has none of the fields `names`."""
    message = f"give {', '.join(names[:-1])} or {names[-1]}"
    return ValidationFailed(message, errors=[{"loc": ["body", names[0]], "msg": message, "type": "missing"}])


WITH_PROFILE = {"profile"}
"""The set fields of a request that svc makes itself and that must tell the profile."""
_NEEDS = {"history_mode": "history", "rotation": "shown", "shuffle": "seed"}
"""Fields that have no effect without another field."""


def refuse_without_effect(request: Question) -> None:
    """Raise ValidationFailed for a field that has no effect, because the field that it needs is missing or empty."""
    # Only fields that the client wrote. Their defaults stand in every request.
    for name in _NEEDS.keys() & request.model_fields_set:
        needed = getattr(request, _NEEDS[name])
        if needed is None or (not needed and name == "rotation"):
            message = f"has no effect without {_NEEDS[name]}; give {_NEEDS[name]}, or leave {name} out"
            raise invalid([name], message, "without_effect")


def needs_schema(*names: str) -> dict[str, Any]:
    """Return the JSON Schema that tells which of the fields `names` need another field."""
    kinds = {"history": {"type": "array"}, "shown": {"type": "array", "minItems": 1}, "seed": {"type": "string"}}
    properties = {name: {_NEEDS[name]: kinds[_NEEDS[name]]} for name in names}
    return {
        "dependentSchemas": {name: {"required": [*needed], "properties": needed} for name, needed in properties.items()}
    }


class DescribedUser(Question):
    """The fields that describe a user."""

    user_id: Annotated[Id | None, Kind.ID, Field(description="A user of the training data.")] = None
    unit: Unit = None
    user_features: Annotated[
        Features | None, Field(description="Features of a user that training never saw. Not used for a known user.")
    ] = None
    history: Annotated[
        list[HistoryItem] | None, *listed(Kind.ITEMS, MAX_HISTORY, "Items of the training data that the user chose.")
    ] = None
    history_mode: Annotated[
        Literal["append", "replace"],
        Field(description="Append `history` to the known history of the user, or replace the known history."),
    ] = "append"


class UserFields(DescribedUser):
    """The fields that describe a user, and that vary the user's pages."""

    include_seen: Annotated[
        bool | None,
        Field(
            description="Return items of the user's own history too. By default only if the model was trained with "
            "training.repeats."
        ),
    ] = None
    dislikes: Annotated[
        list[Dislike] | None,
        *listed(
            Kind.ITEMS,
            MAX_DISLIKES,
            "Items that the user rejects. They are never returned, and they lower the scores of others.",
        ),
    ] = None
    fallback: Annotated[
        Literal["none", "popular"] | None,
        Field(description="Answer for a user without any information. By default the recipe's."),
    ] = None
    shown: Annotated[
        list[ShownItem] | None,
        *listed(Kind.ITEMS, MAX_SHOWN, "Items that the user was shown before. They rank lower."),
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

    @property
    def shows_profile(self) -> bool:
        """True if the answer must have the field `profile`, because the request sets a history or fallback."""
        return self.history is not None or self.fallback is not None or "profile" in self.model_fields_set


class RecommendRequest(UserFields, ItemsRequest):
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
            **needs_schema("history_mode", "rotation", "shuffle"),
        }
    )


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
        *listed(Kind.IDS, MAX_SEEDS, "Items of the training data. They are never returned.", min_length=1),
    ] = None
    item_features: Annotated[
        ItemFeatures | None, Field(description="Features of one unseen item, or of several by item id.")
    ] = None
    user_features: Annotated[Features | None, Field(description="Features of the user, added to the seeds.")] = None
    unit: Unit = None


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

    item_id: Annotated[Id | None, Kind.ID, Field(description="An item of the training data.")] = None
    item_features: Annotated[
        Features | None,
        Field(
            description="Features of an item that training never saw. Not used for a known item. Refused with "
            "USERS_NOT_SERVED if only the model's part for unseen items learned from features, because it keeps no "
            "users."
        ),
    ] = None
    limit: Annotated[int, *within(1, MAX_LIMIT, "Most users to return.")] = 10
    offset: Annotated[Place, Field(description="Users of the ranking before the first that is returned.")] = 0
    order: Annotated[
        Order,
        Field(
            description="score: by predicted interest in the item; lift: by the score in standard deviations above "
            "the mean of the user's scores of all items; balanced: half of each."
        ),
    ] = "score"
    min_history: Annotated[
        int | None, *within(0, MAX_HISTORY, "The shortest history; by default 5 for the order lift, else 1.")
    ] = None
    include_users: Annotated[
        list[Id] | None, *listed(Kind.IDS, MAX_USERS, "Only these users are ranked, without unknown ones.")
    ] = None
    exclude_users: Annotated[
        list[Id] | None,
        *listed(Kind.IDS, MAX_USERS, "Users to leave out of the answer. Unknown ids are ignored."),
    ] = None
    include_seen: Annotated[
        bool | None,
        Field(
            description="Return users who have the item already, too. By default only if the model was trained with "
            "training.repeats."
        ),
    ] = None


AnyRequest = RecommendRequest | RelatedRequest
AnyQuestion = AnyRequest | UsersRequest


class QueryString(BaseModel):
    """The parameters in the address of a request."""

    model_config = ConfigDict(strict=True, frozen=True)


class ItemSearch(QueryString):
    """Items of the served model by id or metadata."""

    q: Annotated[
        str,
        Field(max_length=MAX_ID_CHARACTERS, description="Words that an item's id or metadata must all contain."),
    ] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_MATCHES, description="Most items to return."), BeforeValidator(digits)] = (
        MAX_MATCHES
    )


class SampleUserQuery(QueryString):
    """One user of the served model, with a part of their history."""

    user_id: Annotated[
        Id | None, Kind.ID, Field(description="A user of the training data, by default a random one.")
    ] = None


class PopularQuery(QueryString):
    """The most chosen items of the training data, all or those that satisfy a filter."""

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Most items to return."), BeforeValidator(digits)] = 10
    offset: Annotated[
        int,
        Field(ge=0, lt=MAX_LIMIT, description="Items of the list before the first that is returned."),
        BeforeValidator(digits),
    ] = 0
    filter: Annotated[
        Any,
        Kind.FILTER,
        Field(
            description="Conditions on the recipe's filter fields, as JSON. Only items that satisfy them are listed.",
            examples=['{"genres": {"any": ["Crime"]}}'],
        ),
        BeforeValidator(filter_in_query),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ] = None

    @property
    def filters(self) -> list[object]:
        """The filter of the request, as the client wrote it."""
        return [] if self.filter is None else [self.filter]


def _validated(request: type[AnyRequest], value: Any, validate: Callable[[Any], AnyRequest]) -> AnyRequest | Rejected:
    """Return an element of a batch, or a Rejected in its place if it is invalid, so that the batch stays valid."""
    # `parse_batch` has validated this element already.
    if isinstance(value, Rejected):
        return value
    try:
        return validate(value)
    except ValidationError as error:
        # Hints for 256 elements with 20 unknown fields each took 0.32 s of a processor.
        return Rejected(validation_error(error, "request", request, most=1))  # the answer shows one


_Elements = Field(min_length=1, max_length=MAX_BATCH, description="An invalid element fails alone.")


class Batch(Asked):
    """The fields that batch verbs share."""

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
    # A longer list goes to `parse` as it is, whose validation stops at the first element above the limit.
    if isinstance(body, Mapping) and isinstance(asked, list) and len(asked) <= MAX_BATCH:
        request = RecommendRequest if schema is RecommendBatch else RelatedRequest
        parsed = []
        for element in asked:
            parsed.append(_validated(request, element, request.model_validate))
            yield None
        # pydantic takes instances of the right class as they are, so no element is validated twice.
        body = {**body, "requests": parsed}
    yield parse(schema, body)


def elements(batch: AnyBatch) -> Sequence[AnyRequest | Rejected]:
    """Return the elements of a batch. An invalid element is a Rejected."""
    return batch.requests
