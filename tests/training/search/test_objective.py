"""Scores of a search, compared with those of the served model."""

from __future__ import annotations

import pytest

from svc.training.fitting.train import train_trial
from svc.training.search.objective import TrialObjective
from tests.training.judging.test_task import BUILDER, TRIALS, problem


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", [name for name, trial in TRIALS.items() if not trial.parts])
def test_scores_of_the_search_agree_with_those_of_the_served_model(name: str, repeats: bool) -> None:
    """They agree up to float32, as they only serve to compare trials."""
    judged, holdout = TRIALS[name], problem(repeats=repeats)
    objective = TrialObjective(BUILDER, holdout)
    trained = train_trial(BUILDER, judged, holdout.train, {}, holdout.times)
    scores = objective.quick_scores(trained, judged.params).at(judged.recency)
    quick = holdout.evaluators.full.evaluate(objective.quick_ranker(scores))
    served = holdout.evaluators.full.evaluate(holdout.ranker_of(trained, judged))
    assert quick.metrics["ndcg"] == pytest.approx(served.metrics["ndcg"], abs=1e-3)
