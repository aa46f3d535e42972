"""Solve for the weights of very many features, by conjugate gradients.

In feature-aware iALS the weights W of the features of one side minimize, for its vectors V,

    Σ_i r_i ‖v_i − Wᵀf_i‖² + λ ‖W‖²        so        (Fᵀ R F + λ I) W = Fᵀ R V ,   R = diag(r)

| symbol | shape | meaning |
|---|---|---|
| F | (n, P) | encoded features, sparse, of n users or items |
| V | (n, K) | their vectors |
| r | (n,) | regularization of each vector |
| W | (P, K) | weights |

irspack solves this by the Cholesky decomposition of the dense P × P matrix, whose memory grows with the square of P.
Here the matrix is never built. Each of the K columns is solved by conjugate gradients (Hestenes and Stiefel 1952),
preconditioned by the diagonal. All columns advance together, so a step costs two products of F with K vectors.
"""

from __future__ import annotations

import numpy as np
from irspack.recommenders._ials_core import FeatureRidgeCholeskyError
from numpy.typing import NDArray
from scipy import sparse

TOLERANCE = 1e-9
"""Largest residual of a solved column, relative to the norm of its right-hand side."""
MOST_STEPS = 2_000
_ROWS_AT_ONCE = 65_536
"""Rows of F that are multiplied at once, so that the memory of a step does not grow with n."""

Matrix = NDArray[np.float64]


def solve_ridge(
    features: sparse.csr_matrix,
    vectors: NDArray[np.float32],
    row_weights: NDArray[np.float64],
    ridge: float,
    start: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return W, (P, K), from F, V, r and λ, starting at `start`, (P, K).

    Needs the memory of F's values and of five arrays of the size of W. Raise FeatureRidgeCholeskyError, as irspack
    does, if the system is too nearly singular to be solved.
    """
    parts = _scaled_parts(features, np.sqrt(row_weights))
    right = np.zeros(start.shape)
    begin = 0
    for part, weights in parts:
        rows = slice(begin, begin + part.shape[0])
        right += part.T @ (vectors[rows] * weights[:, np.newaxis])
        begin = rows.stop
    diagonal = np.full((len(start), 1), ridge)
    for part, _ in parts:
        diagonal[:, 0] += np.bincount(part.indices, np.square(part.data), len(start))
    solution = start.astype(np.float64)
    residual = right - _product(parts, ridge, solution)
    wanted = TOLERANCE * np.sqrt(_squares(right, right))
    del right
    direction = residual / diagonal
    steepness = _squares(residual, direction)
    for _ in range(MOST_STEPS):
        unsolved = np.sqrt(_squares(residual, residual)) > wanted
        if not unsolved.any():
            return solution.astype(np.float32)
        product = _product(parts, ridge, direction)
        length = _ratio(steepness, _squares(direction, product), unsolved)
        solution += length * direction
        residual -= length * product
        scaled = np.divide(residual, diagonal, out=product)
        before, steepness = steepness, _squares(residual, scaled)
        direction *= _ratio(steepness, before, unsolved)
        direction += scaled
    raise FeatureRidgeCholeskyError(f"the weights of {len(start)} features were not found in {MOST_STEPS} steps")


def _scaled_parts(
    features: sparse.csr_matrix, root_weights: NDArray[np.float64]
) -> list[tuple[sparse.csr_matrix, NDArray[np.float64]]]:
    """Return √R·F in blocks of rows, each with its √r. The blocks share the indices of F."""
    parts = []
    for begin in range(0, features.shape[0], _ROWS_AT_ONCE):
        bounds = features.indptr[begin : begin + _ROWS_AT_ONCE + 1]
        own, roots = slice(bounds[0], bounds[-1]), root_weights[begin : begin + _ROWS_AT_ONCE]
        data = features.data[own] * np.repeat(roots, np.diff(bounds))
        shape = (len(bounds) - 1, features.shape[1])
        parts.append((sparse.csr_matrix((data, features.indices[own], bounds - bounds[0]), shape=shape), roots))
    return parts


def _product(parts: list[tuple[sparse.csr_matrix, NDArray[np.float64]]], ridge: float, right: Matrix) -> Matrix:
    """Return (Fᵀ R F + λ I) times `right`, (P, K)."""
    product = ridge * right
    for part, _ in parts:
        product += part.T @ (part @ right)
    return product


def _squares(left: Matrix, right: Matrix) -> NDArray[np.float64]:
    """Return the inner product of each pair of columns, (K,)."""
    # einsum and not BLAS, whose sums depend on its number of threads in their last bits.
    return np.asarray(np.einsum("pk,pk->k", left, right), dtype=np.float64)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64], unsolved: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return above / below of each column, or 0 for solved columns, which then no longer change."""
    return np.divide(above, below, out=np.zeros_like(above), where=unsolved & (below > 0))
