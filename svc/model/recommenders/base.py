"""The interface of all scorers, and helpers that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranking.item_sets import ItemSet, best, mask
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders import users
from svc.model.recommenders.users import HistoryBlocks, Moments, UserScores, UserSummary

Side = Literal["user", "item"]
Group = TypeVar("Group")
Profile = tuple[NDArray[np.int32], NDArray[np.float64] | None]
"""Item columns, (h,), and their weights, (h,). None: all weigh 1."""
FEW_SHARE = 8
"""Up to one allowed item in this many, only allowed items are scored. Above it, all are scored and others masked."""
SPARE_TIMES = 2
"""Over-fetch factor: rank this many times the number of items that is expected to contain `limit` allowed ones."""


class Scorer(Protocol):
    """A recommender that ranks items for queries. All methods but `ready` may run in several threads at once."""

    kind: ClassVar[str]
    """Names the family in logs and descriptions."""
    reads_values: ClassVar[bool]
    """Whether scores depend on the values of the history, and not only on its items."""
    explains_by_profile: ClassVar[bool]
    """Whether an explanation for a known user solves for its vector again from its history.

    The scores then come from that vector.
    """

    sums_history: ClassVar[bool]
    """Whether ranking for a known user adds up its history, and so takes longer for a longer one."""
    reads_dislikes: ClassVar[bool]
    """Whether dislikes change scores. Other scorers only leave the disliked items out."""

    @property
    def n_items(self) -> int: ...

    def ready(self) -> None:
        """Compute the data that is derived from the stored arrays. Called once, before the first ranking."""

    def feature_dim(self, side: Side) -> int | None:
        """Return the length of the feature vectors of a side, or None if such features cannot be scored."""

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        """Return one ranking per query, in order. The bits of a ranking depend on its query alone."""

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions | None:
        """Return the addends of the scores of some items, or None if scores are no sums over a profile."""

    def similar(self, items: NDArray[np.int32]) -> Callable[[int], NDArray[np.float64]]:
        """Return a function from a place among `items`, (m,), to the cosines of its item with all of them, (m,)."""

    def parts(self) -> dict[str, int]:
        """Return the bytes of the stored arrays by name."""


def excluded_columns(query: Query, history: History) -> NDArray[np.int32]:
    """Return the item columns that must not come back. Some may be repeated."""
    excluded = query.exclude
    if not query.include_seen:
        if len(query.seeds):
            excluded = np.concatenate([excluded, query.seeds])
        if query.user >= 0:
            seen = history.items(query.user)
            excluded = np.concatenate([excluded, seen]) if len(excluded) else seen
    return excluded


def best_items(scores: NDArray[np.float64], query: Query, history: History) -> NDArray[np.int32]:
    """Return the columns of the best items that may come back. Changes `scores`, (n,), one for each item."""
    scores[excluded_columns(query, history)] = -np.inf
    allowed = query.allowed
    if query.unordered and query.limit >= len(scores):
        items = np.flatnonzero(scores > -np.inf).astype(np.int32)
        return items if allowed is None else items[allowed.contains(items)]
    if allowed is None:
        return best(scores, query.limit).astype(np.int32)
    if is_few(allowed):
        columns = allowed.columns()
        return columns[best(scores[columns], query.limit)]
    asked = SPARE_TIMES * query.limit * allowed.n_items // allowed.count
    ranked = best(scores, asked).astype(np.int32)
    shown = ranked[allowed.contains(ranked)][: query.limit]
    if len(shown) == query.limit or len(ranked) < asked:
        return shown
    mask(scores, allowed.flags())
    return best(scores, query.limit).astype(np.int32)


def is_few(allowed: ItemSet) -> bool:
    """Return whether scoring the allowed items one by one is cheaper than scoring all and masking the others."""
    return allowed.count * FEW_SHARE <= allowed.n_items


def cosines(vectors: NDArray[Any]) -> Callable[[int], NDArray[np.float64]]:
    """Return a function from a row of `vectors`, (m, K), to its cosines with all rows. Those of a zero row are 0.

    Products are computed row by row, so that equal rows have equal cosines at any place.
    """
    norms = np.sqrt(np.vecdot(vectors, vectors).astype(np.float64))
    scales = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    return lambda row: np.vecdot(vectors, vectors[row]) * (scales * scales[row])


def profile(query: Query, history: History, recency: float | None = None) -> Profile:
    """Return the profile of the query, dislikes last. `recency` is that of a part of a blend, None that of all."""
    if query.user < 0:
        own = query if recency is None else query.at_recency(recency)
        return own.concatenate_signed()
    return history.items(query.user), history.weigh(query.user, recency)


def rank_in_groups(
    queries: Sequence[Query],
    group_of: Callable[[Query], Group],
    rank: Callable[[Group, Sequence[Query]], list[Ranking]],
) -> list[Ranking]:
    """Return one ranking per query, in order. `rank` gets all queries of a group at once."""
    groups: dict[Group, list[int]] = {}
    for position, query in enumerate(queries):
        groups.setdefault(group_of(query), []).append(position)
    rankings: dict[int, Ranking] = {}
    for group, positions in groups.items():
        rankings.update(zip(positions, rank(group, [queries[position] for position in positions]), strict=True))
    return [rankings[position] for position in range(len(queries))]


class ItemWeightScorer(Stored, ABC):
    """A model that scores by the sum of the weights of the items in the profile."""

    reads_values: ClassVar[bool] = True
    explains_by_profile: ClassVar[bool] = False
    sums_history: ClassVar[bool] = True
    reads_dislikes: ClassVar[bool] = True

    def feature_dim(self, side: Side) -> int | None:  # noqa: ARG002
        return None

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._rank(query, history) for query in queries]

    def scores_of_users(self, column: int, summary: UserSummary) -> UserScores:
        return UserScores(summary.histories[0].sums(self.weights_towards(column)))

    def moments_of_users(self, history: History) -> Moments:
        return users.measured_moments(lambda user: self.totals(*profile(Query(1, user), history)), len(history))

    def summary_of_users(self, history: History) -> UserSummary:
        return UserSummary(histories=HistoryBlocks.of(history))

    @abstractmethod
    def _rank(self, query: Query, history: History) -> Ranking: ...

    @abstractmethod
    def totals(
        self,
        rows: NDArray[np.int32],
        values: NDArray[np.float64] | None,
        positions: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float64]:
        """Return Σ value · weights[row] in float64, (n,), row after row.

        With `positions`, (n,), the sum of column c is at positions[c].
        """

    @abstractmethod
    def weights_towards(self, column: int) -> NDArray[np.float32]:
        """Return the weight of each item in the score of one, (n,)."""
