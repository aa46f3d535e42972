"""One trial in a worker: its outcome, its screening, and its pruning between epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial
from scipy import sparse

from svc.training.fitting.train import Builder
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.recency import Fitted
from svc.training.judging.task import Holdout
from svc.training.search import budget
from svc.training.search.objective import TrialObjective
from svc.training.search.trial_task import (
    SCREENING_STEP,
    TrialPruned,
    TrialTask,
    is_outclassed,
    known_curves,
    run_trial,
)
from tests.training.search.test_loop import KNN, SLIM

FITTED = Fitted({"ndcg": 0.5}, 3)


class Objective:
    """Reports the scores in `course`, then raises or returns `end`."""

    def __init__(self, course: dict[int, float], end: Exception | Fitted = FITTED) -> None:
        self.course = course
        self.end = end

    def __call__(self, algorithm: str, params: Any, report: Callable[[int, float], None]) -> Fitted:
        for epoch, score in self.course.items():
            report(epoch, score)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def task(**more: Any) -> TrialTask:
    return TrialTask(number=1, algorithm="A", params={}, **more)


def test_a_complete_trial_has_its_result_and_its_curve() -> None:
    """The outcome also has the duration."""
    outcome = run_trial(Objective({1: 0.1, 2: 0.3}), task())
    assert (outcome.fitted, outcome.error, outcome.curve) == (FITTED, "", {1: 0.1, 2: 0.3})
    assert outcome.seconds >= 0


@pytest.mark.parametrize(
    ("end", "error"),
    [(TrialPruned("too hopeless"), ""), (ValueError("no such shape"), "ValueError: no such shape")],
)
def test_parameters_that_cannot_be_trained_prune_their_trial_and_a_defect_fails_it(end: Exception, error: str) -> None:
    """Only the outcome of a defect has an error."""
    outcome = run_trial(Objective({1: 0.1}, end), task())
    assert (outcome.fitted, outcome.error) == (None, error)


def test_a_trial_that_is_worse_than_earlier_ones_is_pruned_between_epochs() -> None:
    """Only trials that were known when this one was suggested count as earlier."""
    known = tuple({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5} for _ in range(5))
    outcome = run_trial(Objective(dict.fromkeys(range(1, 6), 0.1)), task(known_curves=known))
    assert (outcome.fitted, outcome.error, list(outcome.curve)) == (None, "", [1, 2, 3, 4])


N_OTHERS, N_JUDGED, N_ITEMS = 2_000, 6_000, 60


def problem() -> tuple[sparse.csr_matrix, Evaluators]:
    """Return users of two tastes. Each evaluated user has two held-out items of the same taste."""
    rng = np.random.default_rng(3)
    rows, columns, held = [], [], []
    for user in range(N_OTHERS + N_JUDGED):
        items = rng.permutation(N_ITEMS // 2)[:8] * 2 + user % 2
        rows += [user] * 6
        columns += items[:6].tolist()
        if user >= N_OTHERS:
            held += [(user - N_OTHERS, item) for item in items[6:]]
    train = sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=(N_OTHERS + N_JUDGED, N_ITEMS))
    users, items = zip(*held, strict=True)
    heldout = sparse.csr_matrix((np.ones(len(held), np.float32), (users, items)), shape=(N_JUDGED, N_ITEMS))
    return train, Evaluators.of(Evaluator(heldout, offset=N_OTHERS, cutoff=5), "ndcg", 1)


def screenings(*scores: float) -> tuple[dict[int, float], ...]:
    return tuple({SCREENING_STEP: score} for score in scores)


def test_the_better_half_passes_the_screening() -> None:
    """While fewer than three scores are known, every trial passes."""
    assert not is_outclassed({SCREENING_STEP: 0.0}, screenings(0.3, 0.4))
    assert not is_outclassed({SCREENING_STEP: 0.3}, screenings(0.1, 0.3, 0.5))
    assert is_outclassed({SCREENING_STEP: 0.29}, screenings(0.1, 0.3, 0.5))


def test_a_trial_that_fails_screening_is_not_evaluated_on_all_users() -> None:
    """The screening score is step 0 of the curve.

    There is no screening unless the evaluation has more users than a screening.
    """
    train, evaluators = problem()
    objective = TrialObjective(Builder(1, None, 1), Holdout(train, evaluators, {}))
    good = {"top_k": 50, "shrinkage": 0.0, "feature_weighting": "NONE", "normalize": True}
    passed = run_trial(objective, TrialTask(0, "CosineKNNRecommender", good, screenings(0.1, 0.1, 0.1)))
    assert passed.fitted is not None
    assert passed.curve.keys() == {SCREENING_STEP}
    refused = run_trial(objective, TrialTask(1, "CosineKNNRecommender", good, screenings(0.9, 0.9, 0.9)))
    assert (refused.fitted, refused.error, refused.curve) == (None, "", passed.curve)
    ials = run_trial(objective, TrialTask(3, "IALSRecommender", {"n_components": 4}))
    assert ials.fitted is not None
    assert SCREENING_STEP not in ials.curve
    few = Evaluators.of(Evaluator(evaluators.full.heldout[:900], offset=N_OTHERS, cutoff=5), "ndcg", 1)
    objective = TrialObjective(objective.builder, Holdout(train[: N_OTHERS + 900], few, {}))
    assert run_trial(objective, TrialTask(4, "CosineKNNRecommender", good)).curve == {}


def test_trials_are_compared_with_complete_ones_and_with_all_that_were_screened() -> None:
    """Only trials of the same algorithm count.

    A trial that was pruned between epochs does not count, because its final score is unknown.
    """
    study = optuna.create_study(direction="maximize")
    for algorithm, state, curve in (
        (KNN, TrialState.COMPLETE, {0: 0.9}),
        (KNN, TrialState.PRUNED, {0: 0.2}),
        (KNN, TrialState.FAIL, {0: 0.7}),
        (KNN, TrialState.COMPLETE, {}),
        (SLIM, TrialState.COMPLETE, {1: 0.5, 2: 0.6}),
        (SLIM, TrialState.PRUNED, {1: 0.1, 2: 0.1}),
    ):
        value = 0.5 if state is TrialState.COMPLETE else None
        attributes = {budget.ALGORITHM: algorithm}
        study.add_trial(create_trial(state=state, value=value, user_attrs=attributes, intermediate_values=curve))
    assert known_curves(study.trials, KNN) == ({0: 0.9}, {0: 0.2})
    assert known_curves(study.trials, SLIM) == ({1: 0.5, 2: 0.6},)


def test_a_trial_is_pruned_if_its_best_epoch_is_below_the_median_at_the_same_epoch() -> None:
    """Later epochs of other trials do not count. The first three epochs of a trial never prune it."""
    others = tuple(dict(enumerate(scores, start=1)) for scores in ((0.1, 0.1, 0.5, 0.4, 0.9), (0.4,) * 5, (0.6,) * 5))
    assert is_outclassed({1: 0.1, 2: 0.45, 3: 0.2, 4: 0.2}, others)
    assert not is_outclassed({1: 0.1, 2: 0.5, 3: 0.2, 4: 0.2}, others)
    assert not is_outclassed({1: 0.1, 2: 0.2, 3: 0.2}, others)
    assert not is_outclassed({1: 0.1, 2: 0.2, 3: 0.2, 4: 0.2}, others[:2])
