"""irspack's DenseSLIM and RP3beta, with svc's changes to the training of their item weights.

irspack inverts the (items, items) matrix of DenseSLIM with scipy, which holds Python's interpreter lock
throughout. With ten thousand items, no signal is handled and no time limit is checked for half a minute. numpy releases
the lock, but takes several times as long, because it inverts in double precision and ignores the symmetry of the
matrix. So this module calls LAPACK's Cholesky routines directly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from irspack.recommenders import DenseSLIMRecommender, RP3betaRecommender
from irspack.recommenders._knn import CosineSimilarityComputer
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cython_lapack

_ROWS_AT_ONCE = 256
_FEW_USERS = 16
"""Maximum number of users of an item that is set apart (see `_System`).

Items of several users are set apart only if they share no user. Items with more users almost always share one.
"""


class UnlockedDenseSLIMRecommender(DenseSLIMRecommender, register_class=False):
    """DenseSLIM with a faster inversion that releases the interpreter lock.

    Steck, "Embarrassingly Shallow Autoencoders for Sparse Data", WWW 2019, arXiv:1905.03375.
    """

    def _learn(self) -> None:
        # The weight of item i for item j is −P_ij / P_jj, and 0 for i = j, with the inverse P of `_System`.
        weights = _System(self.X_train_all, float(self.reg)).inverse()
        # Broadcasting divides column j by P_jj, as in the formula.
        weights /= -weights.diagonal()
        np.fill_diagonal(weights, 0.0)
        self._W = weights


class _System:
    """The matrix S = XᵀX + `ridge` · I, (items, items), with a faster way to its exact inverse.

    On film ratings, a training takes 3.2 instead of 13.6 s. A dense matrix must be inverted only for some of the items:
    5,106 of 10,506 on this data.

    A set A of rarely chosen items is set `apart`, and R is the `rest`. A user may have chosen several items of A only
    if nobody else chose any of these. So S_AA is block diagonal, and its inverse has a formula. It is 1 / S_tt for an
    item t of several users or none, and a diagonal plus a matrix of rank one (Sherman and Morrison) for the items of a
    single user. Only the Schur complement S_RR − S_RA S_AA⁻¹ S_AR is inverted numerically. It is computed from X like
    this:

    - For a user u with items t that nobody else chose, u's part of XᵀX is divided by 1 + s_u, with
      s_u = Σ_t x_ut² / ridge.
    - For an item t of several users, the outer product of S_Rt with itself, divided by S_tt, is subtracted.

    Row t of S_AA⁻¹ S_AR is `shares`_t times row `rows`_t of `histories`, (rows, R). The other blocks of the inverse
    follow from these rows.
    """

    def __init__(self, matrix: Any, ridge: float) -> None:
        x = matrix.astype(np.float32).tocsc(copy=True)
        # Stored zeros would count as users of an item.
        x.eliminate_zeros()
        counts, is_apart = np.diff(x.indptr), _are_apart(x)
        single, several = np.flatnonzero(is_apart & (counts == 1)), np.flatnonzero(is_apart & (counts != 1))
        self.rest, self.apart = np.flatnonzero(~is_apart), np.concatenate([single, several])
        self.common, columns = x[:, self.rest].tocsr(), x[:, several]
        values = x.data[x.indptr[single]].astype(np.float64)
        users, owners = np.unique(x.indices[x.indptr[single]], return_inverse=True)
        divisors = 1.0 + np.bincount(owners, weights=values**2 / ridge, minlength=len(users))
        totals = np.asarray(columns.multiply(columns).sum(axis=0), dtype=np.float64).ravel() + ridge
        together = columns.T @ self.common
        self.histories = sparse.vstack([self.common[users], together], format="csr")
        self.rows = np.concatenate([owners, len(users) + np.arange(len(several))])
        self.shares = np.concatenate([values / ridge / divisors[owners], 1.0 / totals])
        self.divisors = np.concatenate([divisors, np.zeros(len(several))])
        self.own = 1.0 / np.concatenate([np.full(len(single), ridge), totals])
        self.ridge = np.float32(ridge)
        self._scales = np.ones(x.shape[0], dtype=np.float32)
        # The root, because each row enters XᵀX twice.
        self._scales[users] = divisors**-0.5
        self._taken = sparse.diags(totals**-0.5) @ together

    def inverse(self) -> NDArray[np.float32]:
        """Return the inverse, (items, items), in C order."""
        scaled = sparse.diags(self._scales) @ self.common
        # These are sparse products. Dense products by BLAS would save only 0.04 s of a trial, even on dense data.
        system: NDArray[np.float32] = (scaled.T @ scaled - self._taken.T @ self._taken).astype(np.float32).toarray("C")
        np.fill_diagonal(system, system.diagonal() + self.ridge)
        # Trials with other values of `ridge` could share an eigendecomposition instead of inverting, but it takes
        # longer than all the inversions of a search.
        of_rest = invert(system)
        if not len(self.apart):
            return of_rest
        by_row = self.histories @ of_rest
        among = np.asarray(self.histories @ by_row.T)
        diagonal = among.diagonal() - self.divisors
        np.fill_diagonal(among, diagonal)
        shares = self.shares.astype(np.float32)
        n_items = len(self.rest) + len(self.apart)
        inverse = np.empty((n_items, n_items), dtype=np.float32)
        # Each block is computed with the columns of the rest first and the columns set apart last. Indexing by `order`
        # puts them back into the order of items.
        order = np.argsort(np.concatenate([self.rest, self.apart]))
        for items, part in _blocks(self.rest):
            to_apart = by_row[:, part].T[:, self.rows] * -shares
            inverse[items] = np.concatenate([of_rest[part], to_apart], axis=1)[:, order]
        for items, part in _blocks(self.apart):
            own_rows, share = self.rows[part], shares[part, np.newaxis]
            to_apart = among[own_rows][:, self.rows] * share * shares
            inverse[items] = np.concatenate([by_row[own_rows] * -share, to_apart], axis=1)[:, order]
        inverse[self.apart, self.apart] = self.own + self.shares**2 * diagonal[self.rows]
        return inverse


def _are_apart(x: Any) -> NDArray[np.bool_]:
    """Return which items are set apart, (items,): all items with at most one user, and some items with few users.

    Items with few users are visited in ascending number of users. An item is set apart if none of its users has another
    item that is set apart. `x`, (users, items), is in CSC format.
    """
    counts = np.diff(x.indptr)
    is_apart: NDArray[np.bool_] = counts <= 1
    is_taken = np.zeros(x.shape[0], dtype=bool)
    is_taken[x.indices[x.indptr[:-1][counts == 1]]] = True
    few = np.flatnonzero((counts > 1) & (counts <= _FEW_USERS))
    # Rarest first, because they block the fewest others.
    for item in few[np.argsort(counts[few], kind="stable")]:
        users = x.indices[x.indptr[item] : x.indptr[item + 1]]
        if not is_taken[users].any():
            is_apart[item] = is_taken[users] = True
    return is_apart


def _blocks(items: NDArray[np.intp]) -> Iterator[tuple[NDArray[np.intp], slice]]:
    """Yield `items` in blocks of _ROWS_AT_ONCE, each with the slice of `items` that it covers."""
    for start in range(0, len(items), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        yield items[part], part


def invert(system: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the inverse of `system`, a symmetric positive definite matrix in C order.

    The inverse overwrites `system`, unless it is singular in single precision. Raise LinAlgError if it is singular in
    double precision too.
    """
    diagonal = system.diagonal().copy()
    if _lapack("spotrf", system) == 0 and _lapack("spotri", system) == 0:
        _mirror(system)
        return system
    # The matrix is singular in single precision, so numpy inverts it in double precision. LAPACK has overwritten the
    # diagonal and the entries above it, which are restored from the copy and from the entries below.
    _mirror(system.T)
    np.fill_diagonal(system, diagonal)
    inverse: NDArray[np.float32] = np.linalg.inv(system)
    return inverse


def _lapack(name: str, matrix: NDArray[np.float32]) -> int:
    """Apply a LAPACK routine to the upper triangle of `matrix` in place, and return its status, 0 if it succeeded.

    ctypes releases the interpreter lock during the call.
    """
    capsule = ctypes.py_object(cython_lapack.__pyx_capi__[name])
    ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
    ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
    # scipy names each capsule by the C signature of its routine, and a pointer is given only for that name.
    signature = ctypes.c_char_p(ctypes.pythonapi.PyCapsule_GetName(capsule))
    address = ctypes.pythonapi.PyCapsule_GetPointer(capsule, signature)
    size, failed = ctypes.c_int(len(matrix)), ctypes.c_int()
    routine = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(address)
    # "L", because the upper triangle in C order is the lower one in LAPACK's Fortran order.
    routine(b"L", ctypes.addressof(size), matrix.ctypes.data, ctypes.addressof(size), ctypes.addressof(failed))
    return failed.value


def _mirror(matrix: NDArray[np.float32]) -> None:
    """Copy the upper triangle of `matrix` to the lower one."""
    for start in range(0, len(matrix), _ROWS_AT_ONCE):
        end = start + _ROWS_AT_ONCE
        block = matrix[start:end, start:end]
        # In blocks, so that the copy of a transposed matrix is never in memory as a whole.
        block[:] = np.triu(block) + np.triu(block, 1).T
        matrix[end:, start:end] = matrix[start:end, end:].T


class TransitionRP3betaRecommender(RP3betaRecommender, register_class=False):
    """RP3beta, item weights by a random walk, with svc's changes.

    The weight of item i for item j is Σ_u p(u|i)^alpha · p(j|u)^alpha / popularity(j)^beta, over all users u. A step
    from an item to its users, or from a user to their items, has probabilities p in proportion to the interactions.
    popularity(j) is the sum of the interactions with j, at least 1.

    Two things differ from irspack:

    - Each step's probability is raised to alpha, as in Christoffel et al., "Blockbusters and Wallflowers", RecSys 2015,
      and Paudel et al., "Updatable, Accurate, Diverse, and Scalable Recommendations for Interactive Applications", TiiS
      2016. irspack raises the interactions instead, which changes nothing if all are 1.
    - The `top_k` largest weights of each source item i are kept, or with `strongest_of="TARGET"` those of each target
      item j. irspack always keeps those of each target, which may leave a rare source item without weights. If users
      have many items, that is still far better, because popular and rare targets then have the same number of sources.
      So the search tries both.

    With `normalize_weight`, the weights of each i sum to 1, so that all items of a history count equally.
    """

    def __init__(self, matrix: Any, *, strongest_of: str = "SOURCE", **parameters: Any) -> None:
        super().__init__(matrix, **parameters)
        self.strongest_of = strongest_of

    def _learn(self) -> None:
        interactions = self.X_train_all.astype(np.float64).tocsr()
        to_items = _rows_to_one(interactions)
        to_users = _rows_to_one(interactions.T.tocsr())
        # After normalization. Before it, as in irspack, alpha has no effect on interactions of 1.
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
    """Return a copy of `matrix` whose rows each sum to 1. Empty rows stay empty."""
    normalized = matrix.tocsr(copy=True)
    sums = np.asarray(normalized.sum(axis=1)).ravel()
    normalized.data /= np.repeat(np.where(sums > 0, sums, 1.0), np.diff(normalized.indptr))
    return normalized
