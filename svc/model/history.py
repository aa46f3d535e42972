"""The items of each training user, and weights for them by their recency.

The history of a user tells which items the user has seen, and is the profile that item-weight models score by.

An item at position k counts exp(-δk) times its weight, where δ is the recency of the model, so that 0 weighs all items
alike. Positions are dense ranks of the items' latest times: 0 for the latest time, 1 for the next earlier distinct
time, and so on.

Scorers see only the resulting weights. Item-weight models multiply the rows that they add by the weights. Least squares
takes the weights as confidences. A projection multiplies the item vectors by the weights.

Exponential decay with the position follows Choi et al., "Session-aware Linear Item-Item Models for Session-based
Recommendation" (WWW 2021). Ludewig and Jannach, "Evaluation of Session-based Recommendation Algorithms" (2018) and
"Empirical Analysis of Session-based Recommendation Algorithms" (2021), also weigh earlier items less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.ranking.item_sets import firsts

Weights = NDArray[np.float64]
LEAST = 1e-30
"""Lower bound of a decay factor, because the confidence of an interaction must be above zero in float32."""


def decay_factors(positions: NDArray[Any], recency: float) -> Weights:
    """Return the decay factor of each position, exp(-recency · position) but at least LEAST, (h,)."""
    return np.maximum(np.exp(-recency * positions), LEAST)


def positions_of(times: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions, (h,), of items with the ascending `times`, (h,)."""
    positions = np.zeros(len(times), dtype=np.intp)
    # Counts the changes of time from the last item back to the first.
    np.cumsum(times[:0:-1] != times[-2::-1], out=positions[-2::-1])
    return positions


def decay_weights(weights: Weights | None, positions: NDArray[Any], recency: float) -> Weights | None:
    """Return the `weights`, (h,), times the decay factors of the `positions`, (h,). Weights None: all are 1."""
    if not recency:
        return weights
    decay = decay_factors(positions, recency)
    return decay if weights is None else weights * decay


def order_history(
    columns: NDArray[np.int32], weights: Sequence[Weights | None], times: NDArray[Any]
) -> tuple[NDArray[np.int32], Sequence[Weights | None], NDArray[np.intp]]:
    """Return the distinct items of `columns`, (h,), oldest first, with each of their `weights`, and their positions.

    The interactions have ascending `times`, (h,). A repeated item gets its latest time and the sum of its weights.
    Weights, (h,), are None if all are 1.
    """
    order = columns.argsort(kind="stable")
    is_first = firsts(columns[order])
    if not is_first.all():
        # The sort is stable, so the last of a run of equal columns has the latest time.
        latest = order[np.append(is_first[1:], True)]
        by_time, numbers = latest.argsort(), is_first.cumsum() - 1
        totals = [np.bincount(numbers, None if own is None else own[order]) for own in weights]
        weights = [total[by_time].astype(np.float64, copy=False) for total in totals]
        columns, times = columns[latest[by_time]], times[latest[by_time]]
    return columns, weights, positions_of(times)


Offsets = NDArray[np.int32] | NDArray[np.int64]


@dataclass(eq=False, repr=False)
class History(Stored):
    """The training matrix in compressed sparse rows: the item columns of each user.

    `offsets` is (n_users + 1,) and `columns` (nnz,) int32. `weights`, (nnz,) float32, are the values of the
    interactions. None: all values are 1, or no scorer reads them.

    Columns are ascending within a row, unless histories are ordered (`is_ordered`). Then the items of a row stand
    oldest first, and `ties`, (nnz,) bool, marks each item with the same time as the item before it. None: no ties.
    Histories are ordered if `recency` is above 0, which weighs the items by their age, and with `keeps_order`, which
    weighs all items alike.

    `is_seen`, (nnz,) bool, marks the items that are left out of the user's answers. None: all items are.

    With `recency_beside`, the cold-start part of the model weighs the items by a recency of its own.

    `weight_scale` is the scale of `weights` (see `svc.model.weight_scale`), or None if they are as in the table.

    `others` are pairs of further weights of the same items and their scale, for parts of the model that learned from
    these. The cold-start part reads those of `weighing_beside` (see `at_weighing`).
    """

    ALWAYS_STORED: ClassVar[frozenset[str]] = frozenset({"weights"})

    offsets: Offsets
    columns: NDArray[np.int32]
    weights: NDArray[np.float32] | None = None
    _: KW_ONLY
    recency: float = 0.0
    keeps_order: bool = False
    recency_beside: bool = False
    ties: NDArray[np.bool_] | None = None
    is_seen: NDArray[np.bool_] | None = None
    weight_scale: tuple[str, float] | None = None
    others: tuple[tuple[NDArray[np.float32] | None, tuple[str, float] | None], ...] = ()
    weighing_beside: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def is_ordered(self) -> bool:
        """Return whether the items of a row stand oldest first."""
        return self.recency > 0 or self.keeps_order

    def at_weighing(self, weighing: int) -> History:
        """Return the histories with the weights of number `weighing`: 0 for `weights`, 1 for the first of `others`."""
        # Cached, because each request asks again and the histories of a weighing never change.
        return self._others[weighing - 1] if weighing else self

    @cached_property
    def _others(self) -> list[History]:
        return [replace(self, weights=weights, weight_scale=scale, others=()) for weights, scale in self.others]

    def items(self, user: int) -> NDArray[np.int32]:
        """Return the item columns of a user, (h,), as a view."""
        return self.columns[self.offsets[user] : self.offsets[user + 1]]

    def seen_items(self, user: int) -> NDArray[np.int32]:
        """Return the columns among `items(user)` that are left out of the user's answers."""
        if self.is_seen is None:
            return self.items(user)
        return self.items(user)[self.is_seen[self.offsets[user] : self.offsets[user + 1]]]

    def of_seen(self) -> History:
        """Return the histories with only the items that are left out of answers, without weights."""
        if self.is_seen is None:
            return self
        # Running counts at the old offsets are the new offsets.
        return History(np.append(0, self.is_seen.cumsum())[self.offsets], self.columns[self.is_seen])

    def values(self, user: int) -> NDArray[np.float32] | None:
        """Return the values of the interactions with `items(user)`, (h,), as a view. None: all are 1."""
        if self.weights is None:
            return None
        return self.weights[self.offsets[user] : self.offsets[user + 1]]

    def times(self, user: int) -> NDArray[np.intp]:
        """Return a number for the time of each of `items(user)`, (h,), ascending, and equal for equal times."""
        if self.ties is None:
            return np.arange(self.offsets[user + 1] - self.offsets[user])
        return (~self.ties[self.offsets[user] : self.offsets[user + 1]]).cumsum()

    def weigh(self, user: int) -> NDArray[np.float64] | None:
        """Return the weights of `items(user)`, (h,): their values, decayed by recency. None: all are 1."""
        values = self.values(user)
        exact = None if values is None else values.astype(np.float64)
        if not self.recency:
            return exact
        if self.ties is None:
            # Without ties, positions are the places counted from the end. No times need to be compared.
            positions = np.arange(self.offsets[user + 1] - self.offsets[user] - 1, -1, -1)
        else:
            positions = positions_of(self.times(user))
        return decay_weights(exact, positions, self.recency)

    def weigh_all(self) -> NDArray[np.float64] | None:
        """Return the weights of the items of all rows, (nnz,), as in `weigh`."""
        values = None if self.weights is None else self.weights.astype(np.float64)
        if not self.recency:
            return values
        # These times rise over all rows together. Only their differences within a row are used.
        times = np.arange(len(self.columns)) if self.ties is None else (~self.ties).cumsum()
        last = np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))
        # Counted from the last item of the same user, so that the shared numbering cancels.
        return decay_weights(values, times[last] - times, self.recency)
