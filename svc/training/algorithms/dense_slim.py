"""irspack's DenseSLIMRecommender and EDLAERecommender, trained without holding the interpreter lock.

irspack inverts the item matrix with scipy, which holds the lock throughout: with ten thousand items, no signal is
handled and no time limit is checked for half a minute. numpy releases the lock, but computes in double precision and
knows nothing of symmetry, which takes several times as long. So LAPACK's Cholesky routines are called directly.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from irspack.recommenders import DenseSLIMRecommender, EDLAERecommender
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cython_lapack

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
    """XᵀX, (items, items), by rows."""
    x = matrix.astype(np.float32)
    gram: NDArray[np.float32] = (x.T @ x).toarray(order="C")
    return gram


def _weights(system: NDArray[np.float32]) -> NDArray[np.float32]:
    """With P the inverse of `system` the weight of item i for item j is −P_ij / P_jj, and 0 for i = j.

    `system` is overwritten.
    """
    weights = _inverse(system)
    weights /= -weights.diagonal()
    np.fill_diagonal(weights, 0.0)
    return weights


def _inverse(system: NDArray[np.float32]) -> NDArray[np.float32]:
    """The inverse of a symmetric positive definite matrix, which lies by rows, in its place."""
    diagonal = system.diagonal().copy()
    if _lapack("spotrf", system) == 0 and _lapack("spotri", system) == 0:
        _mirror(system)
        return system
    # Singular in single precision. Below the diagonal the matrix is as it was.
    _mirror(system.T)
    np.fill_diagonal(system, diagonal)
    inverse: NDArray[np.float32] = np.linalg.inv(system)
    return inverse


def _lapack(name: str, matrix: NDArray[np.float32]) -> int:
    """Apply a routine that reads and writes the upper triangle; 0 if it succeeded. ctypes releases the lock."""
    capsule = ctypes.py_object(cython_lapack.__pyx_capi__[name])
    ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    signature = ctypes.c_char_p(ctypes.pythonapi.PyCapsule_GetName(capsule))
    address = ctypes.pythonapi.PyCapsule_GetPointer(capsule, signature)
    size, failed = ctypes.c_int(len(matrix)), ctypes.c_int()
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address)
    # The upper triangle of rows is the lower one of columns, which LAPACK speaks of.
    routine(b"L", ctypes.addressof(size), matrix.ctypes.data, ctypes.addressof(size), ctypes.addressof(failed))
    return failed.value


def _mirror(matrix: NDArray[np.float32]) -> None:
    """Copy what is above the diagonal to below it."""
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        block = matrix[start:end, start:end]
        block[:] = np.triu(block) + np.triu(block, 1).T
        matrix[end:, start:end] = matrix[start:end, end:].T


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
