"""irspack's TruncatedSVDRecommender over an interaction matrix whose rows and columns are weighted first.

Without weights, the first components of a long-tailed matrix describe its most popular items and most active users.
The weighting "DEGREES" divides each entry by the square roots of the number of its user's items and of its item's
users. This gives all users and items equal weight. It is the symmetric normalization of Shen et al., "How Powerful is
Graph Convolution for Recommendation?", CIKM 2021. Scores are scaled back, so that popular items keep their higher
scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders import TruncatedSVDRecommender
from numpy.typing import NDArray
from scipy import sparse
from sklearn.decomposition import TruncatedSVD

_K1, _B = 1.2, 0.75  # the usual defaults of Okapi BM25
_EXACT_FROM = 2
"""Train in double precision if more than 1/_EXACT_FROM of all components are kept. Such a model nearly reproduces the
interactions. The scores of unseen items are then not far above the rounding errors of single precision, which depend on
the items' popularity and would spoil the ranking. Otherwise single precision is used. It takes half the time, and
served models have it anyway.
"""

Vector = NDArray[np.float64]


class WeightedSVDRecommender(TruncatedSVDRecommender, register_class=False):
    """Truncated SVD that scores a history x, (items,), by (x · before) V Vᵀ · after.

    `before` and `after` are those of `_weights` by `weighting` ("NONE", "DEGREES" or "BM_25"). V, (items, K), has the
    right singular vectors of the weighted matrix. A score depends only on the history, so a known user and a new user
    with the same history get the same scores.
    """

    def __init__(self, matrix: Any, *, weighting: str = "NONE", **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.weighting = weighting
        self.history_scales_: Vector | None = None

    def _learn(self) -> None:
        interactions = self.X_train_all.astype(np.float64).tocsr()
        users, before, after = _weights(interactions, self.weighting)
        weighted = (sparse.diags(users) @ interactions @ sparse.diags(before)).tocsr()
        precision = np.float32 if _EXACT_FROM * self.n_components <= min(weighted.shape) else np.float64
        decomposer = TruncatedSVD(n_components=self.n_components, random_state=self.random_seed)
        self.decomposer_ = decomposer.fit(weighted.astype(precision))
        vectors = self.decomposer_.components_
        # The projection of the histories instead of sklearn's U·Σ, which differs by the weights of users.
        self.z_ = (interactions @ (vectors * before).T).astype(precision)
        self.decomposer_.components_ = (vectors * after).astype(precision)  # irspack scores by them
        self.history_scales_ = before / after

    def get_score_cold_user(self, X: Any) -> Any:  # noqa: N803 - irspack's name
        assert self.history_scales_ is not None, "scored before it was trained"
        return self.get_score_from_user_embedding(X @ (self.decomposer.components_ * self.history_scales_).T)


def _weights(interactions: Any, weighting: str) -> tuple[Vector, Vector, Vector]:
    """Return the factors by which the interaction matrix is scaled.

    They scale its rows before the SVD, (users,), its columns before the SVD, (items,), and the scores of the items
    after it, (items,).
    """
    n_users, n_items = interactions.shape
    # At least 1, so that a user or item without training interactions does not divide by 0.
    of_users = np.maximum(np.diff(interactions.indptr), 1).astype(np.float64)
    of_items = np.maximum(np.bincount(interactions.indices, minlength=n_items), 1).astype(np.float64)
    if weighting == "DEGREES":
        return of_users**-0.5, of_items**-0.5, of_items**0.5
    if weighting == "BM_25":
        rarity = np.log(n_users / of_items) + 1.0
        length = _K1 * (1.0 - _B + _B * of_users / of_users.mean())
        return (_K1 + 1.0) / (1.0 + length), rarity, 1.0 / rarity
    return np.ones(n_users), np.ones(n_items), np.ones(n_items)
