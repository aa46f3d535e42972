"""Conversion of a trained recommender to a scorer. Whole models are tested in test_assemble.py."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.recommenders import IALSRecommender
from scipy import sparse as sps

from svc.errors import TrainingError
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import finite_float32, ials_scorer, svd_scorer, to_scorer


def test_an_unknown_class_is_refused() -> None:
    """The error names the classes that can be served."""
    with pytest.raises(TrainingError, match="TopPopRecommender"):
        to_scorer(object(), "P3alphaRecommender")


def test_factors_that_are_not_finite_are_refused() -> None:
    """A search that ended in infinite values gives no artifact."""
    matrix = sps.csr_matrix(np.eye(9, dtype=np.float64) + np.eye(9, k=1))
    recommender = WeightedSVDRecommender(matrix, n_components=3, weighting="DEGREES").learn()
    recommender.z_[0, 0] = np.inf
    with pytest.raises(TrainingError, match="user vectors"):
        to_scorer(recommender, "TruncatedSVDRecommender")


MATRIX = sps.csr_matrix((np.random.default_rng(3).random((20, 12)) < 0.3).astype(np.float64))


def test_scorers_have_the_trained_vectors() -> None:
    """Users keep their order, and items are found by column."""
    ials = IALSRecommender(MATRIX, n_components=4, train_epochs=2, n_threads=1).learn()
    svd = WeightedSVDRecommender(MATRIX, n_components=4, random_seed=0).learn()
    for recommender, scorer in ((ials, ials_scorer(ials)), (svd, svd_scorer(svd))):
        scorer.ready()
        np.testing.assert_array_equal(scorer.users, np.asarray(recommender.get_user_embedding(), dtype=np.float32))
        items = np.asarray(recommender.get_item_embedding(), dtype=np.float32)
        np.testing.assert_array_equal(scorer.index.vectors(np.arange(12, dtype=np.int32)), items)


def test_values_that_are_not_finite_in_single_precision_are_refused() -> None:
    """Values too large for float32 count as infinite."""
    with pytest.raises(TrainingError, match="the trained vectors are not finite"):
        finite_float32([1.0, 1e60], "vectors")
