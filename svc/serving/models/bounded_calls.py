"""Blocking calls to stores and sources in threads, limited in number and in time.

A thread cannot be cancelled, so a call that exceeds its timeout is abandoned. Its slot becomes free for other calls.
The call stays *outstanding* for its key, such as an artifact, until the thread ends. Callers start no second call for
an outstanding key, so a store that hangs occupies at most one thread for each key.
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
    """A runner of blocking calls. At most `at_once` calls run at a time, not counting abandoned calls."""

    def __init__(self, at_once: int) -> None:
        self._slots = trio.CapacityLimiter(at_once)
        # Unlimited, because an abandoned call keeps its token until its thread ends, and would block a place of others.
        self._threads = trio.CapacityLimiter(math.inf)
        self._outstanding: set[Hashable] = set()

    def outstanding(self, key: Hashable) -> bool:
        """Return True while a call for `key` runs, even if it was abandoned."""
        return key in self._outstanding

    async def run(self, key: Hashable, call: Callable[[], T], timeout_s: float) -> T:
        """Return `call()`, called in a thread.

        Raises the error of `call`, `CallTimeout` after `timeout_s` seconds, or RuntimeError if no thread can be
        started. Waiting for a free slot does not count towards `timeout_s`. Cancellation abandons the thread too.
        """
        async with self._slots:
            self._outstanding.add(key)
            with trio.move_on_after(timeout_s):
                try:
                    return await trio.to_thread.run_sync(
                        self._finish, key, call, limiter=self._threads, abandon_on_cancel=True
                    )
                except Exception:
                    self._outstanding.discard(key)  # `_finish` has not done this if the thread could not be started
                    raise
        raise CallTimeout

    def _finish(self, key: Hashable, call: Callable[[], T]) -> T:
        try:
            return call()
        finally:
            # In the thread, because nobody else notices the end of an abandoned call.
            self._outstanding.discard(key)
