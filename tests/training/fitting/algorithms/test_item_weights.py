"""The variants of DenseSLIM and RP3beta, whose item weights are compared with irspack's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from irspack.recommenders import DenseSLIMRecommender, RP3betaRecommender
from scipy import sparse

from svc.training.fitting.algorithms.item_weights import (
    TransitionRP3betaRecommender,
    UnlockedDenseSLIMRecommender,
)


def test_dense_slim_has_the_weights_of_irspack() -> None:
    matrix = sparse.csr_matrix((np.random.default_rng(1).random((200, 60)) < 0.2).astype(np.float32))
    expected = DenseSLIMRecommender(matrix, reg=30.0).learn()
    found = UnlockedDenseSLIMRecommender(matrix, reg=30.0).learn()
    np.testing.assert_allclose(found.W, expected.W, atol=1e-5)
    np.testing.assert_allclose(
        found.get_score(np.arange(200)), expected.get_score(np.arange(200)), rtol=1e-4, atol=1e-5
    )


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
def test_items_solved_apart_get_the_weights_of_the_whole_system(n_common: int, reg: float) -> None:
    """Weights equal those of a dense inverse, for rare, unused and popular items with several values.

    The tolerance is twice the rounding error of irspack, which also computes in single precision.
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
    """Weights are finite with fewer users than items, rounded values and hardly any regularization."""
    matrix = sparse.csr_matrix(np.random.default_rng(1).random((20, 60)).astype(np.float32))
    assert np.isfinite(UnlockedDenseSLIMRecommender(matrix, reg=1e-9).learn().W).all()


def interactions(*, counts: bool = False) -> sparse.csr_matrix:
    rng = np.random.default_rng(3)
    dense = (rng.random((150, 40)) < rng.random(40) * 0.4) * (rng.integers(1, 4, (150, 40)) if counts else 1)
    dense[:, 7] = 0  # an item that nobody has
    dense[5] = 0  # a user without items
    return sparse.csr_matrix(dense.astype(np.float64))


def expected_weights(matrix: sparse.csr_matrix, *, alpha: float, beta: float, top_k: int, normalize: bool) -> Any:
    """Return the weights by their definition over dense arrays."""
    dense = matrix.toarray()
    with np.errstate(invalid="ignore"):
        to_items = np.nan_to_num(dense / dense.sum(axis=1, keepdims=True)) ** alpha
        to_users = np.nan_to_num(dense.T / dense.T.sum(axis=1, keepdims=True)) ** alpha
    weights = to_users @ to_items / np.maximum(dense.sum(axis=0), 1.0) ** beta
    for row in weights:
        row[np.argsort(-row, kind="stable")[top_k:]] = 0.0
    if normalize:
        weights = np.nan_to_num(weights / np.where(weights.sum(axis=1) > 0, weights.sum(axis=1), 1.0)[:, np.newaxis])
    return weights


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 0.566])
@pytest.mark.parametrize(("beta", "normalize"), [(0.0, True), (0.3, False)])
def test_the_weights_are_powers_of_transition_probabilities(
    counts: bool, alpha: float, beta: float, normalize: bool
) -> None:
    matrix = interactions(counts=counts)
    expected = expected_weights(matrix, alpha=alpha, beta=beta, top_k=40, normalize=normalize)
    found = TransitionRP3betaRecommender(
        matrix, alpha=alpha, beta=beta, top_k=40, normalize_weight=normalize, n_threads=1
    ).learn()
    np.testing.assert_allclose(found.W.toarray(), expected, rtol=1e-9, atol=1e-12)


def test_the_largest_weights_of_each_source_item_are_kept() -> None:
    """A rare item keeps weights, which a selection for each target item would drop."""
    matrix = interactions()
    expected = expected_weights(matrix, alpha=1.0, beta=0.1, top_k=5, normalize=False)
    found = TransitionRP3betaRecommender(matrix, alpha=1.0, beta=0.1, top_k=5, n_threads=2).learn().W.toarray()
    assert ((found > 0).sum(axis=1) == np.minimum((expected > 0).sum(axis=1), 5)).all()
    np.testing.assert_allclose(np.sort(found, axis=1), np.sort(expected, axis=1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_rp3beta_with_the_largest_weights_of_each_target_equals_irspack(normalize: bool) -> None:
    """The data is binary and the exponent 1, because irspack's exponent has no effect there."""
    matrix, parameters = interactions(), {"beta": 0.3, "top_k": 5, "normalize_weight": normalize, "n_threads": 1}
    own = TransitionRP3betaRecommender(matrix, strongest_of="TARGET", **parameters).learn().W
    assert (own.getnnz(axis=0) <= 5).all()
    np.testing.assert_allclose(own.toarray(), RP3betaRecommender(matrix, **parameters).learn().W.toarray(), rtol=1e-9)


def test_the_exponent_matters_on_binary_data() -> None:
    """In irspack it does not, because irspack raises ones to a power."""
    matrix = interactions()
    one, half = (
        TransitionRP3betaRecommender(matrix, alpha=alpha, top_k=40, normalize_weight=True, n_threads=1).learn().W
        for alpha in (1.0, 0.5)
    )
    assert abs(one - half).max() > 1e-3


def test_training_does_not_change_the_data_and_is_the_same_on_any_number_of_threads() -> None:
    matrix = interactions()
    before = matrix.copy()
    found = [
        TransitionRP3betaRecommender(matrix, alpha=0.7, top_k=10, n_threads=threads).learn().W for threads in (1, 2)
    ]
    assert (matrix != before).nnz == 0
    assert (found[0] != found[1]).nnz == 0
