"""Position and weight of each item in the histories that a search trains on.

`svc.model.history` defines positions and weights, and weighs the history of one request. This module weighs the
histories of many users at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.history import decay_factors
from svc.training.data.stable_sort import stable_order


def positions_of(times: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return (users, items) int32 with the entries of `times`: each pair's position in its row, by time."""
    lengths = np.diff(times.indptr)
    rows = np.repeat(np.arange(times.shape[0]), lengths)
    order = stable_order([rows, -times.data])
    latest_first = times.data[order]
    is_earlier = np.zeros(len(order), dtype=np.bool_)
    is_earlier[1:] = (latest_first[1:] != latest_first[:-1]) & (rows[1:] == rows[:-1])
    steps = is_earlier.cumsum(dtype=np.int32)
    filled = lengths > 0
    positions = np.empty(len(order), dtype=np.int32)
    positions[order] = steps - np.repeat(steps[times.indptr[:-1][filled]], lengths[filled])
    return sparse.csr_matrix((positions, times.indices, times.indptr), shape=times.shape)


def weigh_rows(
    matrix: sparse.csr_matrix, positions: sparse.csr_matrix, recency: float, rows: NDArray[np.int64] | None = None
) -> sparse.csr_matrix:
    """Return `rows` of `matrix`, (users, items), or all, with older entries weighed less, in float64.

    `positions` has the entries of `matrix`.
    """
    chosen, places = (matrix, positions) if rows is None else (matrix[rows], positions[rows])
    data = chosen.data * decay_factors(places.data, recency)
    return sparse.csr_matrix((data, chosen.indices, chosen.indptr), shape=chosen.shape)


def in_order(positions: sparse.csr_matrix) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (nnz,) positions of the entries of each row, oldest first, and a mask of ties.

    The mask is True for an entry that has the time of the one before.
    """
    rows = np.repeat(np.arange(positions.shape[0]), np.diff(positions.indptr))
    order = stable_order([rows, -positions.data])
    oldest_first = positions.data[order]
    ties = np.zeros(len(order), dtype=np.bool_)
    ties[1:] = (oldest_first[1:] == oldest_first[:-1]) & (rows[1:] == rows[:-1])
    return order, ties
