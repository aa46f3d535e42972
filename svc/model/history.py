"""The items of each training user, and how much they count by their recency.

They are the seen items to exclude, and the profile for item-weight models. The item at position k counts exp(-δk) times
its weight, where δ is the recency of the model. Positions are dense ranks of the items' latest times: 0 for the latest
time, 1 for the next earlier distinct time, and so on.

Scorers see only the resulting weights. Item-weight models multiply the rows that they add by them, least squares takes
them as confidences, and a projection multiplies the item vectors by them.

The weights of Ludewig and Jannach, "Evaluation of Session-based Recommendation Algorithms" (2018) and "Empirical
Analysis of Session-based Recommendation Algorithms" (2021), and of Choi et al., "Session-aware Linear Item-Item Models
for Session-based Recommendation" (WWW 2021), decay with the position in the same way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.ranking.item_sets import firsts

Weights = NDArray[np.float64]
LEAST = 1e-30
"""Lower bound of a factor: the confidence of an interaction must stay above zero and fit into float32."""


def decay_factors(positions: NDArray[Any], recency: float) -> Weights:
    """Return the factor of each position, exp(-recency · position), (h,)."""
    return np.maximum(np.exp(-recency * positions), LEAST)


def positions_of(times: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions, (h,), of items with these `times`, (h,), which never fall."""
    positions = np.zeros(len(times), dtype=np.intp)
    np.cumsum(times[:0:-1] != times[-2::-1], out=positions[-2::-1])
    return positions


def decay_weights(weights: Weights | None, positions: NDArray[Any], recency: float) -> Weights | None:
    """Return the `weights`, (h,), decayed by the `positions`, (h,), of their items. None: all are 1."""
    if not recency:
        return weights
    decay = decay_factors(positions, recency)
    return decay if weights is None else weights * decay


class Ordered(NamedTuple):
    """Distinct item columns, (h,), oldest first, with their weights, (h,), and positions, (h,).

    `weights` is None if all are 1.
    """

    columns: NDArray[np.int32]
    weights: Weights | None
    positions: NDArray[np.intp]


def order_history(columns: NDArray[np.int32], weights: Weights | None, times: NDArray[Any]) -> Ordered:
    """Return each item of `columns`, (h,), once, oldest first. The `times`, (h,), never fall. `weights` None: all are
    1.

    A repeated item takes its latest time, and its weights add up.
    """
    order = columns.argsort(kind="stable")
    is_first = firsts(columns[order])
    if not is_first.all():
        latest = order[np.append(is_first[1:], True)]
        total = np.bincount(is_first.cumsum() - 1, None if weights is None else weights[order])
        by_time = latest.argsort()
        weights = total[by_time].astype(np.float64, copy=False)
        columns, times = columns[latest[by_time]], times[latest[by_time]]
    return Ordered(columns, weights, positions_of(times))


Offsets = NDArray[np.int32] | NDArray[np.int64]


class History(Stored):
    """Rows of the training matrix in compressed form.

    `offsets` is (n_users + 1,) and `columns` (nnz,) int32. `weights`, (nnz,) float32, is None if all stored values are
    1 or no scorer reads them.

    Columns rise within a row unless it `is_ordered`. Then items stand oldest first, and `ties`, (nnz,) bool, marks each
    item of the same time as the item before it (None: no ties). Rows are ordered in three cases:

    - `recency` above 0 weighs the items by their age.
    - `recency_by_part` lets each part of a blend weigh them by its own recency.
    - `keeps_order` keeps the order but weighs all items alike.

    With `recency_beside`, the cold start weighs the items by its own recency.
    """

    recency: float = 0.0
    recency_by_part: bool = False
    keeps_order: bool = False
    recency_beside: bool = False
    ties: NDArray[np.bool_] | None = None

    def __init__(
        self,
        offsets: Offsets,
        columns: NDArray[np.int32],
        weights: NDArray[np.float32] | None = None,
        *,
        recency: float = 0.0,
        ties: NDArray[np.bool_] | None = None,
        recency_by_part: bool = False,
        keeps_order: bool = False,
        recency_beside: bool = False,
    ) -> None:
        self.offsets = offsets
        self.columns = columns
        self.weights = weights
        self.recency = recency
        self.recency_by_part = recency_by_part
        self.keeps_order = keeps_order
        self.recency_beside = recency_beside
        self.ties = ties

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def is_ordered(self) -> bool:
        """Return whether the items of a row stand oldest first."""
        return self.recency > 0 or self.recency_by_part or self.keeps_order

    def items(self, user: int) -> NDArray[np.int32]:
        """Return the item columns of a row, (h,), as a view."""
        return self.columns[self.offsets[user] : self.offsets[user + 1]]

    def values(self, user: int) -> NDArray[np.float32] | None:
        """Return the values of the entries of `items(user)`, (h,), as a view. None: all are 1."""
        if self.weights is None:
            return None
        return self.weights[self.offsets[user] : self.offsets[user + 1]]

    def times(self, user: int) -> NDArray[np.intp]:
        """Return the time index of each of `items(user)`, (h,): it rises with time, and is equal for items of the same
        time.
        """
        if self.ties is None:
            return np.arange(self.offsets[user + 1] - self.offsets[user])
        return (~self.ties[self.offsets[user] : self.offsets[user + 1]]).cumsum()

    def weigh(self, user: int, recency: float | None = None) -> NDArray[np.float64] | None:
        """Return the weights of `items(user)`, (h,): their values, decayed by recency. None: all are 1.

        `recency` is that of one part of a blend. None: the recency of all histories.
        """
        values = self.values(user)
        recency = self.recency if recency is None else recency
        if not recency:
            return None if values is None else values.astype(np.float64)
        if self.ties is None:
            positions = np.arange(self.offsets[user + 1] - self.offsets[user] - 1, -1, -1)
        else:
            positions = positions_of(self.times(user))
        decay = decay_factors(positions, recency)
        return decay if values is None else values * decay

    def weigh_all(self, recency: float | None = None) -> NDArray[np.float64] | None:
        """Return the weights of the items of all rows, (nnz,), as in `weigh`."""
        values = None if self.weights is None else self.weights.astype(np.float64)
        recency = self.recency if recency is None else recency
        if not recency:
            return values
        times = np.arange(len(self.columns)) if self.ties is None else (~self.ties).cumsum()
        last = np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))
        decay = decay_factors(times[last] - times, recency)
        return decay if values is None else values * decay
