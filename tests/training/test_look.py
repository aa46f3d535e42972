"""Cheap first looks: on which part of the data, who passes, and that a search with them finds the same winner."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from svc.training import look
from svc.training.evaluate import Evaluation
from svc.training.fit import Judge
from svc.training.look import Look, is_passed, make_look
from svc.training.objective import Builder, Threads, TrialObjective
from svc.training.trial_task import TrialTask, run_trial

N_OTHERS, N_JUDGED, N_ITEMS = 2_000, 6_000, 60


def problem() -> tuple[sparse.csr_matrix, Judge]:
    """Users of two tastes; each judged one has two held-out items of its own taste."""
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
    return train, Judge.of(Evaluation(heldout, offset=N_OTHERS, cutoff=5, seed=1), "ndcg", 1)


def test_a_look_sees_a_quarter_of_the_users_of_either_kind() -> None:
    """Rows stay with their held-out items and features; the same seed draws the same users."""
    train, judge = problem()
    marks = sparse.csr_matrix(np.arange(train.shape[0], dtype=np.float64)[:, np.newaxis] + 1)
    found, again = (make_look(train, judge, {"user": marks}, seed=5) for _ in range(2))
    assert found is not None
    assert again is not None
    assert found.judge.full.offset == N_OTHERS // 4
    assert found.train.shape == ((N_OTHERS + N_JUDGED) // 4, N_ITEMS)
    rows = found.features["user"].toarray().ravel().astype(int) - 1
    assert (found.train != train[rows]).nnz == 0
    judged = rows[found.judge.full.offset :] - N_OTHERS
    assert (found.judge.full.heldout != judge.full.heldout[judged]).nnz == 0
    assert (again.train != found.train).nnz == 0


def test_there_is_no_look_at_few_users() -> None:
    """A quarter of them could not tell one model from another."""
    train, judge = problem()
    few = Judge.of(Evaluation(judge.full.heldout[:900], offset=N_OTHERS, cutoff=5, seed=1), "ndcg", 1)
    assert make_look(train[: N_OTHERS + 900], few, {}, seed=5) is None


def test_the_better_half_passes() -> None:
    """While fewer than three looks are known, everyone does."""
    assert is_passed(0.0, (0.3, 0.4))
    assert is_passed(0.3, (0.1, 0.3, 0.5))
    assert not is_passed(0.29, (0.1, 0.3, 0.5))


def test_a_trial_that_fails_its_look_is_not_trained_in_full() -> None:
    """Its score stands as step 0 of the curve; what is trained is smaller and, with epochs, shorter."""
    train, judge = problem()
    objective = TrialObjective(
        Builder(1, Threads.choose(None, available=1)), train, judge, {}, make_look(train, judge, {}, seed=5)
    )
    good = {"top_k": 50, "shrinkage": 0.0, "feature_weighting": "NONE", "normalize": True}
    passed = run_trial(objective, TrialTask(0, "CosineKNNRecommender", good, (), (0.1, 0.1, 0.1)), lambda: None)
    assert passed.state == "complete"
    assert passed.curve.keys() == {look.STEP}
    refused = run_trial(objective, TrialTask(1, "CosineKNNRecommender", good, (), (0.9, 0.9, 0.9)), lambda: None)
    assert (refused.state, refused.curve) == ("pruned", passed.curve)
    pop = run_trial(objective, TrialTask(2, "TopPopRecommender", {}), lambda: None)
    assert (pop.state, pop.curve) == ("complete", {})
    ials = run_trial(objective, TrialTask(3, "IALSRecommender", {"n_components": 4}), lambda: None)
    assert ials.fitted is not None
    assert ials.curve.keys() == {look.STEP, *range(1, max(ials.curve) + 1)}
    assert isinstance(objective.look, Look)
    epochs = objective.look.epochs("IALSRecommender")
    assert epochs is not None
    assert epochs.most == 3
