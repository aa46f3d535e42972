"""Rank the training users for one item, exactly: approximate scores of all, then exact ones of those within the error.

| symbol | meaning |
|---|---|
| score | the model's score of the item for a user, as `rank` has it |
| lift | (score - mean) / deviation, both of the user's scores of all items; 0 where all are equal |
| balanced | half of the lift, and half of (score - mean) / deviation over the users of this item |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.ranking.query import Order, Ranking
from svc.model.ranking.topk import best, reaching

Values = NDArray[np.float64]
Rows = NDArray[np.intp]
NOISE = 1e-12
"""A variance below this share of the second moment is rounding."""
FEW: Final = 4
"""If at least one item in this many has a weight, all entries are read, else only entries of items with a weight."""


class UserSummary(NamedTuple):
    """Mean and deviation of each user's scores of all items, (n_users,), and the largest norm of a user vector."""

    means: Values
    deviations: Values
    longest: float = 0.0

    @classmethod
    def of(cls, means: Values, variances: Values, longest: float = 0.0) -> UserSummary:
        is_noise = variances <= NOISE * (variances + means * means)
        return cls(means, np.sqrt(np.where(is_noise, 0.0, variances)), longest)

    @classmethod
    def measured(cls, scores_of: Callable[[int], Values], n_users: int, longest: float = 0.0) -> UserSummary:
        """Return the summary from the scores of all items, (n,), of one user after the other."""
        moments = np.empty((2, n_users))
        for user in range(n_users):
            scores = scores_of(user)
            moments[:, user] = scores.mean(), scores.var()
        return cls.of(moments[0], moments[1], longest)


class UserScores(NamedTuple):
    """Scores of one item for all users, (n_users,), each off by at most `errors`. `exact` scores some rows exactly."""

    values: Values
    errors: Values | float
    exact: Callable[[Rows], Values]


@runtime_checkable
class UserScorer(Protocol):
    """A scorer that can rank users for an item: its scores differ between users."""

    def scores_of_users(self, column: int, history: History, longest: float) -> UserScores:
        """Return the scores of one item for all training users. `longest` is that of the summary."""

    def summary_of_users(self, history: History) -> UserSummary:
        """Return mean and deviation of the scores of each training user."""


def best_users(
    scores: UserScores, order: Order, summary: UserSummary, is_wanted: NDArray[np.bool_], limit: int
) -> Ranking:
    """Return the best users among those of `is_wanted`, (n_users,), as rows, ties by lower row."""
    values = scores.values
    slope, offset = np.ones(len(values)), np.zeros(len(values))
    if order != "score":
        slope = _inverse(summary.deviations)
        offset = -summary.means * slope
    if order == "balanced" and len(values):
        inverse = float(_inverse(np.array([values.std()]))[0])
        slope, offset = (slope + inverse) / 2, (offset - float(values.mean()) * inverse) / 2
    errors = scores.errors * slope
    look = np.where(is_wanted, values * slope + offset, -np.inf)
    least = look - errors
    first = reaching(least, limit)
    if not len(first):
        return Ranking(np.empty(0, dtype=np.int32), np.empty(0))
    rows = np.flatnonzero(look + errors >= least[first].min())
    exact = scores.exact(rows) * slope[rows] + offset[rows]
    chosen = best(exact, limit)
    return Ranking(rows[chosen].astype(np.int32), exact[chosen])


def sums_of_users(weights: NDArray[np.float32], history: History, recency: float | None = None) -> UserScores:
    """Return Σ value · weights[item] over the history of each user, exact. `weights`, (n,), are those towards one item.

    If few items have a weight, only their entries are read.
    """
    entries: slice | NDArray[np.intp] = slice(None)
    starts: NDArray[Any] = history.offsets
    if np.count_nonzero(weights) * FEW < len(weights):
        entries = np.flatnonzero((weights != 0).take(history.columns))
        starts = np.searchsorted(entries, history.offsets)
    addends, values = weights.take(history.columns[entries]), history.weighed_at(entries, starts, recency)
    has_some = np.flatnonzero(starts[1:] > starts[:-1])
    sums = np.zeros(len(history))
    counted = addends if values is None else addends * values
    sums[has_some] = np.add.reduceat(counted, starts[has_some], dtype=np.float64)
    return UserScores(sums, 0.0, sums.__getitem__)


def _inverse(deviations: Values) -> Values:
    return np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
