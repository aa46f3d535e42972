"""Training of one recommender: seeds, threads, epochs, patience, singular systems, signals and self-weights."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from irspack.recommenders.ials import FeatureRidgeCholeskyError
from scipy import sparse

from svc.cli.common import Interrupted, interrupts
from svc.errors import FeatureRidgeFailed
from svc.training.fitting.algorithms.registry import Epochs
from svc.training.fitting.train import (
    Builder,
    run_in_thread,
    train_epochs,
    train_to_best_epoch,
    train_trial,
    with_diagonal,
)
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.rankers import ScoreRanker
from svc.training.judging.recency import Fitted, RecencySearch, judge


class Singular:
    """A recommender whose training raises the error of a singular system."""

    def start_learning(self) -> None:
        raise FeatureRidgeCholeskyError("not positive definite")

    learn = start_learning


class SingularBuilder(Builder):
    def build(self, *_: Any) -> Any:
        return Singular()


def test_a_final_training_with_a_singular_system_says_what_to_change() -> None:
    """The search prunes a trial with this error. A final training has no other trial to use."""
    winner = TrialRecord(0, "IALSRecommender", {"n_components": 4}, "complete", 0.1, {"ndcg": 0.1}, 2, 1.0)
    builder = SingularBuilder(1, 1, 1)
    with pytest.raises(FeatureRidgeFailed, match="min_frequency"):
        train_trial(builder, winner, sparse.csr_matrix(np.eye(3)), {})


@pytest.mark.parametrize(
    ("name", "seed", "n_threads"),
    [
        ("IALSRecommender", 5, 1),
        ("SLIMRecommender", None, 1),
        ("CosineKNNRecommender", None, 3),
        ("RP3betaRecommender", None, 3),
        ("TruncatedSVDRecommender", 5, None),
        ("TopPopRecommender", None, None),
    ],
)
def test_a_recommender_has_the_seed_and_the_threads_of_its_algorithm(
    name: str, seed: int | None, n_threads: int | None
) -> None:
    """A seed that is too large for the algorithm loses its upper bits.

    Algorithms whose bits depend on the number of threads have one by default, and all others one for each core. A
    configured number applies to both kinds. Parameters that only the search uses are not passed to the recommender.
    """
    matrix = sparse.csr_matrix(np.eye(40, 30, dtype=np.float32))
    times = sparse.csr_matrix(np.eye(40, 30, dtype=np.int64))
    for wanted, expected in ((None, n_threads), (2, n_threads and 2)):
        builder = Builder((1 << 31) + 5, wanted, 3)
        recommender = builder.build(name, matrix, {"half_life": "7d", "self_weight": 0.5}, {}, times)
        assert (getattr(recommender, "random_seed", None), getattr(recommender, "n_threads", None)) == (seed, expected)
        assert recommender.X_train_all.shape == (40, 30)


N_USERS, N_ITEMS = 4, 6
EMPTY = sparse.csr_matrix((N_USERS, N_ITEMS), dtype=np.float32)


class Learner:
    """A recommender that ranks the held-out item first for `course[epoch]` users."""

    def __init__(self, course: list[int]) -> None:
        self.course = course
        self.epoch = self.saved = 0
        self.learned = False
        self.X_train_all = EMPTY

    def start_learning(self) -> None:
        self.epoch = 0

    def run_epoch(self) -> None:
        self.epoch += 1
        self.last = self.epoch

    def save_state(self) -> None:
        self.saved = self.epoch

    def load_state(self) -> None:
        self.epoch = self.saved

    def learn(self) -> Learner:
        self.learned, self.epoch = True, 1
        return self

    def get_score(self, rows: np.ndarray) -> np.ndarray:
        scores = np.tile(np.arange(N_ITEMS, 0, -1.0), (N_USERS, 1))
        scores[: self.course[self.epoch - 1], N_ITEMS - 1] = 99.0
        return scores[rows]


@pytest.fixture
def evaluators() -> Evaluators:
    """Return evaluators at cutoff 1, with the last item of each user held out."""
    columns = np.full(N_USERS, N_ITEMS - 1)
    heldout = sparse.csr_matrix((np.ones(N_USERS, np.float32), (np.arange(N_USERS), columns)), shape=EMPTY.shape)
    return Evaluators.of(Evaluator(heldout, offset=0, cutoff=1), "hit", 1)


def ranker(learner: Learner) -> ScoreRanker:
    return ScoreRanker(learner.get_score, EMPTY)


def trained(learner: Learner, epochs: Epochs | None, evaluators: Evaluators) -> tuple[Fitted, list[tuple[int, float]]]:
    reported: list[tuple[int, float]] = []

    def score(learner: Learner) -> float:
        sample = evaluators.sample
        return float(sample.by_user(sample.rankings(ranker(learner)), evaluators.metric).mean())

    best = train_to_best_epoch(learner, epochs, score=score, report=lambda *at: reported.append(at))
    search = RecencySearch((0.0,), lambda _: ranker(learner))
    fitted = judge(search, evaluators, lambda score: reported.append((0, score)))
    return replace(fitted, epochs=best), reported


def test_the_best_epoch_counts_and_patience_ends_the_training(evaluators: Evaluators) -> None:
    """Patience starts anew after each gain. The scores are those of the best epoch."""
    learner = Learner([1, 2, 2, 1, 3, 2, 2, 2, 4])
    fitted, reported = trained(learner, Epochs(most=9, every=1, patience=3), evaluators)
    assert (fitted.epochs, fitted.metrics["hit"]) == (5, 0.75)
    assert reported[:5] == [(1, 0.25), (2, 0.5), (3, 0.5), (4, 0.25), (5, 0.75)]
    assert (learner.last, learner.epoch) == (8, 5)


def test_only_every_nth_epoch_is_scored(evaluators: Evaluators) -> None:
    """If every second epoch is scored, the last of five epochs is not scored."""
    fitted, reported = trained(Learner([1, 2, 3, 1, 4]), Epochs(most=5, every=2, patience=9), evaluators)
    assert reported == [(2, 0.5), (4, 0.25)]
    assert fitted.epochs == 2


def test_a_recommender_without_epochs_learns_once(evaluators: Evaluators) -> None:
    """The recommender is evaluated once, on all validation users."""
    learner = Learner([2])
    fitted, reported = trained(learner, None, evaluators)
    assert learner.learned
    assert (fitted.epochs, fitted.metrics["hit"], reported) == (None, 0.5, [])


def test_a_final_training_runs_the_best_number_of_epochs() -> None:
    """No epoch of the final training is scored."""
    assert train_epochs(Learner([]), 7).epoch == 7
    assert train_epochs(Learner([]), None).learned


def test_run_in_thread_returns_the_result_or_raises_the_error() -> None:
    assert run_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 // 0)


def test_a_signal_interrupts_run_in_thread() -> None:
    """The work in the thread never ends by itself, so only the signal can end the wait."""
    until_tested = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        until_tested.wait()

    with pytest.raises(Interrupted), interrupts():
        run_in_thread(work)
    until_tested.set()


@pytest.mark.parametrize("is_sparse", [True, False])
def test_the_diagonal_is_a_multiple_of_the_largest_other_weight(is_sparse: bool) -> None:
    """The earlier diagonal does not matter. A row without a positive other weight gets 0. Other weights stay."""
    rng = np.random.default_rng(3)
    given = np.round(rng.normal(size=(30, 30)), 2).astype(np.float32) * (rng.random((30, 30)) < 0.3)
    given[4] = -np.abs(given[4])
    given[5] = 0.0
    given[5, 5] = 2.0
    for self_weight in (0.0, 0.3, 1.0, 100.0):
        found = with_diagonal(sparse.csr_matrix(given) if is_sparse else given.copy(), self_weight)
        assert sparse.issparse(found) == is_sparse
        dense = found.toarray() if is_sparse else found
        assert dense.dtype == np.float32
        for row in range(30):
            others = np.delete(given[row], row)
            assert dense[row, row] == pytest.approx(self_weight * max(others.max(), 0.0), rel=1e-6)
            np.testing.assert_array_equal(np.delete(dense[row], row), others)
