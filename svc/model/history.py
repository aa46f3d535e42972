"""The items of each training user: they are excluded as seen, and are the profile for models that sum item weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from svc.model.stored import Stored

Offsets = NDArray[np.int32] | NDArray[np.int64]


class History(Stored):
    """Rows of the training matrix in compressed form.

    `offsets` is (n_users + 1,), `columns` (nnz,) int32 and rising within a row, `weights` (nnz,) float32 or None where
    every stored value is 1 or no scorer reads values.
    """

    def __init__(
        self, offsets: Offsets, columns: NDArray[np.int32], weights: NDArray[np.float32] | None = None
    ) -> None:
        self.offsets = offsets
        self.columns = columns
        self.weights = weights

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def items(self, user: int) -> NDArray[np.int32]:
        """Item columns of a row, (h,), a view."""
        return self.columns[self.offsets[user] : self.offsets[user + 1]]

    def values(self, user: int) -> NDArray[np.float32] | None:
        """Values of the entries of `items(user)`, (h,), a view; None: all are 1."""
        if self.weights is None:
            return None
        return self.weights[self.offsets[user] : self.offsets[user + 1]]
