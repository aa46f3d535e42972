"""The items of each training user: the seen items to exclude, and the profile for item-weight models."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from svc.model.recency import factors, positions_of
from svc.model.stored import Stored

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
        decay = factors(positions, recency)
        return decay if values is None else values * decay

    def weigh_all(self, recency: float | None = None) -> NDArray[np.float64] | None:
        """Return the weights of the items of all rows, (nnz,), as in `weigh`."""
        values = None if self.weights is None else self.weights.astype(np.float64)
        recency = self.recency if recency is None else recency
        if not recency:
            return values
        times = np.arange(len(self.columns)) if self.ties is None else (~self.ties).cumsum()
        last = np.repeat(self.offsets[1:] - 1, np.diff(self.offsets))
        decay = factors(times[last] - times, recency)
        return decay if values is None else values * decay
