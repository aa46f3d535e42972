"""irspack's DenseSLIMRecommender and EDLAERecommender, trained without holding the interpreter lock.

irspack inverts the item matrix with scipy, which holds the lock throughout: with ten thousand items, no signal is
handled and no time limit is checked for half a minute. numpy releases the lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders import DenseSLIMRecommender, EDLAERecommender
from numpy.typing import NDArray
from scipy import sparse

_ROWS_AT_ONCE = 256


class UnlockedDenseSLIMRecommender(DenseSLIMRecommender, register_class=False):
    """As irspack's: the weights of Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", arXiv:1905.03375."""

    def _learn(self) -> None:
        gram = _gram(self.X_train_all)
        np.fill_diagonal(gram, gram.diagonal() + np.float32(self.reg))
        self._W = _weights(gram)


class SparseEDLAERecommender(EDLAERecommender, register_class=False):
    """irspack's EDLAE: Steck, "Autoencoders that don't overfit towards the Identity", NeurIPS 2020.

    Of the dense weights the `top_k` largest by amount of each source item are kept, so that a model of many items
    stays small; what is evaluated is what is kept.
    """

    def __init__(self, matrix: Any, *, top_k: int | None = None, **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.top_k = top_k

    def _learn(self) -> None:
        gram = _gram(self.X_train_all)
        diagonal = gram.diagonal()
        dropped = np.float32(self.dropout_p / (1.0 - self.dropout_p))
        np.fill_diagonal(gram, diagonal + dropped * diagonal + np.float32(self.reg))
        self._W = _strongest(_weights(gram), self.top_k or len(gram))


def _gram(matrix: Any) -> NDArray[np.float32]:
    """XᵀX, (items, items)."""
    x = matrix.astype(np.float32)
    gram: NDArray[np.float32] = (x.T @ x).toarray()
    return gram


def _weights(system: NDArray[np.float32]) -> NDArray[np.float32]:
    """With P the inverse of `system` the weight of item i for item j is −P_ij / P_jj, and 0 for i = j."""
    weights = np.linalg.inv(system)
    weights /= -weights.diagonal()
    np.fill_diagonal(weights, 0.0)
    return weights


def _strongest(weights: NDArray[np.float32], top_k: int) -> sparse.csr_matrix:
    """The `top_k` entries of each row that are largest by amount, without zeros."""
    blocks = []
    for start in range(0, len(weights), _ROWS_AT_ONCE):
        block = weights[start : start + _ROWS_AT_ONCE].copy()
        amounts = np.abs(block)
        if top_k < block.shape[1]:
            bound = np.partition(amounts, -top_k, axis=1)[:, -top_k, np.newaxis]
            block[amounts < bound] = 0.0
        blocks.append(sparse.csr_matrix(block))
    return sparse.vstack(blocks, format="csr")
