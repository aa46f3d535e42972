"""The loop of a search: budget, time limits, interrupts, and several processes on one study."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from svc.progress import Progress
from svc.training.fitting.algorithms.registry import Space
from svc.training.judging.recency import Fitted
from svc.training.search import budget
from svc.training.search.budget import TrialPlan
from svc.training.search.loop import Search
from svc.training.search.sampler import AlgorithmSampler
from svc.training.search.storage import StudyStorage, locate, open_storage
from svc.training.search.trial_task import TrialPruned
from svc.training.search.workers import Workers
from tests.training.runs import Log

KNN, POP, SLIM = "CosineKNNRecommender", "TopPopRecommender", "DenseSLIMRecommender"
SPACES = {
    KNN: Space(
        {"top_k": IntDistribution(1, 50), "feature_weighting": CategoricalDistribution(("NONE", "BM_25"))},
        ({"top_k": 25, "feature_weighting": "NONE"},),
    ),
    POP: Space(),
    SLIM: Space({"reg": FloatDistribution(1.0, 1e4, log=True)}, ({"reg": 100.0},)),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Silence Optuna's own log lines."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield


class Peak:
    """An objective with a maximum, which records the parameters that were trained."""

    def __init__(self, act: Callable[[str, dict], None] = lambda *_: None) -> None:
        self.trained: list[tuple[str, dict]] = []
        self.act = act

    def __call__(self, algorithm: str, params: dict, report: Any) -> Fitted:
        self.trained.append((algorithm, params))
        self.act(algorithm, params)
        score = 0.1 if algorithm == POP else 1.0 / (1.0 + abs(params.get("top_k", 30) - 17))
        return Fitted({"ndcg": score}, None)


class Losing(Peak):
    """An objective in which DenseSLIM scores almost 0."""

    def __call__(self, algorithm: str, params: dict, report: Any) -> Fitted:
        fitted = super().__call__(algorithm, params, report)
        return Fitted({"ndcg": 0.001}, None) if algorithm == SLIM else fitted


class Slow(Peak):
    """An objective in which a ranking takes 0.1 ms for each neighbour of the model."""

    def __call__(self, algorithm: str, params: dict, report: Any) -> Fitted:
        fitted = super().__call__(algorithm, params, report)
        return replace(fitted, rank_ms=0.1 * params.get("top_k", 1))


def make(
    plan: dict[str, int],
    objective: Any,
    *,
    storage: StudyStorage | None = None,
    seed: int = 1,
    workers: int = 1,
    **limits: Any,
) -> Search:
    storage = storage or open_storage(locate("", Path()))
    shares = TrialPlan(plan, {name: len(SPACES[name]) for name in plan})
    sampler = AlgorithmSampler(shares, SPACES, seed)
    study = optuna.create_study(
        study_name="svc_small_r", storage=storage.backend, direction="maximize", load_if_exists=True
    )
    return Search(study, storage, sampler, Workers(objective, workers), "ndcg", Progress(), **limits)


def test_the_budget_is_used_exactly_and_the_best_wins() -> None:
    """Algorithms take turns until every share is used. The trial with the highest score wins."""
    objective = Peak()
    result = make({KNN: 12, POP: 1}, objective).run()
    assert len(result.trials) == 13
    assert [name for name, _ in objective.trained[:3]] == [KNN, POP, KNN]
    assert result.best.score == max(trial.score or 0 for trial in result.trials)
    assert set(result.best_per_algorithm) == {KNN, POP}


def test_the_same_seed_gives_the_same_search() -> None:
    """Clocks, hashes and earlier searches do not affect the parameters. Another seed gives others."""
    runs = [Peak(), Peak(), Peak()]
    for objective, seed in zip(runs, (1, 1, 2), strict=True):
        make({KNN: 8, SLIM: 4}, objective, seed=seed).run()
    assert runs[0].trained == runs[1].trained
    assert runs[0].trained != runs[2].trained


def test_a_failing_trial_does_not_end_the_search(log: Log) -> None:
    """The failure is logged and uses one trial of the budget."""

    def act(algorithm: str, params: dict) -> None:
        if algorithm == SLIM:
            raise MemoryError("too large")

    result = make({KNN: 2, SLIM: 2}, Peak(act)).run()
    assert (len(result.completed), result.count("failed")) == (2, 2)
    assert [record["error"] for record in log if record["event"] == "trial_failed"] == ["MemoryError: too large"] * 2


def test_parameters_that_cannot_be_trained_are_pruned() -> None:
    """Such trials do not count as failed."""

    def act(algorithm: str, params: dict) -> None:
        if params.get("top_k", 0) > 25:
            raise TrialPruned("ridge")

    result = make({KNN: 8}, Peak(act)).run()
    assert result.count("pruned") > 0
    assert len(result.trials) == 8


def test_a_trial_whose_ranking_takes_too_long_cannot_win(log: Log) -> None:
    """The trial counts as pruned and as too slow. The best other trial wins with a lower score."""
    result = make({KNN: 12}, Slow(), max_rank_ms=1.5).run()
    assert result.n_too_slow > 0
    assert all(trial.state == "pruned" for trial in result.trials if trial.too_slow)
    assert {trial.too_slow for trial in result.trials if (trial.rank_ms or 0.0) > 1.5} == {True}
    assert max(trial.rank_ms or 0.0 for trial in result.completed) <= 1.5
    assert result.best.params["top_k"] <= 15
    done = [record for record in log if record["event"] == "trial_done"]
    assert [record["rank_ms"] for record in done] == [trial.rank_ms for trial in result.trials]
    assert sum(record.get("too_slow", False) for record in done) == result.n_too_slow


def test_a_trial_over_its_time_limit_is_abandoned(log: Log) -> None:
    """The trial counts as orphaned and uses the budget. Its outcome is ignored."""
    ended = threading.Event()

    def act(algorithm: str, params: dict) -> None:
        if algorithm == SLIM:
            ended.wait(60)

    result = make({KNN: 3, SLIM: 1}, Peak(act), per_trial_timeout_s=0.3).run()
    assert result.n_orphaned == 1
    assert (len(result.completed), result.count("failed")) == (3, 1)
    ended.set()
    assert any(record["event"] == "trial_timed_out" for record in log)


def test_the_search_ends_when_its_time_is_over_but_not_without_a_model() -> None:
    """The search waits for its first complete trial, and starts no other. A later trial is abandoned."""
    gate = threading.Event()
    objective = Peak(lambda *_: gate.wait(0.5) and None)
    result = make({KNN: 50}, objective, timeout_s=0.01).run()
    assert len(result.completed) == 1
    later = Peak(lambda *_: len(later.trained) > 1 and gate.wait(5) and None)
    result = make({KNN: 50}, later, timeout_s=0.3).run()
    assert len(result.completed) == 1
    gate.set()


def test_several_trials_run_at_once() -> None:
    """Three trials meet at a barrier, which fewer than three workers could not pass."""
    barrier = threading.Barrier(3, timeout=20)
    result = make({SLIM: 6}, Peak(lambda *_: barrier.wait() and None), workers=3).run()
    assert len(result.completed) == 6


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], StudyStorage]]:
    """Return a function that opens the same shared storage at each call."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(open_storage(locate("s.db", tmp_path))))


@pytest.mark.system
def test_an_interrupt_gives_running_trials_back(opened: Callable[[], StudyStorage]) -> None:
    """A resumed search finds the finished trials, and may run others in place of the interrupted ones."""

    class Impatient(Progress):
        def advance(self, done: int, total: int, note: str = "", *, rows: int = 0) -> None:
            if done == 2:
                raise KeyboardInterrupt

    storage = opened()
    search = make({KNN: 5}, Peak(), storage=storage)
    search.progress = Impatient()
    with pytest.raises(KeyboardInterrupt):
        search.run()
    again = Peak()
    result = make({KNN: 5}, again, storage=opened()).run()
    assert len(result.completed) == 5
    assert len(again.trained) == 3


@pytest.mark.parametrize("started", [True, False])
def test_trials_of_a_dead_process_are_tried_again(opened: Callable[[], StudyStorage], *, started: bool) -> None:
    """The owner's pid shows the death at once, without waiting for a heartbeat.

    The step that creates a trial stores its owner, so a trial has one although it has not started.
    """
    storage = opened()
    lost = make({KNN: 4}, Peak(), storage=storage)
    trial = storage.new_trial(lost.study, {budget.OWNER: lost._identity.rpartition("|")[0] + "|1"})
    assert trial.user_attrs.keys() == {budget.OWNER}
    if started:
        trial.set_user_attr(budget.ALGORITHM, KNN)
    result = make({KNN: 4}, Peak(), storage=opened()).run()
    assert len(result.completed) == 4
    assert lost.study.get_trials()[0].state is optuna.trial.TrialState.FAIL


def test_the_order_in_which_trials_end_does_not_change_the_search() -> None:
    """Trials of random duration in several threads always have the same parameters."""
    found = []
    for seed in range(3):
        delays = random.Random(seed)
        lock = threading.Lock()

        def act(*_: Any, delays: random.Random = delays, lock: threading.Lock = lock) -> None:
            with lock:
                seconds = delays.choice((0.0, 0.0, 0.004, 0.02))
            time.sleep(seconds)

        result = make({KNN: 14, SLIM: 10}, Peak(act), workers=3).run()
        found.append([(trial.number, trial.algorithm, trial.params, trial.score) for trial in result.trials])
    assert all(each == found[0] for each in found)


def test_algorithms_that_need_much_memory_wait_for_each_other() -> None:
    """At most one of three workers trains DenseSLIM. The others continue."""
    running, most = 0, 0
    lock = threading.Lock()

    def act(algorithm: str, params: dict) -> None:
        nonlocal running, most
        if algorithm != SLIM:
            return
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1

    result = make({KNN: 6, SLIM: 6}, Peak(act), workers=3, at_once={SLIM: 1}).run()
    assert len(result.completed) == 12
    assert most == 1


def test_an_algorithm_that_is_clearly_behind_gives_its_trials_away() -> None:
    """The better algorithm gets most of the budget. The same seed decides the same."""
    runs = []
    for _ in range(2):
        result = make({KNN: 12, SLIM: 12}, Losing()).run()
        assert len(result.trials) == 24
        runs.append([(trial.algorithm, trial.params) for trial in result.trials])
    assert runs[0] == runs[1]
    assert sum(1 for name, _ in runs[0] if name == SLIM) <= 6
