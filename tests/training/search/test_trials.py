"""Records of the trials that used the budget."""

from __future__ import annotations

from typing import Any

from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.judging.recency import Fitted
from svc.training.search import budget
from svc.training.search.trials import attributes, records


def trial(state: TrialState, **stored: Any) -> FrozenTrial:
    return create_trial(
        state=state,
        value=0.5 if state is TrialState.COMPLETE else None,
        params={"IALS.size": 8},
        distributions={"IALS.size": IntDistribution(1, 9)},
        user_attrs={budget.ALGORITHM: "IALS", **stored},
    )


def test_a_record_has_the_facts_that_its_trial_stored() -> None:
    fitted = Fitted({"ndcg": 0.5}, epochs=7, recency=0.25, rank_ms=1.5)
    (record,) = records([trial(TrialState.COMPLETE, **attributes(fitted, 2.34567))])
    assert (record.algorithm, record.params, record.state, record.score) == ("IALS", {"size": 8}, "complete", 0.5)
    assert (record.metrics, record.epochs, record.recency, record.rank_ms) == ({"ndcg": 0.5}, 7, 0.25, 1.5)
    assert (record.seconds, record.too_slow) == (2.346, False)


def test_running_and_abandoned_trials_have_no_record() -> None:
    """A trial that failed by an error has a record without a score."""
    found = records([trial(TrialState.RUNNING), trial(TrialState.FAIL), trial(TrialState.FAIL, **{budget.SPENT: True})])
    assert [(record.state, record.score, record.rank_ms) for record in found] == [("failed", None, None)]
