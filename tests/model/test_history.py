"""Rows of the training matrix."""

from __future__ import annotations

import numpy as np

from svc.model.history import History


def test_a_row_holds_its_items_and_values() -> None:
    """Rows are views; without values every one counts as 1."""
    offsets = np.array([0, 2, 2, 3], dtype=np.int64)
    columns = np.array([1, 4, 0], dtype=np.int32)
    values = np.array([2, 3, 1], dtype=np.float32)
    counted, plain = History(offsets, columns, values), History(offsets, columns)
    assert len(counted) == 3
    assert [counted.items(user).tolist() for user in range(3)] == [[1, 4], [], [0]]
    assert counted.values(0).tolist() == [2, 3]
    assert plain.values(0) is None
