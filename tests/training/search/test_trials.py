"""Records of the trials that used the budget."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.fitting.trial import TrialRecord
from svc.training.judging.recency import Fitted
from svc.training.judging.search_result import SearchResult
from svc.training.search import budget
from svc.training.search.trials import attributes, drop_worst_scores, records


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


def kept_of(*trials: tuple[str, float], most_bytes: int) -> dict[int, NDArray[np.float64]]:
    """Return the scores by user that are kept of these trials, by trial number.

    A trial is given by its algorithm and score. Its scores take 80 bytes.
    """
    by_user: dict[int, NDArray[np.float64]] = {}
    completed: list[TrialRecord] = []
    for number, (algorithm, score) in enumerate(trials):
        by_user[number] = np.full(10, score)
        completed.append(TrialRecord(number, algorithm, {}, "complete", score, {}, None, 0.0))
        drop_worst_scores(by_user, SearchResult(completed, 0.0, 0), most_bytes)
    return by_user


def test_the_worst_trials_lose_their_scores_first() -> None:
    """The worst trials are the least likely to win by chance. The best trial of each algorithm keeps its scores."""
    kept = kept_of(("a", 0.3), ("a", 0.5), ("b", 0.1), ("a", 0.4), ("a", 0.2), most_bytes=3 * 80)
    assert sorted(kept) == [1, 2, 3]
    assert sum(scores.nbytes for scores in kept.values()) <= 3 * 80


def test_the_scores_of_the_best_trial_of_each_algorithm_stay() -> None:
    """The scores of best trials may exceed the limit."""
    assert sorted(kept_of(("a", 0.5), ("a", 0.6), ("b", 0.7), most_bytes=0)) == [1, 2]
