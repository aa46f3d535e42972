"""Trains trials in worker processes, or in threads of this process if the data is too small for processes to pay off.

A worker process holds its own copy of irspack and one trained recommender at a time; the matrices of the search are
mapped, not copied. A process can be ended at any moment, also while irspack's C++ holds its interpreter lock, so a time
limit or an interrupt waits for nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from svc import events, logs
from svc.model.threads import VARIABLES
from svc.training.search.fit import Stop
from svc.training.search.processes.shared_object import MemoryLocation, SharedObject, attach
from svc.training.search.processes.trial_task import Objective, TrialOutcome, TrialTask, run_trial

Ended = Callable[[TrialOutcome], None]
_Answer = tuple[TrialOutcome, list[tuple[str, str]]]
_KILLED = "its worker process was killed or crashed; if memory ran out, lower training.parallelism"
_PR_SET_PDEATHSIG = 1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Workers(Protocol):
    """Trains at most `count` trials at once. Used from one thread."""

    @property
    def count(self) -> int: ...

    def submit(self, task: TrialTask, ended: Ended) -> int:
        """Begin `task` and return the worker that does it; `ended` is called from another thread.

        The worker is busy until `release` or `abandon`.
        """
        ...

    def ready_at(self, worker: int) -> float | None:
        """The monotonic time since which `worker` can train; None while it starts."""
        ...

    def release(self, worker: int) -> None:
        """Take `worker` back after its trial has ended."""
        ...

    def abandon(self, worker: int) -> None:
        """Abandon the trial of `worker`; its outcome no longer matters."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class ThreadWorkers:
    """Workers in threads of this process. An abandoned trial ends at its next epoch."""

    def __init__(self, objective: Objective, count: int = 1) -> None:
        self.count = count
        self._objective = objective
        self._stops: dict[int, threading.Event] = {}

    def submit(self, task: TrialTask, ended: Ended) -> int:
        stop = threading.Event()

        def check() -> None:
            if stop.is_set():
                raise Stop

        def work() -> None:
            ended(run_trial(self._objective, task, check))

        self._stops[task.number] = stop
        threading.Thread(target=work, name=f"trial-{task.number}", daemon=True).start()
        return task.number

    def ready_at(self, worker: int) -> float | None:  # noqa: ARG002 - threads are ready at once
        return 0.0

    def release(self, worker: int) -> None:
        del self._stops[worker]

    def abandon(self, worker: int) -> None:
        self._stops.pop(worker).set()

    def close(self) -> None:
        for worker in list(self._stops):
            self.abandon(worker)


@dataclass(slots=True, eq=False)
class _Worker:
    """A pool of one process: ending it ends one trial and leaves the others alone."""

    pool: Any
    pid: int | None = None
    ready_at: float | None = None
    ended: bool = False

    def kill(self) -> None:
        """End the process now, also while it starts. The pool then cleans up after it."""
        self.ended = True
        # `_processes` holds the process from its start; the pool's own kill fails while a task is being sent.
        for pid in [self.pid] if self.pid is not None else list(self.pool._processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def started(self, first: Future[int]) -> None:
        """Called in a thread of the pool."""
        if first.exception() is None:
            self.pid, self.ready_at = first.result(), time.monotonic()
        if self.ended:
            self.kill()


class ProcessWorkers:
    """Workers in processes of their own, each with `blas_threads`. The first trials start them."""

    def __init__(self, objective: Objective, count: int, blas_threads: int) -> None:
        self.count = count
        self._objective = objective
        self._blas_threads = blas_threads
        self._shared: SharedObject | None = None
        self._workers: dict[int, _Worker] = {}
        self._busy: set[int] = set()

    def submit(self, task: TrialTask, ended: Ended) -> int:
        number = next(number for number in range(self.count) if number not in self._busy)
        shared = self._begin()
        with _signals_blocked():
            worker = self._worker(number, shared)
            future = worker.pool.submit(_work, task)
        self._busy.add(number)
        future.add_done_callback(lambda done: ended(self._outcome(worker, done)))
        return number

    def ready_at(self, worker: int) -> float | None:
        return self._workers[worker].ready_at

    def release(self, worker: int) -> None:
        self._busy.discard(worker)
        if self._workers[worker].ended:
            del self._workers[worker]

    def abandon(self, worker: int) -> None:
        self._busy.discard(worker)
        self._workers.pop(worker).kill()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.kill()
        self._workers.clear()
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _begin(self) -> SharedObject:
        """Start the resource trackers and share the objective: the first worker needs both."""
        if self._shared is None:
            self._shared = SharedObject.of(self._objective)
            _start_trackers()  # not with signals blocked: it would unblock them for the workers
            # The pool looks for children of a worker with pgrep; workers have none, and images may have no pgrep.
            warnings.filterwarnings("ignore", message="Failed to kill subprocesses")
        return self._shared

    def _worker(self, number: int, shared: SharedObject) -> _Worker:
        from joblib.externals.loky import ProcessPoolExecutor

        if number not in self._workers:
            pool = ProcessPoolExecutor(
                max_workers=1,
                initializer=_prepare,
                initargs=(shared.location, os.getpid()),
                env={name: os.environ.get(name, str(self._blas_threads)) for name in VARIABLES},
            )
            self._workers[number] = _Worker(pool)
            pool.submit(_warm_up).add_done_callback(self._workers[number].started)
        return self._workers[number]

    def _outcome(self, worker: _Worker, done: Future[_Answer]) -> TrialOutcome:
        """Called in a thread of the worker's pool."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        error = done.exception()
        if isinstance(error, BrokenProcessPool):
            worker.ended = True
            return TrialOutcome("failed", 0.0, error=_KILLED)
        if error is not None:
            return TrialOutcome("failed", 0.0, error=f"{type(error).__name__}: {error}")
        outcome, warned = done.result()
        for category, message in warned:
            logs.emit(events.PYTHON_WARNING, category=category, message=message)
        return outcome


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block the signals of a terminal for processes that start within: Ctrl-C reaches the whole process group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_trackers() -> None:
    """Start the two resource trackers, which remove semaphores after a training that was killed, without warnings.

    Their warnings would bypass the log and go to standard error.
    """
    from multiprocessing import resource_tracker as own

    from joblib.externals.loky.backend import resource_tracker as of_pool

    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        own.ensure_running()
        of_pool.ensure_running()
    finally:
        os.environ.pop("PYTHONWARNINGS")
        if before is not None:
            os.environ["PYTHONWARNINGS"] = before


_own_objective: list[Objective] = []
"""In a worker: the one objective that it trains by."""


def _prepare(location: MemoryLocation, parent: int) -> None:
    """Runs once in each worker."""
    from joblib.externals.loky import process_executor

    # Where psutil is installed, the pool replaces a worker that has grown, whose memory includes all that is mapped:
    # with a warning, and by a process that nobody here knows or could end.
    process_executor._USE_PSUTIL = False
    _die_with(parent)
    _own_objective.append(attach(location))


def _die_with(parent: int) -> None:
    """Make this process end with its parent, even if the parent is killed while this one runs C++ code."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _warm_up() -> int:
    """Import the libraries of a trial, so that no trial is charged for it; the process id. A worker's first task."""
    _own_objective[0].warm_up()
    return os.getpid()


def _work(task: TrialTask) -> _Answer:
    """Runs in a worker: the outcome of `task`, and (category, message) of each warning on the way."""
    with warnings.catch_warnings(record=True) as caught:
        outcome = run_trial(_own_objective[0], task, lambda: None)
    return outcome, [(warning.category.__name__, str(warning.message)) for warning in caught]
