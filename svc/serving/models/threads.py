"""Scoring threads, and the pauses in which the event loop yields the interpreter (GIL) to them.

While a call is overdue, the loop sleeps briefly in each turn. Without these pauses a call of 1 ms took 100 ms beside a
loop that a single client kept busy with pipelined requests. The call releases the GIL in each array operation, and each
time it waits a whole switch interval to get the GIL back.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from svc.cores import usable_cores
from svc.settings import Settings

# A tenth of Python's default: the event loop waits this long for the interpreter beside a computing thread.
SWITCH_INTERVAL_S = 500e-6
LATE_S, LATE_TIMES = 2e-3, 2
"""A call is overdue after LATE_TIMES its usual processor time plus LATE_S."""
# Without these rests, a call of 1 ms took 100 ms beside pipelined requests.
REST_S = 200e-6
WORK_S, BREAK_S = 1e-3, 3e-3
NICENESS = 10

T = TypeVar("T")
_thread = threading.local()


def lower_priority() -> None:
    """Lower the priority of this worker thread, so that the event loop is scheduled before it."""
    if not getattr(_thread, "nice", False):
        _thread.nice = True
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class GilYielder:
    """Pauses in long Python work of a thread, which shorten a turn of the event loop from 40 ms to 2 ms.

    Without pauses, each of some forty operations of the loop that release the GIL waits a whole switch interval to get
    it back. Call the instance often: it sleeps for BREAK_S after each WORK_S, and otherwise returns at once.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(BREAK_S)
            self._since = time.perf_counter()


class ScoringThreads(trio.abc.Instrument):
    """A pool of at most `count` threads, shared by all lanes, and one more for expensive queries.

    As a trio instrument it delays the loop while a call is overdue.
    """

    def __init__(self, count: int) -> None:
        self._limiter = trio.CapacityLimiter(count)
        self._expensive_limiter = trio.CapacityLimiter(1)
        self._late_at: dict[object, float] = {}

    @classmethod
    def of(cls, settings: Settings) -> ScoringThreads:
        """Return a pool of `SVC_SCORING_THREADS`, by default one less than cores: the event loop needs the last."""
        return cls(settings.scoring_threads or max(1, usable_cores() - 1))

    @property
    def count(self) -> int:
        return int(self._limiter.total_tokens)

    async def run(
        self,
        function: Callable[..., T],
        *arguments: object,
        usual_s: float,
        abandon_on_cancel: bool,
        expensive: bool = False,
    ) -> T:
        """Run `function(*arguments)` in a free thread of low priority. `expensive` calls have a thread of their own."""
        limiter = _WatchedLimiter(
            self._expensive_limiter if expensive else self._limiter, self._late_at, LATE_S + LATE_TIMES * usual_s
        )
        return await trio.to_thread.run_sync(
            _run_nicely,
            function,
            arguments,
            limiter=limiter,  # type: ignore[arg-type]  # trio calls only these two methods
            abandon_on_cancel=abandon_on_cancel,
        )

    def before_io_wait(self, timeout: float) -> None:
        """Sleep for REST_S if a call is overdue and the loop would not wait anyway. Called by trio in each turn."""
        if self._late_at and not timeout and min(self._late_at.values()) < time.perf_counter():
            time.sleep(REST_S)


class _WatchedLimiter:
    """A limiter that records when each running call will be overdue.

    Trio acquires it before it starts a thread, and releases it when the thread ends, also if it was abandoned.
    """

    def __init__(self, limiter: trio.CapacityLimiter, late_at: dict[object, float], patience_s: float) -> None:
        self._limiter = limiter
        self._late_at = late_at
        self._patience_s = patience_s

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._limiter.acquire_on_behalf_of(borrower)
        self._late_at[borrower] = time.perf_counter() + self._patience_s

    def release_on_behalf_of(self, borrower: object) -> None:
        del self._late_at[borrower]
        self._limiter.release_on_behalf_of(borrower)


def _run_nicely(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    lower_priority()
    return function(*arguments)
