"""Embed users and items outside the training data into the factor space of a trained model.

irspack minimizes the iALS objective (`IALSTrainer.hpp`; Rendle et al., "Revisiting the Performance of iALS on Item
Recommendation Benchmarks", arXiv:2110.14037) plus a feature prior. For one user, with all item vectors fixed, it is

    L(x) = Σ_s c_s (x·z_s − 1)² + α₀ Σ_i (x·v_i)² + r ‖x − Wᵀf‖² ,    r = reg · (α₀ n + s)^ν

irspack's ORIGINAL loss differs only in the weight of the target. Setting the gradient to zero gives, for both losses,

    (α₀ VᵀV + r I + Σ_s c_s z_s z_sᵀ) x = r Wᵀf + Σ_s target_weight · z_s

A disliked item is one more z, whose confidence is the weight of the dislike and whose target is 0. It adds to the left
side only, and the number of seeds, s, does not count it.

| symbol | shape | meaning |
|---|---|---|
| x | (K,) | the vector to compute, of a user or an item |
| V, n | (n, K) | the n trained vectors of the other side: items for a user, users for an item |
| z_s, c_s | (S, K), (S,) | vectors of the S seeds (the items of the user's history), and their confidences |
| s | | in r: the number of seeds, S |
| f, W | (F,), (F, K) | encoded features of the user or item, and their learned weights |
| Q, Λ | (K, K), (K,) | eigenvectors and eigenvalues of α₀ VᵀV |

Without seeds, x = Gᵀf with G = r₀ W (α₀VᵀV + r₀I)⁻¹ and r₀ = r(0), so one product with a map that is computed once is
enough. With seeds, the equations are solved in the basis Q, where the left side is a diagonal matrix plus a matrix of
rank S (Woodbury).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.columns.feature_values import Encoded
from svc.model.explain import explained_places
from svc.model.recommenders.base import Side

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Against = tuple[Matrix, Matrix]
"""Item vectors of dislikes, (B, D, K), and their weights: (B, D), or (D,) for a single user."""
DENSE_FEATURES = 64
"""Longest feature vectors that are multiplied by the weights as dense arrays. For longer ones, only the non-zero
entries are multiplied.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class LeastSquares(Stored):
    """The exact minimizer of the iALS objective for users and items that training did not see.

    `user_mean`, (K,) float32, is the prior of users without features. None: zero. `confidence` is the confidence of an
    interaction of value 1, and `target_weight` the weight of its target. `user_weights` and `item_weights`, (F, K)
    float32, are W of either side. None: the model has no features of that side.
    """

    STORED_NAMES: ClassVar[dict[str, str]] = {"target_weight": "pull"}

    alpha0: float
    reg: float
    nu: float
    confidence: float
    target_weight: float
    n_users: int
    n_items: int
    user_weights: NDArray[np.float32] | None
    item_weights: NDArray[np.float32] | None
    user_mean: NDArray[np.float32] | None = None
    _basis: NDArray[np.float64] = field(init=False)
    _eigenvalues: NDArray[np.float64] = field(init=False)
    _mean: NDArray[np.float64] | None = field(init=False, default=None)
    _prior: NDArray[np.float64] | None = field(init=False, default=None)
    _user_map: NDArray[np.float64] | None = field(init=False, default=None)
    _item_map: NDArray[np.float64] | None = field(init=False, default=None)

    def ready(self, item_gram: NDArray[np.float64], user_gram: NDArray[np.float64] | None) -> None:
        """Compute the basis Q and the maps G from VᵀV of the item vectors, (K, K), and UᵀU of the user vectors, (K, K).

        `user_gram` is required if the model has `item_weights`.
        """
        # Solves for five seeds exactly in 18 µs. irspack's five steps of conjugate gradients take 10 to 20 ms (41,000
        # items, 128 components).
        eigenvalues, self._basis = np.linalg.eigh(self.alpha0 * item_gram)
        # The matrix has no negative eigenvalue. Rounding may give one just below 0.
        self._eigenvalues = np.maximum(eigenvalues, 0.0)
        if self.user_mean is not None:
            self._mean = self.user_mean.astype(np.float64) @ self._basis
        if self.user_weights is not None:
            self._prior = self.user_weights.astype(np.float64) @ self._basis
            self._user_map = self._map(self.user_weights, self._basis, self._eigenvalues, self.n_items)
        if self.item_weights is not None and user_gram is not None:
            eigenvalues, basis = np.linalg.eigh(self.alpha0 * user_gram)
            self._item_map = self._map(self.item_weights, basis, np.maximum(eigenvalues, 0.0), self.n_users)

    def feature_dim(self, side: Side) -> int | None:
        weights = self.user_weights if side == "user" else self.item_weights
        return None if weights is None else len(weights)

    def regularization(self, seeds: int, others: int) -> float:
        """Return r. `seeds` is s, and `others` is n, the number of items for a user or of users for an item."""
        return self.reg * math.pow(self.alpha0 * others + seeds, self.nu)

    def users_from_features(self, described: Sequence[Encoded]) -> Matrix:
        """Return the vectors x, (B, K), of B users from their encoded features alone."""
        return _map_rows(described, self._user_map)

    def items_from_features(self, described: Sequence[Encoded]) -> Matrix:
        """Return the vectors x, (B, K), of B items from their encoded features alone."""
        if not described:  # also of a model without item features
            return np.empty((0, len(self._basis)))
        return _map_rows(described, self._item_map)

    def prior_of(self, vector: NDArray[np.float32], seeds: Matrix, weights: Vector | None) -> Vector:
        """Return the prior of a training user in the basis Q, (K,).

        It follows from the equations above, with x = `vector`, (K,), and the seeds from which it was solved, (S, K),
        with their `weights`. Rounding of x is hardly amplified, because `users_from_seeds` solves almost the same
        equations again.
        """
        r, z, x = self.regularization(len(seeds), self.n_items), seeds @ self._basis, vector @ self._basis
        confidence = np.full(len(seeds), self.confidence) if weights is None else self._confidences(weights)
        targets = confidence + (self.target_weight - self.confidence)
        prior: Vector = ((self._eigenvalues + r) * x + (confidence * (z @ x) - targets) @ z) / r
        return prior

    def users_from_seeds(
        self,
        seeds: Matrix,
        features: Matrix | None,
        weights: Matrix | None = None,
        dislikes: Against | None = None,
        *,
        priors: Matrix | None = None,
    ) -> Matrix:
        """Return the vectors x, (B, K), of B users from the item vectors of their seeds, (B, S, K).

        `features`, (B, F), give the prior, or `priors`, (B, K), are those of `prior_of`. None: the prior is
        `user_mean`. `weights`, (B, S), are the values of the
        interactions. None: all are 1.

        Every product is a stack of small matrix products of one fixed shape, so that a user's result has the same bits
        in any batch.
        """
        r = self.regularization(seeds.shape[1], self.n_items)
        diagonal = self._eigenvalues + r
        z = np.matmul(seeds, self._basis)
        if weights is None:
            confidence, b = None, self.target_weight * z.sum(axis=1)
        else:
            confidence = self._confidences(weights)
            targets = confidence + (self.target_weight - self.confidence)
            b = np.matmul(targets[:, np.newaxis], z)[:, 0]
        if features is not None:
            priors = _map_rows([Encoded.of(vector) for vector in features], self._prior)
        if priors is not None:
            b += r * priors
        elif self._mean is not None:
            b += r * self._mean
        if dislikes is not None:
            if confidence is None:
                confidence = np.full(seeds.shape[:2], self.confidence)
            # After `b`, to which dislikes add nothing, and without changing r, which counts the seeds alone.
            z = np.concatenate([z, np.matmul(dislikes[0], self._basis)], axis=1)
            confidence = np.concatenate([confidence, dislikes[1]], axis=1)
        solution = self._solve(diagonal, z, b, confidence)
        return np.asarray(np.matmul(solution[:, np.newaxis], self._basis.T)[:, 0], dtype=np.float64)

    def addends(
        self,
        items: Matrix,
        seeds: Matrix,
        weights: Vector | None,
        described: Sequence[Encoded],
        features: Encoded | None,
        *,
        dislikes: Against | None = None,
    ) -> tuple[Matrix, Matrix | None, Matrix | None]:
        """Return the contribution of each part of a history to the scores of `items`, (m, K).

        The parts are the seeds, (s, K), with their `weights`, (s,), the items in `described`, which training did not
        see, and the features of the user. Returns the contributions of the seeds, (m, s), of the item features in
        `described`, (m, p), and of the user features, (m, q). The columns of features follow `explained_places`.

        The vector is x = A⁻¹b, where A is the left side above. So the score v·x is the sum of v·A⁻¹ times the addends
        of b. Dislikes change only A, and have no contribution.
        """
        unseen = self.items_from_features(described)
        count = len(seeds) + len(unseen)
        values = np.ones(count) if weights is None else np.concatenate([weights, np.ones(len(unseen))])
        confidence = self._confidences(values) if weights is not None else np.full(count, self.confidence)
        targets = confidence + (self.target_weight - self.confidence)
        r = self.regularization(count, self.n_items)
        z = np.concatenate([seeds, unseen]) @ self._basis
        # Solved for the items instead of the user: one system with a right side for each item gives all addends.
        left = np.diag(self._eigenvalues + r) + (z.T * confidence) @ z
        if dislikes is not None:
            disliked = dislikes[0] @ self._basis
            left += (disliked.T * dislikes[1]) @ disliked
        solved = np.linalg.solve(left, (items @ self._basis).T).T
        of_seeds = (solved @ z.T) * targets
        of_described = None
        if described and self._item_map is not None:
            places = explained_places(described)
            maps = solved @ (self._item_map[places] @ self._basis).T
            of_described = maps * (targets[len(seeds) :] @ np.array([item.dense()[places] for item in described]))
        of_features = None
        if features is not None and self._prior is not None:
            places = explained_places([features])
            of_features = (solved @ self._prior[places].T) * (r * features.dense()[places])
        return of_seeds[:, : len(seeds)], of_described, of_features

    def _confidences(self, weights: Matrix) -> Matrix:
        """Return the confidences c of interactions with these values.

        The confidence is log(1 + value/epsilon), where epsilon follows from the confidence of the value 1. If that
        confidence is 1, the confidence is the value itself.
        """
        if self.confidence == 1.0:
            return weights
        # `expm1` and `log1p` keep the digits of small confidences.
        return np.log1p(weights * math.expm1(self.confidence))

    def _solve(self, diagonal: Vector, z: Matrix, b: Matrix, confidence: Matrix | None) -> Matrix:
        """Solve (diag + Σ c zᵀz) y = b for each user of a batch.

        The system to solve has the size S if there are fewer seeds than components K, else the size K. `confidence`,
        (B, S), is c of each seed. None: all are the confidence of an interaction of value 1.
        """
        _, seeds, components = z.shape
        transposed = z.swapaxes(1, 2)
        if seeds >= components:
            if confidence is None:
                whole = np.diag(diagonal) + self.confidence * np.matmul(transposed, z)
            else:
                whole = np.diag(diagonal) + np.matmul(transposed * confidence[:, np.newaxis], z)
            return np.asarray(np.linalg.solve(whole, b[..., np.newaxis])[..., 0], dtype=np.float64)
        if not seeds:
            return b / diagonal
        scaled = z / diagonal
        inner = np.matmul(scaled, transposed)
        # A view, so that the addition changes the diagonals of all matrices in place.
        diagonals = inner.reshape(len(inner), -1)[:, :: seeds + 1]
        diagonals += 1.0 / (self.confidence if confidence is None else confidence)
        projected = np.matmul(scaled, b[..., np.newaxis])
        # A single seed needs a division of 0.3 µs. LAPACK takes 4 for a system of one number.
        weights = projected / inner if seeds == 1 else np.linalg.solve(inner, projected)
        return np.asarray(b / diagonal - np.matmul(weights.swapaxes(1, 2), scaled)[:, 0], dtype=np.float64)

    def _map(
        self, weights: NDArray[np.float32], basis: NDArray[np.float64], eigenvalues: Vector, others: int
    ) -> NDArray[np.float64]:
        """Return the map G from features to vectors, (F, K)."""
        r0 = self.regularization(0, others)
        return (weights.astype(np.float64) @ basis) * (r0 / (eigenvalues + r0)) @ basis.T


def _map_rows(features: Sequence[Encoded], matrix: Matrix | None) -> Matrix:
    """Multiply encoded features by `matrix`, (F, K), row by row, so that each row has the same bits in any batch."""
    if matrix is None:
        raise ValueError("the model has no map for features of this side")
    if len(matrix) <= DENSE_FEATURES:
        dense = np.array([vector.dense() for vector in features])
        return np.asarray(np.matmul(dense[:, np.newaxis], matrix)[:, 0], dtype=np.float64)
    rows = np.empty((len(features), matrix.shape[1]))
    for row, vector in zip(rows, features, strict=True):
        # Row by row, because one product for all rows would have other bits in another batch.
        np.dot(vector.values, matrix[vector.places], out=row)
    return rows
