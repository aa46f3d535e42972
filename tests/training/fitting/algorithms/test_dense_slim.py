"""The variants of DenseSLIM and EDLAE train the same weights as irspack's own."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders import DenseSLIMRecommender, EDLAERecommender
from scipy import sparse

from svc.training.fitting.algorithms.dense_slim import SparseEDLAERecommender, UnlockedDenseSLIMRecommender


def test_dense_slim_has_the_weights_of_irspack() -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = DenseSLIMRecommender(matrix, reg=30.0).learn()
    found = UnlockedDenseSLIMRecommender(matrix, reg=30.0).learn()
    np.testing.assert_allclose(found.W, expected.W, atol=1e-5)
    np.testing.assert_allclose(
        found.get_score(np.arange(200)), expected.get_score(np.arange(200)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_edlae_has_the_weights_of_irspack(dropout_p: float) -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = EDLAERecommender(matrix, reg=30.0, dropout_p=dropout_p).learn()
    found = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=dropout_p).learn()
    np.testing.assert_allclose(found.W.toarray(), np.asarray(expected.W), atol=1e-5)


def test_edlae_keeps_the_largest_weights_of_each_source_item() -> None:
    """They are the largest by absolute value. The search scores the kept weights."""
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    whole = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=0.2).learn().W.toarray()
    kept = SparseEDLAERecommender(matrix, reg=30.0, dropout_p=0.2, top_k=7).learn().W
    assert (np.diff(kept.indptr) == 7).all()
    found = kept.toarray()
    assert (np.sort(np.abs(found), axis=1)[:, -7] == np.sort(np.abs(whole), axis=1)[:, -7]).all()
    assert (found[found != 0] == whole[found != 0]).all()


@pytest.mark.parametrize("n_items", [60, 700])
def test_the_weights_are_as_exact_as_those_of_irspack(n_items: int) -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((900, n_items)) < 0.1).astype(np.float32))
    expected = np.linalg.inv((matrix.T @ matrix).toarray().astype(np.float64) + 5.0 * np.eye(n_items))
    expected /= -expected.diagonal()
    np.fill_diagonal(expected, 0.0)
    found = UnlockedDenseSLIMRecommender(matrix, reg=5.0).learn().W
    of_irspack = DenseSLIMRecommender(matrix, reg=5.0).learn().W
    assert np.abs(found - expected).max() <= 2 * np.abs(of_irspack - expected).max()


@pytest.mark.parametrize("reg", [0.01, 5.0])
@pytest.mark.parametrize("n_common", [0, 40])
def test_items_set_apart_get_the_weights_of_the_whole_system(n_common: int, reg: float) -> None:
    """The data has several items of one user, some of two or three, with values, and unused and popular items.

    The tolerance covers single precision, which depends on the processor and the regularization, in irspack too.
    """
    rng = np.random.default_rng(3)
    dense = np.zeros((90, n_common + 120))
    dense[:, :n_common] = (rng.random((90, n_common)) < 0.1) * rng.integers(1, 4, (90, n_common))
    tail = np.arange(n_common, n_common + 100)
    dense[rng.integers(0, 30, 100), tail] = rng.integers(1, 4, 100)
    dense[rng.integers(0, 90, 30), tail[:30]] = 1.0
    dense[rng.integers(60, 90, 15), tail[:15]] = 2.0
    matrix = sparse.csr_matrix(dense[:, rng.permutation(dense.shape[1])].astype(np.float32))
    inverse = np.linalg.inv((matrix.T @ matrix).toarray().astype(np.float64) + reg * np.eye(matrix.shape[1]))
    expected = -inverse / inverse.diagonal()
    np.fill_diagonal(expected, 0.0)
    found = UnlockedDenseSLIMRecommender(matrix, reg=reg).learn().W
    of_irspack = DenseSLIMRecommender(matrix, reg=reg).learn().W
    assert np.abs(found - expected).max() <= 2 * np.abs(of_irspack - expected).max() + 1e-6


def test_a_matrix_that_rounding_makes_indefinite_is_still_inverted() -> None:
    """There are fewer users than items, values that single precision rounds, and a negligible regularization."""
    matrix = sparse.csr_matrix(np.random.default_rng(1).random((20, 60)).astype(np.float32))
    assert np.isfinite(UnlockedDenseSLIMRecommender(matrix, reg=1e-9).learn().W).all()
