"""The variant of TruncatedSVD, which weights the matrix before its decomposition and scales scores back."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders import TruncatedSVDRecommender
from scipy import sparse

from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender

ROWS = np.arange(60)


def interactions() -> sparse.csr_matrix:
    dense = np.random.default_rng(4).random((60, 30)) < np.linspace(0.6, 0.05, 30)
    dense[3] = False
    dense[:, 29] = False
    return sparse.csr_matrix(dense.astype(np.float64))


def test_unweighted_truncated_svd_equals_irspack() -> None:
    """At almost full rank, both approximations are exact to many digits."""
    matrix = interactions()
    expected = TruncatedSVDRecommender(matrix, n_components=28, random_seed=1).learn()
    found = WeightedSVDRecommender(matrix, n_components=28, random_seed=1).learn()
    np.testing.assert_allclose(found.get_score(ROWS), expected.get_score(ROWS), atol=1e-5)


@pytest.mark.parametrize("weighting", ["NONE", "DEGREES", "BM_25"])
def test_known_and_new_users_with_the_same_history_get_equal_scores(weighting: str) -> None:
    matrix = interactions()
    found = WeightedSVDRecommender(matrix, n_components=7, weighting=weighting).learn()
    np.testing.assert_allclose(found.get_score_cold_user(matrix), found.get_score(ROWS), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found.get_score_block(10, 20), found.get_score(np.arange(10, 20)))


def test_normalization_by_degrees_gives_the_low_pass_filter_of_the_paper() -> None:
    """The score is x D^-1/2 V Vᵀ D^1/2, with V of the matrix divided by the roots of both degrees."""
    matrix = interactions()
    dense = matrix.toarray()
    of_users, of_items = (np.maximum(dense.sum(axis=axis), 1.0) for axis in (1, 0))
    _, _, vectors = np.linalg.svd(dense / np.sqrt(np.outer(of_users, of_items)))
    low = vectors[:20].T @ vectors[:20]
    expected = (dense / np.sqrt(of_items)) @ low * np.sqrt(of_items)
    found = WeightedSVDRecommender(matrix, n_components=20, weighting="DEGREES").learn()
    np.testing.assert_allclose(found.get_score(ROWS), expected, atol=1e-9)


def test_bm25_weighs_rare_items_and_short_histories_more() -> None:
    """The matrix is decomposed with the weights k1 = 1.2 and b = 0.75, and scores are divided by the items' weights."""
    matrix = interactions()
    dense = matrix.toarray()
    of_users, of_items = (np.maximum(dense.sum(axis=axis), 1.0) for axis in (1, 0))
    rarity = np.log(60 / of_items) + 1.0
    saturation = 2.2 / (1.0 + 1.2 * (0.25 + 0.75 * of_users / of_users.mean()))
    _, _, vectors = np.linalg.svd(dense * np.outer(saturation, rarity))
    low = vectors[:20].T @ vectors[:20]
    found = WeightedSVDRecommender(matrix, n_components=20, weighting="BM_25").learn()
    np.testing.assert_allclose(found.get_score(ROWS), (dense * rarity) @ low / rarity, atol=1e-6)
