"""The weight of an item for itself: multiples of the largest other weight of its row."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import FloatDistribution
from scipy import sparse

from svc.training.fitting.algorithms.registry import search_space
from svc.training.fitting.algorithms.self_weight import VALUES, with_diagonal, with_self_weight


@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_diagonal_is_a_multiple_of_the_largest_other_weight(is_sparse: bool) -> None:
    """Its earlier value does not matter. Rows without a positive other weight get 0, and other weights stay."""
    rng = np.random.default_rng(3)
    given = np.round(rng.normal(size=(30, 30)), 2).astype(np.float32) * (rng.random((30, 30)) < 0.3)
    given[4] = -np.abs(given[4])
    given[5] = 0.0
    given[5, 5] = 2.0
    for self_weight in (0.0, 0.3, 1.0, 100.0):
        found = with_diagonal(sparse.csr_matrix(given) if is_sparse else given.copy(), self_weight)
        assert sparse.issparse(found) == is_sparse
        dense = found.toarray() if is_sparse else found
        assert dense.dtype == np.float32
        for row in range(30):
            others = np.delete(given[row], row)
            assert dense[row, row] == pytest.approx(self_weight * max(others.max(), 0.0), rel=1e-6)
            np.testing.assert_array_equal(np.delete(dense[row], row), others)


def test_the_first_trials_try_different_self_weights() -> None:
    """They are within the bounds of the recipe, if there are any."""
    plain = search_space("RP3betaRecommender", n_users=100, n_items=100)
    free = with_self_weight(plain, None)
    assert {guess["self_weight"] for guess in free.guesses} <= set(VALUES)
    assert len({guess["self_weight"] for guess in free.guesses}) == len(plain.guesses) == 3
    bounded = with_self_weight(plain, [0.5, 2])
    assert bounded["self_weight"] == FloatDistribution(0.5, 2.0)
    assert all(0.5 <= guess["self_weight"] <= 2.0 for guess in bounded.guesses)
