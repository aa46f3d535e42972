"""RP3beta as published: alpha is the exponent of transition probabilities, in irspack that of the raw values.

Christoffel et al., "Blockbusters and Wallflowers", RecSys 2015, and Paudel et al., "Updatable, Accurate, Diverse, and
Scalable Recommendations for Interactive Applications", TiiS 2016, raise each step's probability to alpha. irspack
raises the interactions themselves, which changes nothing if all are 1.

irspack also keeps the strongest entries of each target item, so that a rare source item may have none left. If users
have many items, this is far better, because each target has the same number of sources, however popular it is. So the
search tries both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders import RP3betaRecommender
from irspack.recommenders._knn import CosineSimilarityComputer
from scipy import sparse


class TransitionRP3betaRecommender(RP3betaRecommender, register_class=False):
    """Item weights by a random walk: i for j is Σ_u p(u|i)^alpha · p(j|u)^alpha / popularity(j)^beta.

    The `top_k` largest weights of each source item i are kept, or with `strongest_of="TARGET"` of each target item j.
    With `normalize_weight` the weights of each i sum to 1, so that all items of a history count equally.
    """

    def __init__(self, matrix: Any, *, strongest_of: str = "SOURCE", **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.strongest_of = strongest_of

    def _learn(self) -> None:
        interactions = self.X_train_all.astype(np.float64).tocsr()
        to_items = _rows_to_one(interactions)
        to_users = _rows_to_one(interactions.T.tocsr())
        to_items.data **= self.alpha
        to_users.data **= self.alpha
        popularity = np.maximum(np.asarray(interactions.sum(axis=0)).ravel(), 1.0)
        penalized = (to_items @ sparse.diags(popularity**-self.beta)).tocsr()
        top_k = interactions.shape[1] if self.top_k is None else self.top_k
        weights = (
            self._strongest(penalized.T.tocsr(), to_users, top_k)
            if self.strongest_of == "SOURCE"
            else self._strongest(to_users, penalized.T.tocsr(), top_k).T.tocsr()
        )
        self._W = _rows_to_one(weights) if self.normalize_weight else weights

    def _strongest(self, columns: Any, rows: Any, top_k: int) -> Any:
        """Return the `top_k` largest entries of each row of rows · columnsᵀ. Both matrices are (items, users)."""
        # Without normalization and shrinkage, irspack's cosine similarity is this product, computed by threads.
        return CosineSimilarityComputer(columns, 0.0, False, self.n_threads).compute_similarity(rows, top_k)


def _rows_to_one(matrix: Any) -> Any:
    """Return a copy whose rows sum to 1. Empty rows stay empty."""
    normalized = matrix.tocsr(copy=True)
    sums = np.asarray(normalized.sum(axis=1)).ravel()
    normalized.data /= np.repeat(np.where(sums > 0, sums, 1.0), np.diff(normalized.indptr))
    return normalized
