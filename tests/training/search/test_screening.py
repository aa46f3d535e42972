"""Screening: the trials that pass, and the work that others save."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from svc.training.fitting.train import Builder, Threads
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.task import Holdout
from svc.training.search import screening
from svc.training.search.objective import TrialObjective
from svc.training.search.processes.trial_task import TrialTask, run_trial
from svc.training.search.screening import is_passed

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


def test_the_better_half_passes() -> None:
    """While fewer than three scores are known, all trials pass."""
    assert is_passed(0.0, (0.3, 0.4))
    assert is_passed(0.3, (0.1, 0.3, 0.5))
    assert not is_passed(0.29, (0.1, 0.3, 0.5))


def test_a_trial_that_fails_screening_is_not_evaluated_on_all_users() -> None:
    """Its score is step 0 of the curve. Without more users than a screening has, there is no screening."""
    train, evaluators = problem()
    objective = TrialObjective(Builder(1, Threads.choose(None, available=1)), Holdout(train, evaluators, {}))
    good = {"top_k": 50, "shrinkage": 0.0, "feature_weighting": "NONE", "normalize": True}
    passed = run_trial(objective, TrialTask(0, "CosineKNNRecommender", good, (), (0.1, 0.1, 0.1)), lambda: None)
    assert passed.state == "complete"
    assert passed.curve.keys() == {screening.SCREENING_STEP}
    refused = run_trial(objective, TrialTask(1, "CosineKNNRecommender", good, (), (0.9, 0.9, 0.9)), lambda: None)
    assert (refused.state, refused.curve) == ("pruned", passed.curve)
    ials = run_trial(objective, TrialTask(3, "IALSRecommender", {"n_components": 4}), lambda: None)
    assert ials.fitted is not None
    assert screening.SCREENING_STEP not in ials.curve
    few = Evaluators.of(Evaluator(evaluators.full.heldout[:900], offset=N_OTHERS, cutoff=5), "ndcg", 1)
    objective = TrialObjective(objective.builder, Holdout(train[: N_OTHERS + 900], few, {}))
    assert run_trial(objective, TrialTask(4, "CosineKNNRecommender", good), lambda: None).curve == {}
