"""Final trainings whose feature weights cannot be solved for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from irspack.recommenders.ials import FeatureRidgeCholeskyError
from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.training.fitting.train import Builder, Threads, train_trial
from svc.training.fitting.trial import TrialRecord


class Singular:
    """A recommender whose training meets a singular system."""

    def start_learning(self) -> None:
        raise FeatureRidgeCholeskyError("not positive definite")

    learn = start_learning


class SingularBuilder(Builder):
    def build(self, *_: Any) -> Any:
        return Singular()


def test_a_final_training_with_a_singular_system_names_the_way_out() -> None:
    """The search prunes such a trial, but a final training has no other trial to use."""
    winner = TrialRecord(0, "IALSRecommender", {"n_components": 4}, "complete", 0.1, {"ndcg": 0.1}, 2, 1.0)
    builder = SingularBuilder(1, Threads.choose(1, available=1))
    with pytest.raises(FeatureRidgeFailed, match="min_frequency"):
        train_trial(builder, winner, sparse.csr_matrix(np.eye(3)), {})
