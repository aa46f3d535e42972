"""Conversion of a trained recommender to a scorer. Whole models are tested in test_assemble.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse as sps

from svc.errors import TrainingError
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import to_scorer


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
