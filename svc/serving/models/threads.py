"""Scoring threads, and the pauses in which the event loop yields the interpreter (GIL) to them.

A scoring call releases the GIL in each array operation and has to acquire it again afterwards. Beside an event loop
that never waits, such as one that a single client keeps busy with pipelined requests, each acquisition takes a whole
switch interval, and a call of one millisecond took a hundred. So the loop sleeps briefly in each turn while a call
is overdue.
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

SWITCH_INTERVAL_S = 500e-6
LATE_S, LATE_TIMES = 2e-3, 2
"""A call is overdue when it has run longer than LATE_TIMES its usual processor time plus LATE_S."""
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
    """Pauses in a thread's long work in Python, which let the event loop have the interpreter.

    Beside such a thread each operation of the loop that releases the GIL waits a whole switch interval to get it back.
    So a turn of the loop with forty such operations took 40 ms instead of 2. Call the instance often: it returns at
    once, and after each WORK_S it sleeps for BREAK_S.
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > WORK_S:
            time.sleep(BREAK_S)
            self._since = time.perf_counter()


class ScoringThreads(trio.abc.Instrument):
    """A pool of at most `count` threads, shared by all lanes, and one more for expensive questions.

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
        """Run `function(*arguments)` in a thread of low priority, once one is free.

        `expensive` calls have a thread of their own.
        """
        limiter = _WatchedLimiter(
            self._expensive_limiter if expensive else self._limiter, self._late_at, LATE_S + LATE_TIMES * usual_s
        )
        return await trio.to_thread.run_sync(
            _nicely,
            function,
            arguments,
            limiter=limiter,  # type: ignore[arg-type]  # trio calls only these two methods
            abandon_on_cancel=abandon_on_cancel,
        )

    def before_io_wait(self, timeout: float) -> None:
        """Sleep for a moment while a call is overdue. Called by trio in each turn of the loop.

        With a timeout above 0 the loop is about to wait anyway.
        """
        if self._late_at and not timeout and min(self._late_at.values()) < time.perf_counter():
            time.sleep(REST_S)


class _WatchedLimiter:
    """A limiter that notes when each running call is overdue.

    Trio acquires it before it starts a thread, and releases it when the thread ends, abandoned or not.
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


def _nicely(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    lower_priority()
    return function(*arguments)
