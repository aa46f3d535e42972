"""Where the user or item of a request stands among the factors of a trained model.

The iALS objective that irspack minimizes (`IALSTrainer.hpp`; Rendle et al., "Revisiting the Performance of iALS on
Item Recommendation Benchmarks", arXiv:2110.14037, plus a feature prior) is, for one user with the others fixed,

    L(x) = Σ_s c_s (x·z_s − 1)² + α₀ Σ_i (x·v_i)² + r ‖x − Wᵀf‖² ,    r = reg · (α₀ n + s)^ν

up to the weight of the target in the ORIGINAL loss, which `pull` holds. Setting its gradient to zero gives

    (α₀ VᵀV + r I + Σ_s c_s z_s z_sᵀ) x = r Wᵀf + Σ_s pull · z_s

| symbol | shape | meaning |
|---|---|---|
| V, n | (n, K) | vectors of the other side's trained rows: items for a user, users for an item |
| z_s, c | (S, K) | vectors of the S seeds, and the confidence of one |
| f, W | (F,), (F, K) | features and their learned weights |
| Q, Λ | (K, K), (K,) | eigenvectors and eigenvalues of α₀ VᵀV |

With no seeds x = Gᵀf with G = r₀ W (α₀VᵀV + r₀I)⁻¹, r₀ = r(0): one product with a map that is computed once. With
seeds, the solve is done in the basis Q, where all but a matrix of the seeds' size is diagonal (Woodbury).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from svc.model.recommenders.base import Side
from svc.model.stored import Stored

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
DENSE_FEATURES = 64
"""Up to this many places a feature vector is multiplied whole; above, only its places other than zero."""


class LeastSquares(Stored):
    """The exact minimizer of the iALS objective for users and items that training did not see.

    `confidence` and `pull` are those of an interaction of value 1. `user_weights`, (F, K) float32, and
    `item_weights` are W of either side, None where the model has no features there.
    """

    _basis: NDArray[np.float64]
    _spread: NDArray[np.float64]
    _prior: NDArray[np.float64] | None = None
    _user_map: NDArray[np.float64] | None = None
    _item_map: NDArray[np.float64] | None = None

    def __init__(
        self,
        *,
        alpha0: float,
        reg: float,
        nu: float,
        confidence: float,
        pull: float,
        n_users: int,
        n_items: int,
        user_weights: NDArray[np.float32] | None,
        item_weights: NDArray[np.float32] | None,
    ) -> None:
        self.alpha0 = alpha0
        self.reg = reg
        self.nu = nu
        self.confidence = confidence
        self.pull = pull
        self.n_users = n_users
        self.n_items = n_items
        self.user_weights = user_weights
        self.item_weights = item_weights

    def ready(self, item_gram: NDArray[np.float64], user_gram: NDArray[np.float64] | None) -> None:
        """Compute the basis and the maps. `user_gram`, UᵀU, is needed where the model has `item_weights`."""
        eigenvalues, self._basis = np.linalg.eigh(self.alpha0 * item_gram)
        self._spread = np.maximum(eigenvalues, 0.0)
        if self.user_weights is not None:
            self._prior = self.user_weights.astype(np.float64) @ self._basis
            self._user_map = self._map(self.user_weights, self._basis, self._spread, self.n_items)
        if self.item_weights is not None and user_gram is not None:
            eigenvalues, basis = np.linalg.eigh(self.alpha0 * user_gram)
            self._item_map = self._map(self.item_weights, basis, np.maximum(eigenvalues, 0.0), self.n_users)

    def feature_dim(self, side: Side) -> int | None:
        weights = self.user_weights if side == "user" else self.item_weights
        return None if weights is None else len(weights)

    def regularization(self, seeds: int, others: int) -> float:
        """r of a user with that many seeds among `others` items, or of an item among `others` users."""
        return self.reg * math.pow(self.alpha0 * others + seeds, self.nu)

    def users_from_features(self, features: Matrix) -> Matrix:
        """x of users of whom only features, (B, F), are known: (B, K)."""
        return _mapped(features, self._user_map)

    def items_from_features(self, features: Matrix) -> Matrix:
        """x of items of which only features, (B, F), are known: (B, K)."""
        return _mapped(features, self._item_map)

    def users_from_seeds(self, seeds: Matrix, features: Matrix | None) -> Matrix:
        """x, (B, K), of users with as many seeds each: item vectors, (B, S, K), and features, (B, F), as prior.

        All products are stacks of small ones, each of which has the same shape and so the same bits in any batch.
        """
        r = self.regularization(seeds.shape[1], self.n_items)
        diagonal = self._spread + r
        z = np.matmul(seeds, self._basis)
        b = self.pull * z.sum(axis=1)
        if features is not None:
            b += r * _mapped(features, self._prior)
        solution = self._solve(diagonal, z, b)
        return np.asarray(np.matmul(solution[:, np.newaxis], self._basis.T)[:, 0], dtype=np.float64)

    def _solve(self, diagonal: Vector, z: Matrix, b: Matrix) -> Matrix:
        """The solutions y of (diag + c zᵀz) y = b, through whichever of z zᵀ and zᵀz is smaller."""
        _, seeds, components = z.shape
        transposed = z.swapaxes(1, 2)
        if seeds >= components:
            whole = np.diag(diagonal) + self.confidence * np.matmul(transposed, z)
            return np.asarray(np.linalg.solve(whole, b[..., np.newaxis])[..., 0], dtype=np.float64)
        if not seeds:
            return b / diagonal
        scaled = z / diagonal
        inner = np.matmul(scaled, transposed) + np.eye(seeds) / self.confidence
        pulls = np.matmul(scaled, b[..., np.newaxis])
        weights = pulls / inner if seeds == 1 else np.linalg.solve(inner, pulls)
        return np.asarray(b / diagonal - np.matmul(weights.swapaxes(1, 2), scaled)[:, 0], dtype=np.float64)

    def _map(
        self, weights: NDArray[np.float32], basis: NDArray[np.float64], spread: Vector, others: int
    ) -> NDArray[np.float64]:
        """G, (F, K)."""
        r0 = self.regularization(0, others)
        return (weights.astype(np.float64) @ basis) * (r0 / (spread + r0)) @ basis.T


def _mapped(features: Matrix, matrix: Matrix | None) -> Matrix:
    """features · matrix, row by row so that the bits of a row do not depend on the others."""
    if matrix is None:
        raise ValueError("the model has no map for features of this side")
    if features.shape[1] <= DENSE_FEATURES:
        return np.asarray(np.matmul(features[:, np.newaxis], matrix)[:, 0], dtype=np.float64)
    rows = np.empty((len(features), matrix.shape[1]))
    for row, vector in zip(rows, features, strict=True):
        places = np.flatnonzero(vector)
        np.dot(vector[places], matrix[places], out=row)
    return rows
