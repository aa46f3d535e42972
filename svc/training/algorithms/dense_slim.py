"""irspack's DenseSLIMRecommender and EDLAERecommender, trained without holding the interpreter lock.

irspack inverts the item matrix with scipy, which holds the lock throughout: with ten thousand items, no signal is
handled and no time limit is checked for half a minute. numpy releases the lock, but computes in double precision and
knows nothing of symmetry, which takes several times as long. So LAPACK's Cholesky routines are called directly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from irspack.recommenders import DenseSLIMRecommender, EDLAERecommender
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cython_lapack

_ROWS_AT_ONCE = 256

Vector = NDArray[np.float64]


class UnlockedDenseSLIMRecommender(DenseSLIMRecommender, register_class=False):
    """As irspack's: the weights of Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", arXiv:1905.03375."""

    def _learn(self) -> None:
        self._W = _weights(self.X_train_all, np.full(self.n_items, float(self.reg)))


class SparseEDLAERecommender(EDLAERecommender, register_class=False):
    """irspack's EDLAE: Steck, "Autoencoders that don't overfit towards the Identity", NeurIPS 2020.

    Of the dense weights the `top_k` largest by amount of each source item are kept, so that a model of many items
    stays small; what is evaluated is what is kept.
    """

    def __init__(self, matrix: Any, *, top_k: int | None = None, **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.top_k = top_k

    def _learn(self) -> None:
        x = self.X_train_all
        squares = np.asarray(x.multiply(x).sum(axis=0), dtype=np.float64).ravel()
        dropped = self.dropout_p / (1.0 - self.dropout_p)
        self._W = _strongest(_weights(x, dropped * squares + self.reg), self.top_k or x.shape[1])


def _weights(matrix: Any, ridge: Vector) -> NDArray[np.float32]:
    """With P = (XᵀX + diag(`ridge`))⁻¹ the weight of item i for item j is −P_ij / P_jj, and 0 for i = j."""
    weights = _System(matrix, ridge).inverse()
    weights /= -weights.diagonal()
    np.fill_diagonal(weights, 0.0)
    return weights


class _System:
    """XᵀX + diag(`ridge`), whose inverse needs a dense decomposition of the items that several users chose only.

    The part about the `single` items, those of one user at most, consists of one block of rank one for each user, so it
    is solved on paper. With s_u = Σ x_ut² / ridge_t over the single items t of a user u, the rows of `common`, (users,
    other items), then count 1 / (1 + s_u) times in the system of the others. Its inverse gives the rest: with
    w_t = (x_ut / ridge_t) / (1 + s_u), a single item is to another one what −w_t times the history of its user is.
    """

    def __init__(self, matrix: Any, ridge: Vector) -> None:
        x = matrix.astype(np.float32).tocsc(copy=True)
        x.eliminate_zeros()
        counts = np.diff(x.indptr)
        self.others, self.single = np.flatnonzero(counts > 1), np.flatnonzero(counts <= 1)
        self.common = x[:, self.others].tocsr()
        self.ridge = ridge
        has_user = counts[self.single] == 1
        owners, values = np.zeros(len(self.single), dtype=np.int64), np.zeros(len(self.single))
        entries = x.indptr[self.single[has_user]]
        owners[has_user], values[has_user] = x.indices[entries], x.data[entries]
        by_ridge = values / ridge[self.single]
        self.sums = np.bincount(owners, weights=values * by_ridge, minlength=x.shape[0])
        self.owners, self.shares = owners, by_ridge / (1.0 + self.sums[owners])

    def inverse(self) -> NDArray[np.float32]:
        """By rows, (items, items)."""
        scaled = sparse.diags((1.0 / np.sqrt(1.0 + self.sums)).astype(np.float32)) @ self.common
        system: NDArray[np.float32] = (scaled.T @ scaled).toarray(order="C")
        np.fill_diagonal(system, system.diagonal() + self.ridge[self.others].astype(np.float32))
        of_others = _inverse(system)
        if not len(self.single):
            return of_others
        users, places = np.unique(self.owners, return_inverse=True)
        histories = self.common[users]
        by_user = histories @ of_others
        among = np.asarray(histories @ by_user.T)
        of_user = among.diagonal() - (1.0 + self.sums[users])
        own = 1.0 / self.ridge[self.single] + self.shares**2 * of_user[places]
        np.fill_diagonal(among, of_user)
        shares = self.shares.astype(np.float32)
        inverse = np.empty((len(self.ridge),) * 2, dtype=np.float32)
        # The columns of others and single items, which lie side by side in a block, in the order of the items.
        order = np.argsort(np.concatenate([self.others, self.single]))
        for rows, part in _blocks(self.others):
            to_single = by_user[:, part].T[:, places] * -shares
            inverse[rows] = np.concatenate([of_others[part], to_single], axis=1)[:, order]
        for rows, part in _blocks(self.single):
            mine, share = places[part], shares[part, np.newaxis]
            to_single = among[mine][:, places] * share * shares
            inverse[rows] = np.concatenate([by_user[mine] * -share, to_single], axis=1)[:, order]
        inverse[self.single, self.single] = own
        return inverse


def _blocks(items: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], slice]]:
    """Some of the items at a time, and where they are among all."""
    for start in range(0, len(items), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        yield items[part], part


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
