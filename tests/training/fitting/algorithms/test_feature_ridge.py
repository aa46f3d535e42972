"""The iterative solve for feature weights, compared with a dense one."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders._ials_core import FeatureRidgeCholeskyError
from scipy import sparse

from svc.training.fitting.algorithms import feature_ridge
from svc.training.fitting.algorithms.feature_ridge import solve_ridge

ROWS, PLACES, FACTORS = 3_000, 600, 8


def problem(seed: int) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Return features like those of texts, with few of many words and the constant, with vectors and weights."""
    rng = np.random.default_rng(seed)
    columns = ((PLACES - 1) * rng.random((ROWS, 6)) ** 3).astype(int)
    rows = np.repeat(np.arange(ROWS), 6)
    words = sparse.csr_matrix((rng.random(rows.size), (rows, columns.ravel())), shape=(ROWS, PLACES - 1))
    features = sparse.hstack([words, np.ones((ROWS, 1))], format="csr", dtype=np.float32)
    return features, rng.normal(size=(ROWS, FACTORS)).astype(np.float32), rng.uniform(0.5, 50, ROWS)


@pytest.mark.parametrize("ridge", [1.0, 1e3, 1e6])
def test_scores_are_those_of_a_dense_solve(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree to 1e-6, from any start and with any number of rows at once."""
    monkeypatch.setattr(feature_ridge, "_ROWS_AT_ONCE", 700)
    features, vectors, weights = problem(1)
    dense = features.toarray().astype(np.float64)
    exact = np.linalg.solve(
        dense.T @ (dense * weights[:, np.newaxis]) + ridge * np.eye(PLACES),
        dense.T @ (vectors * weights[:, np.newaxis]),
    )
    for start in (np.zeros((PLACES, FACTORS)), exact, np.ones((PLACES, FACTORS))):
        found = solve_ridge(features, vectors, weights, ridge, start.astype(np.float32))
        np.testing.assert_allclose(dense @ found, dense @ exact, rtol=0, atol=1e-6)


def test_a_singular_system_raises_the_error_of_irspack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search then continues with other parameters."""
    monkeypatch.setattr(feature_ridge, "MOST_STEPS", 2)
    features, vectors, weights = problem(2)
    with pytest.raises(FeatureRidgeCholeskyError, match="600 features"):
        solve_ridge(features, vectors, weights, 1.0, np.zeros((PLACES, FACTORS), dtype=np.float32))
