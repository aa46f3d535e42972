"""Shape (d): a wide factor model whose norms hardly differ, made from interactions without training.

Training 680 components takes minutes, and on generated interactions it gives peaked norms. So the vectors are made:
items that the same users chose point into similar directions, all are about equally long, and a user's vector is the
direction of the items chosen.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sps

from svc.model.coldstart import LeastSquares
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer

NORM_DEVIATION = 0.05


def wide_factors(matrix: sps.csr_matrix, components: int) -> IALSScorer:
    """User and item vectors of so many components for the users and items of `matrix`."""
    rng = np.random.default_rng(0)
    n_users, n_items = matrix.shape
    own = rng.standard_normal((n_items, components), dtype=np.float32)
    shared = matrix.T @ _directions(matrix @ own)
    items = _directions(_directions(own) + _directions(shared))
    items *= rng.normal(1, NORM_DEVIATION, (n_items, 1))
    least_squares = LeastSquares(
        alpha0=0.012,
        reg=0.012,
        nu=1.0,
        confidence=1.0,
        target_weight=1.0,
        n_users=n_users,
        n_items=n_items,
        user_weights=None,
        item_weights=None,
    )
    users = _directions(matrix @ items).astype(np.float32)
    return IALSScorer(users, FactorIndex.build(items.astype(np.float32)), least_squares)


def _directions(vectors: np.ndarray) -> np.ndarray:
    """The rows scaled to length 1; zero ones stay."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
