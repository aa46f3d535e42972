"""Parameters of a trial."""

from __future__ import annotations

from svc.training.fitting.trial import TrialRecord

IALS = TrialRecord(0, "IALSRecommender", {"n_components": 4}, "complete", 0.1, {"ndcg": 0.1}, 7, 1.0, recency=0.2)
POPULARITY = TrialRecord(1, "TopPopRecommender", {}, "complete", 0.1, {"ndcg": 0.1}, None, 1.0)


def test_the_final_parameters_have_the_epochs_that_validation_chose() -> None:
    assert IALS.final_params == {"n_components": 4, "train_epochs": 7}
    assert POPULARITY.final_params == {}
