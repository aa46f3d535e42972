"""The index finds the same entries and rows as reading all columns."""

from __future__ import annotations

import numpy as np

from svc.model.recommenders.by_column import ByColumn


def test_entries_and_rows_of_each_column() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 5, 40)
    offsets = np.append(0, lengths.cumsum())
    columns = rng.integers(0, 12, offsets[-1]).astype(np.int32)
    columns[columns == 7] = 8
    index = ByColumn.of(columns, 13)
    for column in range(13):
        rows, entries = index.rows(column, offsets)
        assert entries.tolist() == np.flatnonzero(columns == column).tolist()
        assert rows.tolist() == np.repeat(np.arange(40), lengths)[entries].tolist()
    assert ByColumn.of(columns[:0], 2).rows(1, np.zeros(1))[0].tolist() == []
