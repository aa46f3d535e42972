"""Blocking calls to stores, limited in number and in time.

A call that hangs is abandoned, and not repeated while it hangs. A thread cannot be cancelled. A call that exceeds its
timeout releases its slot of the limiter and stays *outstanding* for its key: until the call ends by itself, no other
call is made for that key. A store that hangs therefore costs one thread for each of its recipes and no slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TypeVar

import trio

T = TypeVar("T")


class CallTimeout(Exception):
    """The error of a call that exceeded its timeout. Its thread was abandoned."""


class Calls:
    """A runner of blocking calls by key, at most `at_once` at a time."""

    def __init__(self, at_once: int) -> None:
        self._slots = trio.CapacityLimiter(at_once)
        self._threads = trio.CapacityLimiter(math.inf)
        self._outstanding: set[Hashable] = set()

    def outstanding(self, key: Hashable) -> bool:
        """Return True while a call for `key` runs or hangs."""
        return key in self._outstanding

    async def run(self, key: Hashable, call: Callable[[], T], timeout_s: float) -> T:
        """Return the result of `call()` in a worker thread, or raise its error.

        Waits without limit for a free slot. The timeout counts from there. Raises `CallTimeout`. Cancellation
        abandons the thread, as the timeout does.
        """
        async with self._slots:
            self._outstanding.add(key)
            with trio.move_on_after(timeout_s):
                try:
                    return await trio.to_thread.run_sync(
                        self._finish, key, call, limiter=self._threads, abandon_on_cancel=True
                    )
                except Exception:
                    self._outstanding.discard(key)  # a call whose thread cannot be started never ends by itself
                    raise
        raise CallTimeout

    def _finish(self, key: Hashable, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            self._outstanding.discard(key)
