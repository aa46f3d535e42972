"""Answer questions to a model with DataFrames: check the arguments as the API does, rank, and build the columns."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from svc.asking.fields import Kind, kinds_of
from svc.asking.offer import Offer
from svc.asking.page import PageAnswer, PageRequest
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.requests import AnyRequest, PopularQuery, RecommendRequest, RelatedRequest, UsersRequest
from svc.asking.rerank import RerankAnswer, RerankRequest
from svc.cores import usable_cores
from svc.errors import UnknownUser, UsageError, ValidationFailed
from svc.export.request import CHUNK
from svc.library.items import NO_ITEM_TABLE, ItemTable
from svc.library.tables import id_series, plain
from svc.model.explain import POPULAR, Because, Disliked, PopularityReason, Reasons
from svc.model.model import Model
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Prepared, Query, Ranking

if TYPE_CHECKING:
    from numpy.typing import NDArray

AnyQuestion = TypeVar(
    "AnyQuestion", RecommendRequest, RelatedRequest, PopularQuery, UsersRequest, PageRequest, RerankRequest
)
Answer = TypeVar("Answer")
_FILTERING = ("filter", "limits", "boosts")


@dataclass(frozen=True, eq=False, kw_only=True)
class FramedOffer(Offer):
    """An offer whose answers are DataFrames with the columns of `items`, one row for each item and new item."""

    items: ItemTable = NO_ITEM_TABLE

    @classmethod
    def of(cls, model: Model, items: ItemTable = NO_ITEM_TABLE, new: NewItems | None = None) -> Self:
        """Return the offer of a model without a recipe, with the caller's tables."""
        return cls(model=model, items=items, filters=items.filters, new_items=new or None)


def question(schema: type[AnyQuestion], offer: FramedOffer, controls: Mapping[str, Any]) -> AnyQuestion:
    """Build a request from keyword arguments and validate it. Arguments that are None are left out.

    Raises UsageError for an invalid argument, and for a filter, limits or boosts if there is no item table.
    """
    kinds = kinds_of(schema)
    given = {name: _to_json(name, kinds.get(name), value) for name, value in controls.items() if value is not None}
    asked = next((name for name in _FILTERING if given.get(name)), None)
    if asked is not None and not offer.filters.fields:
        raise UsageError(f"{asked}: needs a table of the items: give svc.load or svc.train a DataFrame as items=")
    with in_python():
        return parse(schema, given)


def planned(request: AnyRequest | UsersRequest | PopularQuery, offer: FramedOffer) -> Prepared:
    """Return the query of a valid request.

    Raises UsageError if the request does not fit the model or its recipe, and the other errors of `plan`.
    """
    with in_python():
        return plan(request, offer)


def answered(steps: Generator[Prepared, Ranking, Answer], model: Model) -> Answer:
    """Rank each query of the steps, and return their result. Raises UsageError for an invalid request."""
    with in_python():
        try:
            prepared = next(steps)
            while True:
                prepared = steps.send(model.rank([prepared.query])[0])
        except StopIteration as end:
            result: Answer = end.value
            return result


def page_frame(offer: FramedOffer, page: PageAnswer) -> pd.DataFrame:
    """Return the items of a page, one row of it after the other."""
    lengths = [len(row.ranking.items) for row in page.rows]
    frame = frame_of(offer, [row.ranking for row in page.rows])
    frame.insert(0, "row", id_series([row.id for row in page.rows]).repeat(lengths).reset_index(drop=True))
    for position, name in enumerate(("seed_item", "label"), start=1):
        values = [getattr(row, name) for row in page.rows]
        if any(values):
            frame.insert(position, name, pd.Series(values, dtype=object).repeat(lengths).reset_index(drop=True))
    return frame


def rerank_frame(offer: FramedOffer, answer: RerankAnswer) -> pd.DataFrame:
    """Return a list in its new order."""
    ranked, ranking = answer.ranked, answer.ranking
    # -1 stands for an item that the model does not know.
    scores = np.full(len(ranked), math.nan)
    scores[ranked >= 0] = ranking.scores[ranked[ranked >= 0]]
    frame = pd.DataFrame(
        {
            "item_id": id_series([answer.ids[position] for position in answer.order.tolist()]),
            "score": scores,
            "from": answer.order,
            "seen": answer.seen,
            "unavailable": answer.unavailable,
        }
    )
    if ranking.because:
        reasons = [ranking.because[position] if position >= 0 else None for position in ranked.tolist()]
        shown = [None if because is None else _because(offer, because) for because in reasons]
        frame["because"] = pd.Series(shown, dtype=object)
        frame["rest"] = [math.nan if because is None else because.rest for because in reasons]
    return frame


@contextmanager
def in_python() -> Iterator[None]:
    """Raise the error of an invalid request as one of a Python call, without "request body: " or "query: "."""
    try:
        yield
    except ValidationFailed as error:
        raise UsageError(error.message.removeprefix("request body: ").removeprefix("query: ")) from None


def checked_id(name: str, value: object) -> str:
    """Return `value` if it is an id, that is text. Raises UsageError for anything else."""
    if isinstance(value, str):
        # Subclasses such as np.str_ become plain text.
        return str(value)
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        raise UsageError(f"{name}: an id is missing (NaN); leave such rows out, as dropna() does")
    if isinstance(value, Iterable):
        # Bytes are one id of the wrong type and not several users.
        is_list = name == "user_id" and not isinstance(value, bytes)
        plural = "; recommend_many takes several users" if is_list else ""
        raise UsageError(f"{name}: an id is text, not a {type(value).__name__}{plural}")
    raise UsageError(f"{name}: ids are text, and {value!r} is of type {type(value).__name__}: use str({value!r})")


def checked_ids(name: str, values: object) -> list[str]:
    """Return the ids in an iterable, such as a column of a DataFrame.

    Raises UsageError for text, a mapping, a DataFrame, a value that is no iterable, and a member that is no id.
    """
    return [checked_id(name, value) for value in _as_list(name, values)]


def _as_list(name: str, values: object) -> list[Any]:
    if isinstance(values, str):
        raise UsageError(f"{name}: give a list, such as [{values!r}]")
    if isinstance(values, pd.DataFrame):
        column = "user_id" if name == "users" else "item_id"
        raise UsageError(f"{name}: give one column of the DataFrame, such as {name}=data['{column}']")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: give a list, not a {type(values).__name__}")
    # `list` of an Arrow array gives scalars of Arrow.
    return values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)


def _to_json(name: str, kind: Kind | None, value: object) -> object:
    """Convert an argument to the JSON value that requests take."""
    match kind:
        case Kind.ID:
            return checked_id(name, value)
        case Kind.IDS:
            return checked_ids(name, value)
        case Kind.ITEMS:
            return [_entry(name, entry) for entry in _as_list(name, value)]
        case Kind.OBJECTS:
            return plain(_as_list(name, value))
    return plain(value)


def _entry(name: str, entry: object) -> object:
    if isinstance(entry, Mapping):
        fields = plain(entry)
        return {**fields, "item_id": checked_id(name, fields["item_id"])} if "item_id" in fields else fields
    return checked_id(name, entry)


def many_frame(offer: FramedOffer, request: RecommendRequest, users: Sequence[str], *, skip: bool) -> pd.DataFrame:
    """Return the items of each user, one user after another, with the columns `user_id` and `rank` in front.

    `request` is answered for each of `users`. `skip` leaves out unknown users whom the request cannot answer. Without
    it, such a user raises UnknownUser.
    """
    answered = _answerable(offer, request, users, skip=skip)
    pages = list(_pages(offer, request, answered))
    lengths = [len(page.items) for page in pages]
    frame = frame_of(offer, pages)
    ranks = [np.arange(length, dtype=np.int32) for length in lengths]
    frame.insert(0, "user_id", id_series(answered).repeat(lengths).reset_index(drop=True))
    frame.insert(1, "rank", np.concatenate([np.empty(0, np.int32), *ranks]) + np.int32(request.offset + 1))
    return frame


def _answerable(offer: FramedOffer, request: RecommendRequest, users: Sequence[str], *, skip: bool) -> Sequence[str]:
    """Return the users whom the request can answer.

    These are all users if the request also answers unknown users, for example by its `history` or `fallback`.
    Otherwise unknown users are left out with `skip`, and raise UnknownUser without it.
    """
    is_stranger = offer.model.user_ids.indices(users) < 0
    if not is_stranger.any():
        return users
    # One unknown user shows whether the request can answer all of them.
    first = users[int(np.argmax(is_stranger))]
    try:
        planned(_asked_for(request, first), offer)
    except UnknownUser:
        if not skip:
            raise UnknownUser(
                f"{np.count_nonzero(is_stranger)} of {len(users)} users are not in the training data, the first is "
                f"{first!r}; unknown='skip' leaves them out"
            ) from None
        return [user for user, stranger in zip(users, is_stranger.tolist(), strict=True) if not stranger]
    return users


def _asked_for(request: RecommendRequest, user: str) -> RecommendRequest:
    return request.model_copy(update={"user_id": user})


def _pages(offer: FramedOffer, request: RecommendRequest, users: Sequence[str]) -> Iterator[Ranking]:
    """Yield the ranking of each user from place `request.offset` on, in order. All cores rank."""

    def rank_chunk(chunk: Sequence[str]) -> list[Ranking]:
        prepared = [planned(_asked_for(request, user), offer) for user in chunk]
        rankings = offer.model.rank([query for query, *_ in prepared])
        return [ranking.from_place(request.offset) for ranking in rankings]

    chunks = [users[start : start + CHUNK] for start in range(0, len(users), CHUNK)]
    # Threads are enough, because numpy releases the interpreter in matrix products.
    with ThreadPoolExecutor(usable_cores(), "svc-recommend") as pool:
        for pages in pool.map(rank_chunk, chunks):
            yield from pages


def score_frame(model: Model, users: Sequence[str], items: Sequence[str]) -> pd.DataFrame:
    """Return the score of each pair, or NaN if training did not see the user or the item.

    Raises UsageError unless there are as many users as items.
    """
    if len(users) != len(items):
        raise UsageError(f"score: give as many users as items, not {len(users)} and {len(items)}: they are pairs")
    rows, columns = model.user_ids.indices(users), model.item_ids.indices(items)
    scores = np.full(len(rows), math.nan)
    # A model ranks items for a user, so all pairs of a user become one query.
    trained = np.flatnonzero((rows >= 0) & (columns >= 0))
    order = trained[np.argsort(rows[trained], kind="stable")]
    starts = np.flatnonzero(np.diff(rows[order], prepend=-1))
    # `split` begins its first part by itself, so the first start is left out.
    groups = np.split(order, starts[1:]) if len(order) else []
    queries = [_query(model, int(rows[places[0]]), columns[places]) for places in groups]
    rankings = (model.rank(queries[start : start + CHUNK]) for start in range(0, len(queries), CHUNK))
    for places, ranking in zip(groups, chain.from_iterable(rankings), strict=True):
        # By item, because a pair may be given twice, and a ranking has each item once.
        score_of = dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))
        scores[places] = [score_of.get(column, math.nan) for column in columns[places].tolist()]
    return pd.DataFrame({"user_id": id_series(users), "item_id": id_series(items), "score": scores})


def _query(model: Model, row: int, columns: NDArray[np.int32]) -> Query:
    """Return the query that ranks all items in `columns` for one user."""
    # `include_seen`, because items that the user has would otherwise get no score.
    return Query(limit=len(columns), user=row, include_seen=True, allowed=ItemSet.of_columns(columns, model.n_items))


def frame_of(offer: FramedOffer, pages: Sequence[Ranking]) -> pd.DataFrame:
    """Return the items of the rankings `pages`, one ranking after another.

    The columns are:

    - `item_id` and `score`
    - `reason`, a list, if any item is new, moved by a rule, or shown for its popularity and without a score
    - `because`, `in_spite_of` and `rest`, if explanations were requested
    - the columns of the items
    """
    items = offer.items
    # The empty array is for no pages, which `concatenate` refuses.
    columns: NDArray[np.int32] = np.concatenate([np.empty(0, np.int32), *(page.items for page in pages)])
    frame = pd.DataFrame(
        {
            "item_id": id_series([offer.names.at(column) for column in columns.tolist()]),
            "score": np.concatenate([np.empty(0), *map(_scores, pages)]),
        }
    )
    if any(page.popular or page.reasons for page in pages):
        frame["reason"] = pd.Series(list(chain.from_iterable(map(_reasons, pages))), dtype=object)
    if any(page.because for page in pages):
        because = list(chain.from_iterable(page.because or (None,) * len(page.items) for page in pages))
        shown = [None if reasons is None else _because(offer, reasons) for reasons in because]
        against = [None if reasons is None else _reasons_of(offer, reasons.in_spite_of) for reasons in because]
        frame["because"] = pd.Series(shown, dtype=object)
        frame["in_spite_of"] = pd.Series(against, dtype=object)
        frame["rest"] = [math.nan if reasons is None else reasons.rest for reasons in because]
    if len(items.frame.columns):
        # Side by side by position: both have the same fresh index.
        frame = pd.concat([frame, items.of(columns)], axis=1)
    return frame


def reasons_frame(offer: FramedOffer, ranking: Ranking) -> pd.DataFrame:
    """Return the reasons for the items of an explained ranking, one reason per row.

    The last row of an item has the reason `rest`.
    """
    name_of = offer.names.at
    rows = []
    for rank, (item, score, because) in enumerate(
        zip(ranking.items.tolist(), ranking.scores.tolist(), ranking.because, strict=True), start=1
    ):
        rows += [
            (rank, name_of(item), score, name_of(reason) if isinstance(reason, int) else reason, share, share < 0)
            for reason, share in [*because.reasons, *because.in_spite_of, ("rest", because.rest)]
        ]
    frame = pd.DataFrame(rows, columns=["rank", "item_id", "score", "reason", "share", "in_spite_of"])
    # Without rows the column would be one of objects.
    return frame.astype({"item_id": "str"})


def _scores(page: Ranking) -> NDArray[np.float64]:
    # Counts of choices are on another scale than scores.
    return np.full(len(page.items), np.nan) if page.popular else page.scores


def _reasons(page: Ranking) -> list[list[str]]:
    own = page.reasons or ((),) * len(page.items)
    return [[*(("popular",) if page.popular else ()), *reasons] for reasons in own]


def _because(offer: FramedOffer, because: Because) -> list[dict[str, Any]]:
    if because is POPULAR:
        return [{"reason": "popular"}]
    return _reasons_of(offer, because.reasons)


def _reasons_of(offer: FramedOffer, reasons: Reasons) -> list[dict[str, Any]]:
    return [
        {
            "item_id": offer.names.at(reason),
            "share": share,
            **({"disliked": True} if isinstance(reason, Disliked) else {}),
            **offer.items.facts(reason),
        }
        if isinstance(reason, int)
        else {"reason" if isinstance(reason, PopularityReason) else "feature": str(reason), "share": share}
        for reason, share in reasons
    ]
