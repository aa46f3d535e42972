"""Blocking calls to stores, bounded in number and time. A call that hangs is left behind, never repeated.

A thread cannot be cancelled. A call that goes over its time gives its place back and stays *outstanding* for
its key: until it ends by itself, no other call is made for that key. So a store that hangs costs one thread
a recipe, and no place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TypeVar

import trio

T = TypeVar("T")


class CallTimeout(Exception):
    """The call went over its time; its thread was left behind."""


class Calls:
    """Runs blocking calls by key, at most `at_once` of them at a time."""

    def __init__(self, at_once: int) -> None:
        self._places = trio.CapacityLimiter(at_once)
        self._threads = trio.CapacityLimiter(math.inf)
        self._outstanding: set[Hashable] = set()

    def outstanding(self, key: Hashable) -> bool:
        """True while a call for `key` runs, or hangs."""
        return key in self._outstanding

    async def run(self, key: Hashable, call: Callable[[], T], timeout_s: float) -> T:
        """The result of `call()` in a worker thread; raises what it raises.

        Waits for a place first, without limit; the time counts from there. Raises `CallTimeout` when it runs
        out. Cancelling, like the timeout, leaves the thread behind.
        """
        async with self._places:
            self._outstanding.add(key)
            with trio.move_on_after(timeout_s):
                return await trio.to_thread.run_sync(
                    self._finish, key, call, limiter=self._threads, abandon_on_cancel=True
                )
        raise CallTimeout

    def _finish(self, key: Hashable, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            self._outstanding.discard(key)
