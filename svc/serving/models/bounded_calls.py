"""Blocking calls to stores, limited in number and in time.

A thread cannot be cancelled. A call that exceeds its timeout is abandoned: it releases its slot of the limiter, and
stays *outstanding* for its key until it ends by itself. Meanwhile no other call is made for that key, so a store that
hangs costs one thread for each of its recipes and no slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TypeVar

import trio

T = TypeVar("T")


class CallTimeout(Exception):
    """A call exceeded its timeout, and its thread was abandoned."""


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
        """Return the result of `call()` in a worker thread, or raise its error or `CallTimeout`.

        The timeout begins when a slot is free. Cancellation abandons the thread too.
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
