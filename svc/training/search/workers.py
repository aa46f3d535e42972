"""Train trials in worker processes, or in a thread of this process if the data is small and one worker suffices.

A worker process holds its own copy of irspack and one trained recommender at a time. All workers map the matrices of
the search instead of copying them. For this, their arrays are written to an anonymous memory file (out-of-band buffers
of pickle protocol 5). This file has no name, so nothing remains on disk when a process is killed. Its size is not
limited by /dev/shm.

A worker process can be killed at any moment, even while irspack's C++ code holds its interpreter lock. So time limits
and interrupts take effect at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from svc import events, logs
from svc.cores import VARIABLES, limit_blas_threads, usable_cores
from svc.processes import SealedMemory
from svc.training.search.fork_server import ForkServer
from svc.training.search.trial_task import Objective, TrialOutcome, TrialTask, run_trial


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """The location of an object that workers share.

    `path` is the memory file of the process that shares the object, as others see it under /proc. `pickled` is the
    object without its arrays, and `extents` has the (offset, bytes) of each array in the file.
    """

    path: str
    pickled: bytes
    extents: list[tuple[int, int]]


Ended = Callable[[TrialOutcome], None]
_Setting = tuple[MemoryLocation, int]
"""The location of a search's objective, and the number of threads for the linear algebra of a worker."""
_Answer = tuple[TrialOutcome, list[tuple[str, str]]]
"""The outcome of a trial, and the (category, message) of each Python warning during its training."""
_KILLED = "its worker process was killed or crashed; if memory ran out, lower training.parallelism"


class Workers:
    """Trains at most `count` trials at once, in threads of this process. All methods are called from one thread.

    A thread cannot be ended, so an abandoned trial is trained to its end. Threads are for small data, on which this
    takes seconds.
    """

    def __init__(self, objective: Objective, count: int = 1) -> None:
        self.count = count
        self._objective = objective

    def submit(self, task: TrialTask, ended: Ended) -> int:
        """Begin to train `task`, and return the number of its worker.

        When the trial has ended, `ended` is called from another thread. The worker is busy until `release` or
        `abandon`.
        """
        self._start(task, lambda: ended(run_trial(self._objective, task)))
        return task.number

    def _start(self, task: TrialTask, work: Callable[[], None]) -> None:
        # A daemon, so that an abandoned trial does not keep the process alive.
        threading.Thread(target=work, name=f"trial-{task.number}", daemon=True).start()

    def ready_at(self, worker: int) -> float | None:  # noqa: ARG002 - threads are ready at once
        """Return the monotonic time since which `worker` can train, or None while it starts."""
        return 0.0

    def release(self, worker: int) -> None:
        """Take `worker` back after its trial has ended."""

    def abandon(self, worker: int) -> None:
        """Abandon the trial of `worker`, whose outcome no longer matters."""

    def close(self) -> None:
        """End all workers."""


@dataclass(slots=True, eq=False)
class _Worker:
    """One worker process. It can be killed together with its trial, while other workers go on."""

    pid: int | None = None
    ready_at: float | None = None
    ended: bool = False
    _connection: Connection | None = None

    def kill(self) -> None:
        """End the process, at once or as soon as it has started."""
        self.ended = True
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                # SIGKILL, because Python handles no other signal while irspack's C++ code runs.
                os.kill(self.pid, signal.SIGKILL)

    def train(self, task: TrialTask, server: ForkServer, setting: _Setting) -> TrialOutcome:
        """Run `task` in the process, and return its outcome. The process is forked for its first task.

        This blocks until the trial ends, so every trial has a separate thread that calls it.
        """
        try:
            if self._connection is None:
                self._connection = server.fork()
                self._connection.send(setting)
                self.pid = self._connection.recv()
                self.ready_at = time.monotonic()
                if self.ended:  # abandoned while it started, when its pid was not yet known
                    self.kill()
            self._connection.send(task)
            answer: _Answer = self._connection.recv()
        except (EOFError, OSError):
            self.ended = True
            return TrialOutcome(0.0, error=_KILLED)
        outcome, warned = answer
        for category, message in warned:
            logs.emit(events.PYTHON_WARNING, category=category, message=message)
        return outcome


# Not joblib's loky: imports for each worker and a garbage collection after each task took 3.8 of 15.1 s of 40 trials.
class ProcessWorkers(Workers):
    """Worker processes, forked by `server`. Each uses `blas_threads` threads for linear algebra.

    The first trial starts a fork server if none is given. A worker is started only when all earlier ones are busy.
    """

    def __init__(self, objective: Objective, count: int, blas_threads: int, server: ForkServer | None = None) -> None:
        super().__init__(objective, count)
        self._blas_threads = blas_threads
        self._server = server
        self._shared: tuple[SealedMemory, MemoryLocation] | None = None
        self._workers: dict[int, _Worker] = {}
        self._busy: set[int] = set()

    def submit(self, task: TrialTask, ended: Ended) -> int:
        number = next(number for number in range(self.count) if number not in self._busy)
        worker = self._workers.setdefault(number, _Worker())
        if self._server is None:
            self._server = ForkServer.spawn(__name__, work.__name__)
        if self._shared is None:
            self._shared = share(self._objective)
        # Read here and not in the thread, because `close` clears both while threads still run.
        server, setting = self._server, (self._shared[1], self._blas_threads)
        self._start(task, lambda: ended(worker.train(task, server, setting)))
        self._busy.add(number)
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
        self._workers.clear()
        if self._server is not None:
            self._server.close()
            self._server = None
        self._shared = None


def work(connection: Connection) -> None:
    """Run the tasks that arrive on `connection`, and send their outcomes. This is the main function of a worker.

    The worker sends its process id when it is ready to train.
    """
    location, blas_threads = connection.recv()
    # A number of threads that the user has set in the environment applies to workers too.
    if not any(name in os.environ for name in VARIABLES):
        limit_blas_threads(blas_threads)
    objective: Objective = attach(location)
    connection.send(os.getpid())
    while True:
        connection.send(_answer(objective, connection.recv()))


def _answer(objective: Objective, task: TrialTask) -> _Answer:
    """Return the outcome of `task`, and (category, message) of each warning during it."""
    with warnings.catch_warnings(record=True) as caught:
        outcome = run_trial(objective, task)
    return outcome, [(warning.category.__name__, str(warning.message)) for warning in caught]


def share(value: Any) -> tuple[SealedMemory, MemoryLocation]:
    """Copy a picklable `value` to memory that other processes of this user can attach while this process keeps it."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    memory, extents = SealedMemory.of_arrays(buffer.raw() for buffer in buffers)
    return memory, MemoryLocation(f"/proc/{os.getpid()}/fd/{memory.descriptor}", pickled, extents)


def attach(location: MemoryLocation) -> Any:
    """Return the object at `location`. The process that shares it must still run.

    The arrays of the object are views of the mapped file. Changes to them stay in this process.
    """
    with Path(location.path).open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return pickle.loads(location.pickled, buffers=[view[at : at + n] for at, n in location.extents])


_SMALL_INTERACTIONS, _SMALL_ITEMS = 20_000, 2_000
"""Up to these sizes, a whole search takes about as long as the start of one worker process, which imports irspack."""

_TRIALS_PER_WORKER = 4
"""Fewest trials for each worker by default. With more workers, most trials would start before any score is known."""


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The number of trials that are trained at once, and the number of threads of each.

    Trials run in worker processes if `in_processes`, else in threads of this process.
    """

    workers: int
    threads: int
    in_processes: bool

    @classmethod
    def choose(cls, wanted: int | None, *, n_trials: int, n_interactions: int, n_items: int) -> Parallelism:
        """Return a plan with the recipe's `wanted` number of workers, or by default one for each core.

        There are no more workers than trials. The default is lower for few trials, and 1 for small data. It does not
        depend on free memory or load, because these change between runs and the number of workers affects which trials
        are suggested.
        """
        cores = usable_cores()
        small = n_interactions <= _SMALL_INTERACTIONS and n_items <= _SMALL_ITEMS
        if wanted is None:
            wanted = 1 if small else max(1, min(cores, n_trials // _TRIALS_PER_WORKER))
        workers = min(wanted, n_trials)
        in_processes = workers > 1 or not small
        return cls(workers, max(1, cores // workers), in_processes)

    def open(self, objective: Objective, server: ForkServer | None = None) -> Workers:
        """Return workers that train with `objective`.

        Worker processes are forked by `server`, or by a new fork server if it is None.
        """
        if self.in_processes:
            return ProcessWorkers(objective, self.workers, self.threads, server)
        return Workers(objective, self.workers)
