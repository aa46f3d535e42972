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
_FEW_USERS = 16
"""Items of more users are not looked at: they are hardly ever apart, and co-occur with much of the catalogue."""

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
    """XᵀX + diag(`ridge`), whose inverse needs a dense decomposition of some of the items only.

    Some items of few users stand `apart`: no two of them have a user in common, unless these are items of one user.
    Their part of the system consists of single numbers, and of a block of rank one for the items of a single user u, so
    it is solved on paper. What u chose of the rest then counts 1 / (1 + s_u) times, with s_u = Σ x_ut² / ridge_t, and
    the other items apart take away from the rest what is in line with their columns. The inverse has for an item t
    apart −`shares`_t times row `rows`_t of `histories`, (rows, rest), times that of the rest.
    """

    def __init__(self, matrix: Any, ridge: Vector) -> None:
        x = matrix.astype(np.float32).tocsc(copy=True)
        x.eliminate_zeros()
        counts, is_apart = np.diff(x.indptr), _are_apart(x)
        single, several = np.flatnonzero(is_apart & (counts == 1)), np.flatnonzero(is_apart & (counts != 1))
        self.rest, self.apart = np.flatnonzero(~is_apart), np.concatenate([single, several])
        self.common, columns = x[:, self.rest].tocsr(), x[:, several]
        values = x.data[x.indptr[single]].astype(np.float64)
        users, owners = np.unique(x.indices[x.indptr[single]], return_inverse=True)
        divisors = 1.0 + np.bincount(owners, weights=values**2 / ridge[single], minlength=len(users))
        totals = np.asarray(columns.multiply(columns).sum(axis=0), dtype=np.float64).ravel() + ridge[several]
        together = columns.T @ self.common
        self.histories = sparse.vstack([self.common[users], together], format="csr")
        self.rows = np.concatenate([owners, len(users) + np.arange(len(several))])
        self.shares = np.concatenate([values / ridge[single] / divisors[owners], 1.0 / totals])
        self.divisors = np.concatenate([divisors, np.zeros(len(several))])
        self.own = np.concatenate([1.0 / ridge[single], 1.0 / totals])
        self.ridge = ridge[self.rest]
        self._scales = np.ones(x.shape[0], dtype=np.float32)
        self._scales[users] = divisors**-0.5
        self._taken = sparse.diags(totals**-0.5) @ together

    def inverse(self) -> NDArray[np.float32]:
        """By rows, (items, items)."""
        scaled = sparse.diags(self._scales) @ self.common
        system: NDArray[np.float32] = (scaled.T @ scaled - self._taken.T @ self._taken).astype(np.float32).toarray("C")
        np.fill_diagonal(system, system.diagonal() + self.ridge.astype(np.float32))
        of_rest = _inverse(system)
        if not len(self.apart):
            return of_rest
        by_row = self.histories @ of_rest
        among = np.asarray(self.histories @ by_row.T)
        diagonal = among.diagonal() - self.divisors
        np.fill_diagonal(among, diagonal)
        shares = self.shares.astype(np.float32)
        n_items = len(self.rest) + len(self.apart)
        inverse = np.empty((n_items, n_items), dtype=np.float32)
        # Columns of the rest and of those apart, which lie side by side in a block, in the order of the items.
        order = np.argsort(np.concatenate([self.rest, self.apart]))
        for items, part in _blocks(self.rest):
            to_apart = by_row[:, part].T[:, self.rows] * -shares
            inverse[items] = np.concatenate([of_rest[part], to_apart], axis=1)[:, order]
        for items, part in _blocks(self.apart):
            mine, share = self.rows[part], shares[part, np.newaxis]
            to_apart = among[mine][:, self.rows] * share * shares
            inverse[items] = np.concatenate([by_row[mine] * -share, to_apart], axis=1)[:, order]
        inverse[self.apart, self.apart] = self.own + self.shares**2 * diagonal[self.rows]
        return inverse


def _are_apart(x: Any) -> NDArray[np.bool_]:
    """Items of at most one user, and items of few whose users have no other item apart; those of fewer users first."""
    counts = np.diff(x.indptr)
    is_apart: NDArray[np.bool_] = counts <= 1
    is_taken = np.zeros(x.shape[0], dtype=bool)
    is_taken[x.indices[x.indptr[:-1][counts == 1]]] = True
    few = np.flatnonzero((counts > 1) & (counts <= _FEW_USERS))
    for item in few[np.argsort(counts[few], kind="stable")]:
        users = x.indices[x.indptr[item] : x.indptr[item + 1]]
        if not is_taken[users].any():
            is_apart[item] = is_taken[users] = True
    return is_apart


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
