"""Worker processes of a search: shared memory, their number, their end, and equal results."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from svc.progress import Progress
from svc.settings import Settings
from svc.training.run import TrainOptions, train
from svc.training.search import workers
from svc.training.search.fork_server import ForkServer
from svc.training.search.trial_task import TrialOutcome, TrialTask
from svc.training.search.workers import Parallelism, ProcessWorkers, attach, share, work
from tests.training.runs import Log, Make, header, payload, training
from tests.training.search.slow_objective import SlowObjective

ROOT = Path(__file__).parents[4]


class Bench:
    """Two worker processes, and the outcomes of their trials."""

    def __init__(self) -> None:
        self.workers = ProcessWorkers(SlowObjective([1.0, 2.0, 3.0]), 2, blas_threads=1)
        self.ended: queue.SimpleQueue[tuple[int, TrialOutcome]] = queue.SimpleQueue()

    def submit(self, number: int, **params: Any) -> int:
        task = TrialTask(number, "any", params)
        return self.workers.submit(task, lambda outcome: self.ended.put((number, outcome)))

    def run(self, number: int, **params: Any) -> TrialOutcome:
        worker = self.submit(number, **params)
        found, outcome = self.ended.get(timeout=90)
        assert found == number
        self.workers.release(worker)
        return outcome


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.workers.close()


def is_gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return True


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.system
def test_worker_processes_return_results_errors_curves_and_warnings(bench: Bench, log: Log) -> None:
    """A crash fails one trial. Another worker replaces the crashed one."""
    first = bench.run(0, scores=[0.1, 0.3])
    assert first.fitted is not None
    assert first.fitted.metrics["ndcg"] == 7.0
    assert first.fitted.metrics["pid"] != os.getpid()
    assert first.curve == {1: 0.1, 2: 0.3}
    assert bench.run(1, error="no").error == "ValueError: no"
    assert bench.run(2, warn="odd").fitted is not None
    assert [record["message"] for record in log if record["event"] == "python_warning"] == ["odd"]
    crashed = bench.run(3, exit=3)
    assert crashed.fitted is None
    assert "killed or crashed" in crashed.error
    again = bench.run(4)
    assert again.fitted is not None
    assert again.fitted.metrics["pid"] != first.fitted.metrics["pid"]


@pytest.mark.system
def test_an_abandoned_trial_ends_with_its_process(bench: Bench) -> None:
    """The process ends at once in any state. A new worker replaces it for the next trial."""
    begun = bench.run(0)
    assert begun.fitted is not None
    pid = int(begun.fitted.metrics["pid"])
    worker = bench.submit(1, seconds=600)
    bench.workers.abandon(worker)
    assert wait_until(lambda: is_gone(pid))
    assert bench.ended.get(timeout=30)[1].error
    assert bench.run(2).fitted is not None


@pytest.mark.system
def test_workers_end_with_a_process_that_is_killed() -> None:
    """After kill -9 of the training, no worker remains, even in the middle of a trial."""
    script = """
import os, sys, time
from svc.training.search.trial_task import TrialTask
from svc.training.search.workers import ProcessWorkers
from tests.training.search.slow_objective import SlowObjective
workers = ProcessWorkers(SlowObjective([1.0]), 1, blas_threads=1)
workers.submit(TrialTask(0, "any", {}), lambda outcome: print(int(outcome.fitted.metrics["pid"]), flush=True))
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert not is_gone(pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert wait_until(lambda: is_gone(pid))


def test_a_search_in_two_worker_processes_gives_the_model_of_a_search_in_this_process(make_recipe: Make) -> None:
    """All bits of the payload are equal. Each trial is the first of its algorithm, so no other result affects it."""
    space = {"IALS": {"n_components": [4, 16]}}  # more take seconds
    heads, payloads = [], []
    for parallelism in (1, 2):
        trials = {"algorithms": ["IALS", "CosineKNN"], "n_trials": 2, "search_space": space}
        loaded = make_recipe(training=training(**trials, parallelism=parallelism))
        with closing(ForkServer.from_fork(work)) as server:
            artifact = train(loaded, TrainOptions("r1", dev_unsigned=True), Settings(), Progress(), server).artifact
        heads.append(header(artifact)["tuning"])
        payloads.append(payload(artifact))
    assert [head["workers"] for head in heads] == [1, 2]
    assert heads[0]["trials"]["scores"] == heads[1]["trials"]["scores"]
    assert payloads[0] == payloads[1]


@pytest.mark.system
@pytest.mark.parametrize("server", ["None", "ForkServer.from_fork(work)"])
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_workers_ignore_ctrl_c_and_end_with_the_search(moment: str, server: str) -> None:
    """A terminal sends the signal to every process. `close` ends the workers, and standard error stays empty."""
    script = f"""
import os, signal, sys, time
from pathlib import Path
from svc.training.search.fork_server import ForkServer
from svc.training.search.trial_task import TrialTask
from svc.training.search.workers import ProcessWorkers, work
from tests.training.search.slow_objective import SlowObjective
signal.signal(signal.SIGINT, lambda *_: None)
workers = ProcessWorkers(SlowObjective([1.0]), 2, 1, {server})
places = [workers.submit(TrialTask(number, "any", {{"seconds": 600}}), lambda _: None) for number in range(2)]
while {moment == "training"} and any(workers.ready_at(place) is None for place in places):
    time.sleep(0.01)
os.killpg(0, signal.SIGINT)
time.sleep(0.3)
of_server = workers._server.pid
pids = [of_server, *Path(f"/proc/{{of_server}}/task/{{of_server}}/children").read_text().split()]
workers.close()
print(*pids, flush=True)
os._exit(0)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        start_new_session=True,
        timeout=120,
        check=True,
    )
    assert done.stderr == ""
    pids = [int(pid) for pid in done.stdout.split("\n")[-2].split()]
    assert len(pids) == 3 or moment == "starting"
    assert all(is_gone(pid) for pid in pids)


def test_a_shared_object_is_the_same_and_its_arrays_are_not_copied() -> None:
    """Arrays, matrices and repeated references are restored. A worker's change stays in that process."""
    matrix = sparse.random(200, 100, density=0.1, format="csr", dtype=np.float32, random_state=1)
    value = {"a": matrix, "again": matrix, "empty": np.zeros(0), "odd": np.arange(7)[::2], "text": "x"}
    memory, location = share(value)
    first, second = attach(location), attach(location)
    del memory
    assert (first["a"] != matrix).nnz == 0
    assert first["a"] is first["again"]
    assert first["odd"].tolist() == [0, 2, 4, 6]
    assert first["empty"].size == 0
    assert len(location.pickled) < 4096
    first["a"].data[:] = 0
    assert (second["a"] != matrix).nnz == 0


BIG = {"n_interactions": 1_000_000, "n_items": 10_000}
SMALL = {"n_interactions": 20_000, "n_items": 2_000}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "usable_cores", lambda: 8)


def choose(wanted: int | None, n_trials: int, size: dict[str, int]) -> tuple[int, int, bool]:
    found = Parallelism.choose(wanted, n_trials=n_trials, **size)
    return found.workers, found.threads, found.in_processes


def test_all_cores_work_and_each_trial_has_its_share() -> None:
    """There is at most one worker for four trials, because more workers would start trials before results exist."""
    assert choose(None, 40, BIG) == (8, 1, True)
    assert choose(None, 12, BIG) == (3, 2, True)
    assert choose(None, 1, BIG) == (1, 8, True)


def test_a_small_search_stays_in_this_process() -> None:
    """A small search costs about as much as the start of one worker."""
    assert choose(None, 40, SMALL) == (1, 8, False)


def test_the_number_of_the_recipe_applies_up_to_the_number_of_trials() -> None:
    """The recipe's number of workers also applies to small searches, and may exceed the cores."""
    assert choose(2, 40, SMALL) == (2, 4, True)
    assert choose(16, 40, BIG) == (16, 1, True)
    assert choose(16, 3, BIG) == (3, 2, True)
