"""irspack's DenseSLIMRecommender, trained without holding the interpreter lock.

irspack inverts the item matrix with scipy, which keeps the lock throughout: for ten thousand items half a minute in
which no signal is heard, no time limit is looked at and nothing else makes progress. numpy lets the lock go.
"""

from __future__ import annotations

import numpy as np
from irspack.recommenders import DenseSLIMRecommender


class UnlockedDenseSLIMRecommender(DenseSLIMRecommender, register_class=False):
    """As irspack's: the weights of Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", arXiv:1905.03375.

    With P = (XᵀX + reg·I)⁻¹ the weight of item i for item j is −P_ij / P_jj, and 0 for i = j.
    """

    def _learn(self) -> None:
        x = self.X_train_all.astype(np.float32)
        weights = (x.T @ x).toarray()
        np.fill_diagonal(weights, weights.diagonal() + np.float32(self.reg))
        weights = np.linalg.inv(weights)
        weights /= -weights.diagonal()
        np.fill_diagonal(weights, 0.0)
        self._W = weights
