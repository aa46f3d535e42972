"""The scorers of trained factor models."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sps
from irspack.recommenders import IALSRecommender

from svc.errors import TrainingError
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.factors import finite_float32, ials_scorer, svd_scorer

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


def test_factors_that_are_not_finite_are_refused() -> None:
    """Values too large for float32 count as infinite."""
    with pytest.raises(TrainingError, match="the trained vectors are not finite"):
        finite_float32([1.0, 1e60], "vectors")
