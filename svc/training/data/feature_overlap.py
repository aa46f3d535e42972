"""Feature values that ids have in common: tokens and words as they are, numbers by bins of about equal size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.data.features import FittedSide

N_BINS = 10


def shared_values(fitted: FittedSide, trained: NDArray[np.int64]) -> sparse.csr_matrix:
    """Return (ids, values) float64, 1 if an id has a value: a token, a word, or a bin of a number.

    Bins are tenths of the `trained` ids by rank. Equal numbers share the bin of their mean rank. A missing number
    counts as the mean, as it does for the model. The constant feature is no value.
    """
    blocks, start = [], 0
    for column in fitted.encoder.encoders:
        block = fitted.matrix[:, start : start + column.width]
        start += column.width
        if not column.width or column.kind == "vector":  # no two ids have the same vector
            continue
        blocks.append(_bins(block, trained) if column.kind == "numerical" else block != 0)
    if not blocks:
        return sparse.csr_matrix((fitted.matrix.shape[0], 0))
    return sparse.hstack(blocks, format="csr", dtype=np.float64)


def _bins(column: sparse.csr_matrix, trained: NDArray[np.int64]) -> sparse.csr_matrix:
    values = column.toarray().ravel()
    ordered = np.sort(values[trained])
    # Bins are cut by rank. With quantiles as their edges, a number that most ids have would share its bin with all
    # larger numbers.
    twice_rank = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    places = np.minimum(twice_rank * N_BINS // (2 * len(ordered)), N_BINS - 1)
    rows = np.arange(len(values))
    return sparse.csr_matrix((np.ones(len(values)), (rows, places)), shape=(len(values), N_BINS))
