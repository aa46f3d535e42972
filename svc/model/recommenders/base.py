"""The interface of all scorers, and the functions that several scorers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranking.item_sets import ItemSet, best, mask
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders import users
from svc.model.recommenders.users import HistoryBlocks, Moments, UserScores

Side = Literal["user", "item"]
Group = TypeVar("Group")
Profile = tuple[NDArray[np.int32], NDArray[np.float64] | None]
"""Item columns, (h,), and their weights, (h,). None: all weigh 1."""
FEW_SHARE = 8
"""If at most one item in this many is allowed, only allowed items are scored. Else all are scored, then masked."""
SPARE_TIMES = 2
"""Safety factor on the number of items that are ranked at first.

If a tenth of all items is allowed, `limit` allowed items are expected among the 10 · `limit` best, so twice as many are
ranked.
"""


class Scorer(Stored, ABC):
    """A recommender that ranks items for queries. All methods but `ready` may run in several threads at once."""

    kind: ClassVar[str]
    """The name of the family in logs and descriptions, such as "factors"."""
    explains_by_profile: ClassVar[bool] = False
    """Whether a known user must be described by the history, instead of the trained vector, to explain scores.

    The explained scores then come from the history too.
    """
    sums_history: ClassVar[bool] = False
    """Whether ranking for a known user adds up the items of the history, and so takes longer for a longer history."""
    reads_dislikes: ClassVar[bool] = True
    """Whether dislikes change the scores of other items. If False, the disliked items are only left out."""

    @property
    @abstractmethod
    def n_items(self) -> int: ...

    @abstractmethod
    def ready(self) -> None:
        """Compute the data that derive from the stored arrays. Must be called once, before the first ranking."""

    def feature_dim(self, side: Side) -> int | None:  # noqa: ARG002
        """Return the length of the feature vectors of a side, or None if such features cannot be scored."""
        return None

    @abstractmethod
    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """Return one ranking per query, in order. A ranking has the same bits in any batch."""

    @abstractmethod
    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions | None:
        """Return the addends of the scores of `items`, or None if scores are not sums over a profile."""

    @abstractmethod
    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return a function that maps a position in `items`, (m,), to similarities of that item with `items`, (m,).

        They are cosines, or 0 if the model does not know how items relate.
        """


def excluded_columns(query: Query, history: History) -> NDArray[np.int32]:
    """Return the item columns that must not be recommended. Some may be repeated."""
    excluded = query.exclude
    if not query.include_seen:
        if len(query.seen_seeds):
            excluded = np.concatenate([excluded, query.seen_seeds])
        if query.user >= 0:
            seen = history.seen_items(query.user)
            # A query that excludes nothing else gets the view of the history, without a copy.
            excluded = np.concatenate([excluded, seen]) if len(excluded) else seen
    return excluded


def best_items(scores: NDArray[np.float64], query: Query, history: History) -> NDArray[np.int32]:
    """Return the columns of the `query.limit` best items that the query allows, by the `scores` of all items, (n,).

    The best item is first. If the query is unordered and its limit covers all items, they are in ascending order of
    columns. `scores` are changed in place.
    """
    scores[excluded_columns(query, history)] = -np.inf
    allowed = query.allowed
    if query.unordered and query.limit >= len(scores):
        # All items are wanted in any order, so that nothing has to be sorted.
        items = np.flatnonzero(scores > -np.inf).astype(np.int32)
        return items if allowed is None else items[allowed.contains(items)]
    if allowed is None:
        return best(scores, query.limit).astype(np.int32)
    if is_few(allowed):
        columns = allowed.columns()
        return columns[best(scores[columns], query.limit)]
    # Some more items are ranked, then checked: 68 instead of 373 µs for masking if half of 41,000 items are allowed.
    asked = SPARE_TIMES * query.limit * allowed.n_items // allowed.count
    ranked = best(scores, asked).astype(np.int32)
    shown = ranked[allowed.contains(ranked)][: query.limit]
    # Fewer than asked for means that no other item has a score, so masking would find no more.
    if len(shown) == query.limit or len(ranked) < asked:
        return shown
    mask(scores, allowed.flags())
    return best(scores, query.limit).astype(np.int32)


def is_few(allowed: ItemSet) -> bool:
    """Return whether scoring the allowed items one by one is cheaper than scoring all and masking the others."""
    return allowed.count * FEW_SHARE <= allowed.n_items


def profile(query: Query, history: History) -> Profile:
    """Return the items of the query's history and their weights, dislikes last."""
    if query.user < 0:
        return query.concatenate_signed()
    return history.items(query.user), history.weigh(query.user)


def grouped(queries: Sequence[Query], group_of: Callable[[Query], Group]) -> dict[Group, list[int]]:
    """Return the positions of the queries in each group."""
    groups: dict[Group, list[int]] = {}
    for position, query in enumerate(queries):
        groups.setdefault(group_of(query), []).append(position)
    return groups


def rank_in_groups(
    queries: Sequence[Query],
    group_of: Callable[[Query], Group],
    rank: Callable[[Group, Sequence[Query]], list[Ranking]],
) -> list[Ranking]:
    """Return one ranking per query, in order. `rank` is called once for each group, with all queries of the group."""
    rankings: dict[int, Ranking] = {}
    for group, positions in grouped(queries, group_of).items():
        rankings.update(zip(positions, rank(group, [queries[position] for position in positions]), strict=True))
    return [rankings[position] for position in range(len(queries))]


class ItemWeightScorer(Scorer):
    """Base class of models that score an item by the sum of its weights from the items in the profile."""

    sums_history: ClassVar[bool] = True

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._rank(query, history) for query in queries]

    def scores_of_users(self, history: History) -> Callable[[int], UserScores]:
        # No closure, because workers get this function by pickle.
        return partial(_scores_of_column, HistoryBlocks.of(history, self.n_items), self.weights_by_item())

    def moments_of_users(self, history: History) -> Moments:
        # Sums of an item-weight model have no closed form of mean and deviation, so each user is scored.
        return users.measured_moments(lambda user: self.totals(*profile(Query(1, user), history)), len(history))

    @abstractmethod
    def _rank(self, query: Query, history: History) -> Ranking: ...

    @abstractmethod
    def totals(
        self,
        rows: NDArray[np.int32],
        values: NDArray[np.float64] | None,
        positions: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float64]:
        """Return the scores of all items, (n,): Σ value · weights[row] over `rows`, added in order in float64.

        `rows` are the item columns of a profile, and `values` their weights. None: all are 1. With `positions`, (n,),
        the score of column c is at positions[c].
        """

    @abstractmethod
    def weights_by_item(self) -> Callable[[int], NDArray[np.float32]]:
        """Return a function from an item column to the weight with which each item of a profile counts for it, (n,)."""


def _scores_of_column(
    blocks: HistoryBlocks, weights_towards: Callable[[int], NDArray[np.float32]], column: int
) -> UserScores:
    return UserScores(blocks.sums(weights_towards(column)))
