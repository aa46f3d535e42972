"""Rank the training users for one item, exactly: if scores of all are approximate, then by exact ones within the error.

| symbol | meaning |
|---|---|
| score | the model's score of the item for a user, as `rank` has it |
| lift | (score - mean) / deviation, both of the user's scores of all items; 0 where all are equal |
| balanced | half of the lift, and half of (score - mean) / deviation over the users of this item |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.ranking.item_sets import best, reaching
from svc.model.ranking.query import Order, Ranking


class ByColumn(NamedTuple):
    """The numbers of all `entries`, (nnz,) uint32, column by column, rising. Those of column c begin at `starts[c]`."""

    starts: NDArray[np.intp]
    entries: NDArray[np.uint32]

    @classmethod
    def of(cls, columns: NDArray[np.int32], n_columns: int) -> ByColumn:
        """Return the index. Sorts pairs of column and entry: an eighth of the time of a stable `argsort`."""
        pairs = (columns.astype(np.int64) << 32) | np.arange(len(columns))
        pairs.sort()
        counts = np.bincount(columns, minlength=n_columns)
        return cls(np.append(0, counts.cumsum()), pairs.astype(np.uint32))  # the lower half is the entry

    def rows(self, column: int, offsets: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Return the rows that have the column, and their entries. `offsets`, (n_rows + 1,), are those of the rows."""
        entries = self.entries[self.starts[column] : self.starts[column + 1]]
        return np.searchsorted(offsets, entries, side="right") - 1, entries


Values = NDArray[np.float64]
Rows = NDArray[np.intp]
Moments = tuple[Values, Values]
"""Mean and deviation of each user's scores of all items, (n_users,)."""
NOISE = 1e-12
"""A variance below this share of the second moment is rounding."""
CELLS_AT_ONCE: Final = 1 << 15
"""Entries of histories that are summed at once. Their weights stay in the processor's cache."""
FILLER: Final = np.iinfo(np.int32).max


class HistoryBlocks(NamedTuple):
    """The histories of all users in blocks, so that a sum over each history takes a nanosecond an entry.

    Users stand by falling length of their histories. A block, (longest, users), has the k-th items of its users in row
    k. Shorter histories end with FILLER. `shapes` are those of the blocks, `columns` and `weights` their cells. Weights
    are None if all are 1.
    """

    users: Rows
    shapes: tuple[tuple[int, int], ...]
    columns: NDArray[np.int32]
    weights: Values | None

    @classmethod
    def of(cls, history: History, recencies: Sequence[float | None] = (None,)) -> tuple[HistoryBlocks, ...]:
        """Return the blocks of `history` for each recency. They differ only in their weights.

        None means the recency of `history` itself.
        """
        if not recencies:
            return ()
        lengths = np.diff(history.offsets)
        users = np.argsort(-lengths, kind="stable")
        cells, shapes, start = [np.empty(0, dtype=np.intp)], [], 0
        while start < len(users) and (longest := int(lengths[users[start]])):
            some = users[start : start + max(1, CELLS_AT_ONCE // longest)]
            places = np.arange(longest)[:, np.newaxis]
            cells.append(np.where(places < lengths[some], history.offsets[some] + places, -1).ravel())
            shapes.append((longest, len(some)))
            start += len(some)
        entries = np.concatenate(cells)
        columns = np.where(entries < 0, FILLER, history.columns[entries])
        weights: dict[float | None, Values | None] = {}
        for recency in set(recencies):
            of_all = history.weigh_all(recency)
            weights[recency] = None if of_all is None else of_all[entries]
        return tuple(cls(users, tuple(shapes), columns, weights[recency]) for recency in recencies)

    def sums(self, weights: NDArray[np.float32]) -> Values:
        """Return Σ value · weights[item] over the history of each user, added in its order.

        `weights`, (n,), are those of each item towards one.
        """
        table = np.zeros(len(weights) + 1)
        table[:-1] = weights
        largest = max((longest * users for longest, users in self.shapes), default=0)
        places, addends = np.empty(largest, dtype=np.intp), np.empty(largest)
        sums, cell, user = np.zeros(len(self.users)), 0, 0
        for longest, users in self.shapes:
            size = longest * users
            part = slice(cell, cell + size)
            own = addends[:size]
            places[:size] = self.columns[part]
            table.take(places[:size], out=own, mode="clip")  # reads the last place, 0, for FILLER
            if self.weights is not None:
                own *= self.weights[part]
            by_row = own.reshape(longest, users)
            # numpy sums a single column in pairs, and several row after row
            total = by_row.sum(axis=0, initial=0.0) if users > 1 else by_row.cumsum(axis=0)[-1]
            sums[user : user + users] = total
            cell, user = part.stop, user + users
        by_user = np.empty_like(sums)
        by_user[self.users] = sums
        return by_user


class UserSummary(NamedTuple):
    """The data to score one item for all users.

    `longest` is the largest norm of a user vector. `histories` are those of each item-weight part.
    """

    longest: float = 0.0
    histories: tuple[HistoryBlocks, ...] = ()


def moments_of(means: Values, variances: Values) -> Moments:
    """Return the means and the deviations."""
    is_noise = variances <= NOISE * (variances + means * means)
    return means, np.sqrt(np.where(is_noise, 0.0, variances))


def measured_moments(scores_of: Callable[[int], Values], n_users: int) -> Moments:
    """Return the moments of the scores of all items, (n,), of one user after the other."""
    from threadpoolctl import threadpool_limits

    measured = np.empty((2, n_users))
    with threadpool_limits(limits=1, user_api="blas"):  # waiting for a second thread takes longer than a small product
        # Takes 10 s for 100,000 users of a neighbour model or a blend, so trainings store the moments.
        for user in range(n_users):
            scores = scores_of(user)
            measured[:, user] = scores.mean(), scores.var()
    return moments_of(measured[0], measured[1])


class UserScores(NamedTuple):
    """Scores of one item for all users, (n_users,), each off by at most `errors`.

    `exact` scores some rows exactly. It is None if all scores are exact.
    """

    values: Values
    errors: Values | float = 0.0
    exact: Callable[[Rows], Values] | None = None


@runtime_checkable
class UserScorer(Protocol):
    """A scorer that can rank users for an item: its scores differ between users."""

    def scores_of_users(self, column: int, summary: UserSummary) -> UserScores:
        """Return the scores of one item for all training users."""

    def moments_of_users(self, history: History) -> Moments:
        """Return the moments of the training users' scores.

        Takes as long as scoring all items for each user, unless the scores have a closed form.
        """

    def summary_of_users(self, history: History) -> UserSummary:
        """Return the summary of the training users."""


def best_users(scores: UserScores, order: Order, moments: Moments, is_wanted: NDArray[np.bool_], limit: int) -> Ranking:
    """Return the best users among those of `is_wanted`, (n_users,), as rows, ties by lower row."""
    values = scores.values
    slope, offset = np.broadcast_to(1.0, values.shape), np.broadcast_to(0.0, values.shape)
    if order != "score":
        means, deviations = moments
        slope = _inverse(deviations)
        offset = -means * slope
    if order == "balanced" and len(values):
        inverse = float(_inverse(np.array([values.std()]))[0])
        slope, offset = (slope + inverse) / 2, (offset - float(values.mean()) * inverse) / 2
    look = np.where(is_wanted, values * slope + offset, -np.inf)
    if scores.exact is None:
        chosen = best(look, limit)
        return Ranking(chosen.astype(np.int32), look[chosen])
    errors = scores.errors * slope
    least = look - errors
    first = reaching(least, limit)
    if not len(first):
        return Ranking(np.empty(0, dtype=np.int32), np.empty(0))
    rows = np.flatnonzero(look + errors >= least[first].min())
    exact = scores.exact(rows) * slope[rows] + offset[rows]
    chosen = best(exact, limit)
    return Ranking(rows[chosen].astype(np.int32), exact[chosen])


def _inverse(deviations: Values) -> Values:
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
