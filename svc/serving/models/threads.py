"""The pool of threads that score queries, and pauses of the event loop in which these threads get the GIL.

A scoring thread releases the GIL in each array operation. Beside a busy event loop it then waits a whole switch
interval to get the GIL back, each time. A call of 1 ms took 100 ms if a single client sent pipelined requests. So the
event loop sleeps briefly in each of its turns while a call takes much longer than usual.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from svc.cores import usable_cores
from svc.settings import Settings

SWITCH_INTERVAL_S = 500e-6
"""Time after which a thread that runs Python code must hand over the GIL to a waiting thread.

A tenth of Python's default."""
LATE_S, LATE_TIMES = 2e-3, 2
"""A call is overdue after LATE_TIMES times its usual processor time plus LATE_S."""
REST_S = 200e-6
"""Sleep of the event loop in each turn while a call is overdue."""
WORK_S, BREAK_S = 1e-3, 3e-3
"""Time after which `GilYielder` pauses, and length of the pause."""
NICENESS = 10

T = TypeVar("T")
_thread = threading.local()


def lower_priority() -> None:
    """Lower the priority of the current thread, so that the kernel prefers the event loop.

    A priority that is already lower stays, because only a privileged process may raise a priority.
    """
    # Trio reuses its threads, and the priority of a thread lasts until its end.
    if not getattr(_thread, "nice", False):
        _thread.nice = True
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0))
        # On Linux the id of a thread selects this thread alone.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


class GilYielder:
    """Pauses for long Python work in a thread. They shorten the turns of the event loop from 40 ms to 2 ms meanwhile.

    The event loop releases the GIL about 40 times in a turn, and waits a whole switch interval each time if a thread
    computes without pauses. The work calls the instance often. A call sleeps for BREAK_S if the last pause ended more
    than WORK_S ago, and otherwise returns at once.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(BREAK_S)
            self._since = time.perf_counter()


class ScoringThreads(trio.abc.Instrument):
    """A pool of `count` threads in which all models score cheap queries, and one more thread for expensive queries.

    The pool is also a trio instrument, which makes the event loop sleep while a call is overdue.
    """

    def __init__(self, count: int) -> None:
        self._limiter = trio.CapacityLimiter(count)
        self._expensive_limiter = trio.CapacityLimiter(1)
        self._late_at: dict[int, float] = {}
        """Time of `time.perf_counter` from which on a running call is overdue, by the id of its thread."""

    @classmethod
    def of(cls, settings: Settings) -> ScoringThreads:
        """Return a pool of SVC_SCORING_THREADS threads, by default one less than there are cores, but at least one."""
        # The event loop needs a core too.
        return cls(settings.scoring_threads or max(1, usable_cores() - 1))

    @property
    def count(self) -> int:
        return int(self._limiter.total_tokens)

    async def run(self, function: Callable[..., T], *arguments: object, usual_s: float, expensive: bool = False) -> T:
        """Return `function(*arguments)`, called in a thread of low priority when one is free.

        `usual_s` is the usual processor time of such a call. `expensive` calls share one thread. Cancellation waits for
        the thread. Raises the error of `function`, or RuntimeError if no thread can be started.
        """
        limiter = self._expensive_limiter if expensive else self._limiter
        return await trio.to_thread.run_sync(self._call, usual_s, function, arguments, limiter=limiter)

    def _call(self, usual_s: float, function: Callable[..., T], arguments: tuple[object, ...]) -> T:
        """Return `function(*arguments)`, called with low priority. The call is in `_late_at` until it ends."""
        lower_priority()
        thread = threading.get_ident()
        self._late_at[thread] = time.perf_counter() + LATE_S + LATE_TIMES * usual_s
        try:
            return function(*arguments)
        finally:
            del self._late_at[thread]

    def before_io_wait(self, timeout: float) -> None:
        """Sleep for REST_S if a call is overdue and the event loop has tasks to run (`timeout` is 0).

        Trio calls this in each turn of the event loop.
        """
        # Trio removes an instrument that raises, so one error here would end all rests.
        # A call in another thread may end at any time, also between the first test and `min`.
        if self._late_at and not timeout and min(self._late_at.values(), default=math.inf) < time.perf_counter():
            time.sleep(REST_S)
