"""Find the entries of one column of a compressed sparse matrix without reading the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


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
