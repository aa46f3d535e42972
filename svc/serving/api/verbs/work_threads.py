"""Threads that parse, prepare and encode for requests. Each server has one for light and one for heavy work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import trio

from svc.serving.admission import Pace
from svc.serving.models.threads import lower_priority

T = TypeVar("T")
SLICE_S = 0.02
"""Processor time after which work in steps returns to the end of its queue."""


class WorkThread:
    """One thread, which works in the order of arrival."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(1)
        self._pace = Pace()

    @property
    def wait_s(self) -> float:
        """Expected seconds until new work begins. Until work has been measured, each counts SLICE_S."""
        return self._limiter.statistics().tasks_waiting * (self._pace.each_s or SLICE_S)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its error. Cancellation abandons `work`."""
        return await trio.to_thread.run_sync(self._measure, work, limiter=self._limiter, abandon_on_cancel=True)

    async def run_steps(self, steps: Iterator[T]) -> list[T]:
        """Return all results of `steps`. After each SLICE_S the rest returns to the end of the queue."""
        results: list[T] = []
        while await self.run(partial(_take_some, steps, results)):
            pass
        return results

    def _measure(self, work: Callable[[], T]) -> T:
        lower_priority()  # like scoring: trio reuses its threads, and one that has scored keeps its low priority
        started = time.perf_counter()
        try:
            return work()
        finally:
            self._pace.learn(time.perf_counter() - started, 1)


def _take_some(steps: Iterator[T], results: list[T]) -> bool:
    """Take steps for SLICE_S, at least one. Returns True if there may be more."""
    ends_at = time.thread_time() + SLICE_S
    for step in steps:
        results.append(step)
        if time.thread_time() >= ends_at:
            return True
    return False
