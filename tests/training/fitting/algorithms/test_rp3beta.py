"""The variant of RP3beta, with powers of transition probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from irspack.recommenders import RP3betaRecommender
from scipy import sparse

from svc.training.fitting.algorithms.rp3beta import TransitionRP3betaRecommender


def interactions(*, counts: bool = False) -> sparse.csr_matrix:
    rng = np.random.default_rng(3)
    dense = (rng.random((150, 40)) < rng.random(40) * 0.4) * (rng.integers(1, 4, (150, 40)) if counts else 1)
    dense[:, 7] = 0  # an item that nobody has
    dense[5] = 0  # a user without items
    return sparse.csr_matrix(dense.astype(np.float64))


def expected_weights(matrix: sparse.csr_matrix, *, alpha: float, beta: float, top_k: int, normalize: bool) -> Any:
    """Return the weights by definition over dense arrays."""
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
    """A rare item keeps weights too, which it would lose by the strongest of each target."""
    matrix = interactions()
    expected = expected_weights(matrix, alpha=1.0, beta=0.1, top_k=5, normalize=False)
    found = TransitionRP3betaRecommender(matrix, alpha=1.0, beta=0.1, top_k=5, n_threads=2).learn().W.toarray()
    assert ((found > 0).sum(axis=1) == np.minimum((expected > 0).sum(axis=1), 5)).all()
    np.testing.assert_allclose(np.sort(found, axis=1), np.sort(expected, axis=1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_with_the_largest_weights_of_each_target_it_equals_irspack(normalize: bool) -> None:
    """This holds on binary data with exponent 1, on which irspack's exponent has no effect."""
    matrix, parameters = interactions(), {"beta": 0.3, "top_k": 5, "normalize_weight": normalize, "n_threads": 1}
    own = TransitionRP3betaRecommender(matrix, strongest_of="TARGET", **parameters).learn().W
    assert (own.getnnz(axis=0) <= 5).all()
    np.testing.assert_allclose(own.toarray(), RP3betaRecommender(matrix, **parameters).learn().W.toarray(), rtol=1e-9)


def test_the_exponent_matters_on_binary_data() -> None:
    """irspack raises ones to a power, which has no effect."""
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
