"""Older interactions count less: a weight halves with each half-life of its age (see `times.reference_time`).

The half-life is a parameter of a trial like any other, under the name HALF_LIFE. Recommenders never see it. They
only see the decayed matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from svc.recipe.time_schema import seconds
from svc.training.data.weights import in_single_precision

HALF_LIFE = "half_life"
POPULARITY_HALF_LIFE = "popularity_half_life"
"""Half-life of popularity inside a blend, which is applied in addition to the half-life of the matrix."""
NO_DECAY = "none"
_LEAST = 2.0**-20
"""Lower bound of the decay factor: an old interaction still says that the user has seen the item."""


def decay_matrix(
    matrix: sparse.csr_matrix, times: sparse.csr_matrix | None, params: Mapping[str, Any]
) -> sparse.csr_matrix:
    """Return `matrix` with the decay of the half-life in `params`, or `matrix` itself without a half-life.

    `times` has the entries of `matrix`, in nanoseconds from the reference time. Interactions at or after the reference
    time keep their full weight.
    """
    half_life_s = seconds(params.get(HALF_LIFE, NO_DECAY))
    if half_life_s is None or times is None or not matrix.nnz:
        return matrix
    factors = np.maximum(np.exp2(np.minimum(times.data, 0) / 1e9 / half_life_s), _LEAST)
    data = in_single_precision(matrix.data * factors, lambda _: "a weight after training.time_decay")
    return sparse.csr_matrix((data, matrix.indices, matrix.indptr), shape=matrix.shape)
