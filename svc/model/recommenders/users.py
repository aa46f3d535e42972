"""Rank the training users for one item.

The ranking is exact. If the scores of all users are computed only approximately, every user who may be among the best
within the error is scored again exactly.

| order | rank by |
|---|---|
| score | the model's score of the item for the user |
| lift | (score - mean) / deviation, over the user's scores of all items; 0 if these are all equal |
| balanced | half of the lift, plus half of (score - mean) / deviation over the item's scores for all users |
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from svc.cores import one_blas_thread
from svc.model.history import History
from svc.model.ranking.item_sets import best, reaching, spans
from svc.model.ranking.query import Ranking
from svc.names import Order
from svc.stable_sort import stable_order


class ByColumn(NamedTuple):
    """An index of the entries of a compressed sparse row matrix by column.

    Entries are numbered in the order of the rows. `entries`, (nnz,) uint32, has the numbers of the entries of column c,
    ascending, at `starts[c]:starts[c + 1]`.
    """

    starts: NDArray[np.intp]
    entries: NDArray[np.uint32]

    @classmethod
    def of(cls, columns: NDArray[np.int32], n_columns: int) -> ByColumn:
        """Build the index. The entries are sorted in parts that fit into the processor's cache."""
        starts = np.append(0, np.bincount(columns, minlength=n_columns).cumsum())
        # uint32 takes half of the memory of intp.
        entries, following = np.empty(len(columns), dtype=np.uint32), starts[:-1].copy()
        step = max(SORTED_AT_ONCE, n_columns)
        for first in range(0, len(columns), step):
            part = columns[first : first + step]
            order, counts = stable_order(part), np.bincount(part, minlength=n_columns)
            places = (following - counts.cumsum() + counts)[part[order]] + np.arange(len(part))
            entries[places] = order + first
            following += counts
        return cls(starts, entries)

    def rows(self, column: int, offsets: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
        """Return the rows that have an entry in the column, and the numbers of these entries.

        `offsets`, (n_rows + 1,), are the row offsets of the matrix.
        """
        entries = self.entries[self.starts[column] : self.starts[column + 1]]
        return np.searchsorted(offsets, entries, side="right") - 1, entries


Values = NDArray[np.float64]
Rows = NDArray[np.intp]
Moments = tuple[Values, Values]
"""Mean and deviation of each user's scores of all items, (n_users,)."""
NOISE = 1e-12
"""A variance below this share of the second moment is rounding noise and counts as 0."""
SORTED_AT_ONCE: Final = 1 << 17
"""The entries that are sorted together by column, unless there are more columns."""
CELLS_AT_ONCE: Final = 1 << 15
"""The most cells of a block of several histories, so that their weights fit into the processor's cache."""
FEW_CELLS: Final = 32
"""If at most one cell in this many has an item of weight other than 0, only these cells are read."""


class HistoryBlocks(NamedTuple):
    """The histories of all users in blocks, so that summing over each history takes a nanosecond an entry.

    `users` are the rows of all users by descending length of their histories. A block covers some of these users in
    turn, and is an array, (longest history, users), that has the k-th item of each history in row k. Shorter histories
    are padded with the number of items. Users without history are in no block.

    - `columns` and `weights` are the cells of all blocks, concatenated. Weights None: all are 1.
    - `firsts`, (blocks + 1, 2), has the first cell of each block, and the position in `users` of its first user. The
      last row has the number of cells and the number of users in blocks.
    - `cells` is the index of the cells by item.
    """

    users: Rows
    firsts: NDArray[np.intp]
    columns: NDArray[np.int32]
    cells: ByColumn
    weights: Values | None

    @classmethod
    def of(cls, history: History, n_items: int) -> HistoryBlocks:
        """Return the blocks of `history` with its weights."""
        lengths = np.diff(history.offsets)
        # Users of like length stand together, so that blocks have little padding.
        users = np.argsort(-lengths, kind="stable")
        cells, firsts, start = [np.empty(0, dtype=np.intp)], [(0, 0)], 0
        while start < len(users) and (longest := int(lengths[users[start]])):
            some = users[start : start + max(1, CELLS_AT_ONCE // longest)]
            places = np.arange(longest)[:, np.newaxis]
            cells.append(np.where(places < lengths[some], history.offsets[some] + places, -1).ravel())
            start += len(some)
            firsts.append((firsts[-1][0] + len(cells[-1]), start))
        entries = np.concatenate(cells)
        columns = np.where(entries < 0, np.int32(n_items), history.columns[entries])
        of_all = history.weigh_all()
        weights = None if of_all is None else of_all[entries]
        return cls(users, np.array(firsts), columns, ByColumn.of(columns, n_items + 1), weights)

    def sums(self, weights: NDArray[np.float32]) -> Values:
        """Return Σ value · weights[item] over the history of each user, (n_users,), added in the history's order.

        `weights`, (n,), are the weights with which each item counts in the score of one item.
        """
        items = weights.nonzero()[0]
        starts = self.cells.starts[items]
        lengths = self.cells.starts[items + 1] - starts
        if int(lengths.sum()) * FEW_CELLS > len(self.columns):
            return self._sums_of_all(weights)
        cells = np.sort(self.cells.entries[spans(starts, lengths)]).astype(np.intp)
        blocks = self.firsts[:, 0].searchsorted(cells, side="right") - 1
        first_cells, first_users = self.firsts[blocks].T
        places = first_users + (cells - first_cells) % np.diff(self.firsts[:, 1])[blocks]
        addends = weights[self.columns[cells]]
        # `bincount` adds in float64 and in the order of the cells. So each history is summed in its own order.
        return np.bincount(
            self.users[places], addends if self.weights is None else addends * self.weights[cells], len(self.users)
        ).astype(np.float64, copy=False)

    def _sums_of_all(self, weights: NDArray[np.float32]) -> Values:
        # One more than there are items: padding has the number of items as its column, and adds 0.
        table = np.zeros(len(weights) + 1)
        table[:-1] = weights
        largest = int(np.diff(self.firsts[:, 0]).max(initial=0))
        places, addends = np.empty(largest, dtype=np.intp), np.empty(largest)
        sums = np.zeros(len(self.users))
        for (cell, user), (end, last) in pairwise(self.firsts.tolist()):
            own = addends[: end - cell]
            places[: end - cell] = self.columns[cell:end]
            table.take(places[: end - cell], out=own, mode="clip")  # a tenth faster than with the mode "raise"
            if self.weights is not None:
                own *= self.weights[cell:end]
            by_row = own.reshape(-1, last - user)
            # numpy sums several columns row after row. It would sum a single column pairwise, with other bits.
            sums[user:last] = by_row.sum(axis=0, initial=0.0) if last - user > 1 else by_row.cumsum(axis=0)[-1]
        by_user = np.empty_like(sums)
        by_user[self.users] = sums
        return by_user


def moments_of(means: Values, variances: Values) -> Moments:
    """Return means and standard deviations from means and variances. Rounding noise becomes 0."""
    # Otherwise a user whose scores are all equal gets a huge lift from rounding.
    is_noise = variances <= NOISE * (variances + means * means)
    return means, np.sqrt(np.where(is_noise, 0.0, variances))


def measured_moments(scores_of: Callable[[int], Values], n_users: int) -> Moments:
    """Compute the moments of each user from the scores of all items, (n,), that `scores_of` returns for a row."""
    measured = np.empty((2, n_users))
    with one_blas_thread():  # waiting for a second thread takes longer than a small product
        # Takes 10 s for 100,000 users of a neighbour model or a blend, so trainings store the moments.
        for user in range(n_users):
            scores = scores_of(user)
            measured[:, user] = scores.mean(), scores.var()
    return moments_of(measured[0], measured[1])


class UserScores(NamedTuple):
    """Scores of one item for all users, (n_users,), with an error of at most `errors` each.

    `exact` returns the exact scores for some rows of users. It is None if all scores are exact.
    """

    values: Values
    errors: Values | float = 0.0
    exact: Callable[[Rows], Values] | None = None


@runtime_checkable
class UserScorer(Protocol):
    """A scorer that can rank users for an item, because its scores differ between users."""

    def scores_of_users(self, history: History) -> Callable[[int], UserScores]:
        """Return a function that maps an item column to the scores of the item for all training users."""

    def moments_of_users(self, history: History) -> Moments:
        """Return the moments of the training users' scores.

        Takes as long as scoring all items for each user, unless the scores have a closed form.
        """


def best_users(scores: UserScores, order: Order, moments: Moments, is_wanted: NDArray[np.bool_], limit: int) -> Ranking:
    """Return the rows of the `limit` best users by `order`, ties by ascending row, and their values in that order.

    Only users with a flag in `is_wanted`, (n_users,), are ranked. The order `score` does not read the `moments`.
    """
    values = scores.values
    slope: Values | float = 1.0
    offset: Values | float = 0.0
    if order != "score":
        means, deviations = moments
        slope = _inverse(deviations)
        offset = -means * slope
    if order == "balanced" and len(values):
        inverse = float(_inverse(np.array([values.std()]))[0])
        slope, offset = (slope + inverse) / 2, (offset - float(values.mean()) * inverse) / 2
    look = values * slope
    look += offset
    look[~is_wanted] = -np.inf
    if scores.exact is None:
        chosen = best(look, limit)
        return Ranking(chosen.astype(np.int32), look[chosen])
    errors = scores.errors * slope
    least = look - errors
    first = reaching(least, limit)
    if not len(first):
        return Ranking(np.empty(0, dtype=np.int32), np.empty(0))
    # A user is scored again if the score may reach what the best users reach at least.
    rows = np.flatnonzero(look + errors >= least[first].min())
    slopes, offsets = (np.broadcast_to(part, values.shape)[rows] for part in (slope, offset))
    exact = scores.exact(rows) * slopes + offsets
    chosen = best(exact, limit)
    return Ranking(rows[chosen].astype(np.int32), exact[chosen])


def _inverse(deviations: Values) -> Values:
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
