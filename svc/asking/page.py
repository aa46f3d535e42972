"""A page: several rows of items for one user, in which no item stands twice.

Each row is the answer to a single request that excludes the items of earlier rows. So rows are planned one after the
other, and whoever answers the page ranks the query of each row before the next one is planned.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import ConfigDict, Field

from svc.asking.fields import Id, Kind, invalid, listed, within
from svc.asking.filtering import items_at
from svc.asking.offer import Offer
from svc.asking.plan import plan
from svc.asking.requests import (
    MAX_SEEDS,
    WITH_PROFILE,
    Excluded,
    FilterAsked,
    PageRules,
    PopularQuery,
    Question,
    RecommendRequest,
    RelatedRequest,
    UserFields,
    lacks,
    needs_schema,
    refuse_without_effect,
)
from svc.errors import UnknownSeedItems, UnknownUser, ValidationFailed
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import best, intersect
from svc.model.ranking.query import NOTHING_MORE, NOTHING_RANKED, Prepared, Ranking
from svc.model.recommenders.base import excluded_columns

MAX_ROWS, MAX_ROW_ITEMS, MAX_ROW_ID = 16, 100, 64
FAVOURED = 200
"""Number of a user's best items that decide which labels the user favours."""
KINDS = ("recommend", "related", "label", "popular")
NOTHING_LEFT = "no item is left for this row"


class PlainRow(Question):
    """The fields of every row."""

    limit: Annotated[int, *within(1, MAX_ROW_ITEMS, "Most items of the row.")] = 10
    filter: FilterAsked = None


class RecommendRow(PageRules, PlainRow):
    """Items for the user, as `:recommend` gives them."""


PLAIN_ROW = RecommendRow()


class RelatedRow(RecommendRow):
    """Items related to `seed_items`, or to the user's latest item with `"to": "latest"`."""

    seed_items: Annotated[list[Id] | None, *listed(Kind.IDS, MAX_SEEDS, "The seeds.", min_length=1)] = None
    to: Annotated[
        Literal["latest"] | None,
        Field(description="The user's latest item that no earlier row of the page was related to."),
    ] = None


class LabelRow(RecommendRow):
    """A row for each of the labels of a filter field that the user favours most."""

    field: Annotated[Id, Field(description="A filter field of labels.")]
    rows: Annotated[int, *within(1, MAX_ROWS, "Most rows.")] = 1


class RowAsked(Question):
    """A row of a page, of one kind."""

    id: Annotated[str, Field(min_length=1, max_length=MAX_ROW_ID, description="A name for the row, distinct.")]
    recommend: RecommendRow | None = None
    related: RelatedRow | None = None
    label: LabelRow | None = None
    popular: PlainRow | None = None

    @property
    def given(self) -> dict[str, PlainRow]:
        """The kinds that the row gives, by name. A valid row gives one."""
        return {kind: asked for kind in KINDS if (asked := getattr(self, kind)) is not None}


class PageRequest(UserFields):
    """Recommend several rows of items to one user, without an item twice."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "user_id": "u42",
                    "rows": [
                        {"id": "for you", "recommend": {"limit": 10, "diversity": 0.2}},
                        {"id": "because", "related": {"to": "latest", "limit": 8}},
                        {"id": "hot", "popular": {"limit": 10}},
                    ],
                }
            ],
            **needs_schema("history_mode", "rotation", "shuffle"),
        }
    )

    exclude_items: Excluded
    filter: FilterAsked = None
    rows: Annotated[list[RowAsked], *listed(Kind.OBJECTS, MAX_ROWS, "The rows.", min_length=1)]

    @property
    def restrictions(self) -> list[object]:
        """The filters of the page and its rows, without those of boosts."""
        trees = (self.filter, *(asked.filter for row in self.rows for asked in row.given.values()))
        return [tree for tree in trees if tree is not None]

    @property
    def filters(self) -> list[object]:
        """The filters of the page, its rows and their boosts, as the client wrote them."""
        ruled = [asked for row in self.rows for asked in row.given.values() if isinstance(asked, PageRules)]
        return [*self.restrictions, *(boost.filter for asked in ruled for boost in asked.boosts or ())]

    def single(self, row: RecommendRow, excluded: Sequence[str]) -> RecommendRequest:
        """Return the request of a row for the user, without its filter."""
        own = {name: getattr(self, name) for name in UserFields.model_fields}
        own |= _controls(row) | {"exclude_items": [*self.exclude_items, *excluded]}
        # Not validated again: a validated history has tuples, which the validator of requests refuses.
        return RecommendRequest.model_construct(WITH_PROFILE, **own)


class RowAnswer(NamedTuple):
    """A row of a page: its ranking from the first item on, and its seed or label. `why` tells why it is empty."""

    id: str
    ranking: Ranking
    prepared: Prepared
    seed_item: str | None = None
    label: str | None = None
    why: str | None = None


class PageAnswer(NamedTuple):
    """The rows of a page, and the facts about its user."""

    rows: list[RowAnswer]
    about: Prepared | None
    """The query of the user, or None if nothing is known of the user."""


Steps = Generator[Prepared, Ranking, Any]


def page_steps(request: PageRequest, offer: Offer) -> Generator[Prepared, Ranking, PageAnswer]:
    """Yield the query of each row and receive its ranking. Return the page. Raises ValidationFailed."""
    refuse_without_effect(request)
    ids = [row.id for row in request.rows]
    for index, name in enumerate(ids):
        if name in ids[:index]:
            raise invalid(["rows", index, "id"], "two rows have the same id", "repeated_row")
    offer = _restricted(offer, request.filter, ("filter",))
    kinds = [_kind(row, index) for index, row in enumerate(request.rows)]
    # All filters are checked before the first row is ranked, so an invalid one costs no ranking.
    offers = [
        _restricted(offer, getattr(row, kind).filter, ("rows", index, kind, "filter"))
        for index, (row, kind) in enumerate(zip(request.rows, kinds, strict=True))
    ]
    about: Prepared | str
    try:
        about = plan(request.single(PLAIN_ROW, ()), replace(offer, policy=replace(offer.policy, pins=())))
    except UnknownUser as error:
        about = error.message
    except ValidationFailed as error:
        # A page may have only rows that need no user, so a missing user just leaves the other rows empty.
        if error.errors[0]["type"] != "missing":
            raise
        about = error.message
    page = _Page(request, offer, about)
    for index, (row, kind, row_offer) in enumerate(zip(request.rows, kinds, offers, strict=True)):
        try:
            yield from page.add(row, row_offer)
        except ValidationFailed as error:
            raise _within(error, index, kind) from None
    return PageAnswer(page.rows, None if isinstance(about, str) else about)


class _Page:
    """A page that gets its rows one after the other.

    `about` is the query of the user, or the reason why there is none.
    """

    def __init__(self, request: PageRequest, offer: Offer, about: Prepared | str) -> None:
        self._request = request
        self._offer = offer
        self._about = about
        self._shown: list[str] = []
        self._seeds: set[str] = set()
        self.rows: list[RowAnswer] = []

    def add(self, row: RowAsked, offer: Offer) -> Steps:
        """Rank and add the row, or several rows of labels."""
        if row.related is not None:
            yield from self._add_related(row.id, row.related, offer)
        elif row.popular is not None:
            yield from self._add(row.id, offer, PopularQuery.model_construct(limit=row.popular.limit))
        elif isinstance(self._about, str):
            self._leave_empty(row.id, self._about)
        elif row.label is not None:
            yield from self._add_labels(row.id, row.label, offer)
        elif row.recommend is not None:
            yield from self._add(row.id, offer, self._request.single(row.recommend, self._shown))

    def _leave_empty(self, name: str, why: str, **more: str) -> None:
        self.rows.append(RowAnswer(name, NOTHING_RANKED, NOTHING_MORE, **more, why=why))

    def _add(self, name: str, offer: Offer, request: Any, **more: str) -> Steps:
        try:
            prepared = plan(request, offer)
        except UnknownSeedItems as error:
            self._leave_empty(name, error.message, **more)
            return
        if isinstance(request, PopularQuery):
            # Requests for popular items have no `exclude_items`, so the columns go straight into the query.
            columns = offer.names.of_model([*self._shown, *self._seen])
            prepared = prepared._replace(query=prepared.query._replace(exclude=columns))
        ranking = yield prepared
        self._shown += map(offer.names.at, ranking.items.tolist())
        why = None if len(ranking.items) else NOTHING_LEFT
        self.rows.append(RowAnswer(name, ranking, prepared, **more, why=why))

    def _add_related(self, name: str, asked: RelatedRow, offer: Offer) -> Steps:
        if (asked.seed_items is None) == (asked.to is None):
            raise (
                lacks("seed_items", "to") if asked.to is None else invalid(["to"], "give seed_items or to", "one_seed")
            )
        seeds, more = asked.seed_items, dict[str, str]()
        if seeds is None:
            latest = next((item for item in self._latest_first(offer) if item not in self._seeds), None)
            if latest is None:
                self._leave_empty(name, "no item of the user is left to be related to")
                return
            self._seeds.add(latest)
            seeds, more = [latest], {"seed_item": latest}
        excluded = [*self._shown, *self._seen]
        request = RelatedRequest.model_construct(**_controls(asked), seed_items=seeds, exclude_items=excluded)
        yield from self._add(name, offer, request, **more)

    def _add_labels(self, name: str, asked: LabelRow, offer: Offer) -> Steps:
        field = offer.filters.fields.get(asked.field)
        if not isinstance(field, LabelField):
            labels = ", ".join(name for name, kind in offer.filters.kinds.items() if kind != "numerical")
            message = f"no filter field of labels has this name; the recipe has {labels or 'none'}"
            raise invalid(["field"], message, "label_field")
        everything = plan(self._request.single(asked, self._shown), offer)
        # Labels need the scores of all items and no order. Sorting 41,000 scores takes 8 ms.
        query = everything.query._replace(unordered=True, reordered=False, rules=None, new=None, explain=0)
        query = query._replace(limit=offer.model.n_items)
        ranking = yield everything._replace(query=query)
        favoured = favoured_labels(field, ranking, asked.rows)
        if not favoured:
            self._leave_empty(name, NOTHING_LEFT)
        for label in favoured:
            of_label = replace(offer, available=intersect(offer.available, field.having(label)))
            request = self._request.single(asked, self._shown)
            yield from self._add(name, of_label, request, label=field.names.at(label))

    # Each related and popular row needs these ids, and finding them searches the whole history.
    @cached_property
    def _seen(self) -> list[str]:
        """Return the ids of the items that the user's rows leave out: seen, hidden, disliked and excluded ones."""
        request, offer, dislikes = self._request, self._offer, list[str]()
        if isinstance(self._about, str):  # an unknown user, who may reject items and have hidden ones all the same
            dislikes = [dislike.item_id for dislike in request.dislikes or ()]
            columns, _ = offer.model.hidden_from(-1, request.user_id, brings_back=request.include_seen is True)
        else:
            columns = excluded_columns(self._about.query, offer.model.history)
        return [*request.exclude_items, *dislikes, *map(offer.names.at, np.unique(columns).tolist())]

    def _latest_first(self, offer: Offer) -> Iterator[str]:
        """Yield the items of the user, latest first: those of the request, and then stored ones.

        Without an order, the item that most users chose comes first, which is the one of the lowest column.
        """
        request, model = self._request, offer.model
        chosen = [item.item_id for item in request.history or () if model.item_ids.index(item.item_id) >= 0]
        # Requests list their history oldest first.
        yield from reversed(chosen)
        user = -1 if request.user_id is None else model.user_ids.index(request.user_id)
        if user < 0 or (chosen and request.history_mode == "replace"):
            return
        stored = model.history.items(user).tolist()
        yield from map(offer.names.at, reversed(stored) if model.history.is_ordered else sorted(stored))


def favoured_labels(field: LabelField, ranking: Ranking, count: int) -> list[int]:
    """Return the `count` labels that a user favours most, from a ranking of all items.

    An item weighs exp(z), with z its score in deviations from the mean. A label's value is the weight of its items
    among the FAVOURED best, divided by the weight of all its items. Equal values are ordered by the first weight.
    """
    if not len(ranking.items):
        return []
    scores, deviation = ranking.scores, ranking.scores.std()
    z = (scores - scores.max()) / (deviation if deviation > 0 else 1.0)  # one factor for all weights, against overflow
    weights = np.zeros(field.n_items)
    # Scores may be negative, and shares of them would mean nothing. Exponentials are positive.
    weights[ranking.items] = np.exp(z)
    of_best = np.zeros(field.n_items)
    ties = ranking.items if ranking.ties is None else ranking.ties
    top = ranking.items[best(scores, FAVOURED, ties)]
    of_best[top] = weights[top]
    # Labels are stored item after item, so this is the item of each stored label.
    owners = np.repeat(np.arange(field.n_items), np.diff(field.label_starts))
    in_best, in_all = (np.bincount(field.labels, some[owners], len(field.names)) for some in (of_best, weights))
    values = np.divide(in_best, in_all, out=np.zeros(len(in_all)), where=in_all > 0)
    order = np.lexsort((-in_best, -values))[:count]  # stable, so the rest go by number
    # A label without any of the best items is no favourite, even if rows stay empty.
    return [int(label) for label in order if in_best[label] > 0]


def _restricted(offer: Offer, tree: object, path: tuple[str | int, ...]) -> Offer:
    """Return an offer that permits only the items that satisfy the filter `tree`. None: all of them."""
    if tree is None:
        return offer
    return replace(offer, available=intersect(offer.available, items_at(offer.filters, path, tree)))


def _kind(row: RowAsked, index: int) -> str:
    """Return the only kind that the row gives. Raises ValidationFailed."""
    kinds = list(row.given)
    if len(kinds) == 1:
        return kinds[0]
    error = invalid([kinds[1]], "a row has one kind", "one_kind") if kinds else lacks(*KINDS)
    raise _within(error, index)


def _controls(row: RecommendRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("limit", *PageRules.model_fields)}


def _within(error: ValidationFailed, index: int, *kind: str) -> ValidationFailed:
    """Return the error of a row's request with the place of the row."""
    path = ["rows", index, *kind]
    errors = [{**details, "loc": [details["loc"][0], *path, *details["loc"][1:]]} for details in error.errors]
    return ValidationFailed(f"{'.'.join(map(str, path))}.{error.message}", errors=errors)
