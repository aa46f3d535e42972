"""Positions and weights of many histories at once."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from svc.training.data.recency import in_order, positions_of, weigh_rows


def times(rng: np.random.Generator) -> sparse.csr_matrix:
    """Return random times, many of them equal, with some empty rows."""
    dense = rng.integers(1, 6, (20, 12)) * (rng.random((20, 12)) < 0.4)
    dense[[0, 7, 19]] = 0
    return sparse.csr_matrix(dense.astype(np.int64))


def test_positions_count_within_each_row() -> None:
    """They equal those of the definition, row by row."""
    latest = times(np.random.default_rng(1))
    positions = positions_of(latest)
    order, ties = in_order(positions)
    for row in range(latest.shape[0]):
        part = slice(latest.indptr[row], latest.indptr[row + 1])
        own = latest.data[part]
        moments = sorted(set(own.tolist()), reverse=True)
        assert positions.data[part].tolist() == [moments.index(time) for time in own.tolist()]
        oldest_first = latest.data[order[part]]
        assert oldest_first.tolist() == sorted(own.tolist())
        assert ties[part].tolist() == [
            place > 0 and oldest_first[place - 1] == time for place, time in enumerate(oldest_first)
        ]


def test_rows_are_weighted_alike_alone_and_together() -> None:
    """Each entry is multiplied by exp(−δ · position)."""
    latest = times(np.random.default_rng(2))
    matrix = latest.astype(np.float32)
    positions = positions_of(latest)
    found = weigh_rows(matrix, positions, 0.3)
    np.testing.assert_allclose(found.data, matrix.data * np.exp(-0.3 * positions.data))
    rows = np.array([2, 5, 11])
    assert (weigh_rows(matrix, positions, 0.3, rows) != found[rows]).nnz == 0
