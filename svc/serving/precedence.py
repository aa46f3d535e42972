"""Precedence of single requests: work on batches pauses while a cheap single request is prepared or ranked.

A thread releases the GIL in each array operation, and beside other threads that compute it waits a whole switch
interval each time to get the GIL back. So a new condition, which compiles in 1 ms, took 20 to 100 ms beside two batches
of 256 elements with 64 conditions. With the pauses, the 99th percentile of such single requests is 27 to 32 ms instead
of 101 to 111 ms, and 6 to 8 ms without batches (`benchmarks filters beside`).
"""

from __future__ import annotations

import time

import trio

PAUSE_SHARE = 3
"""Longest pause, as a multiple of the work before it. So batches go on however many single requests there are."""
STEP_S = 2e-4
"""Time after which a pausing thread looks again whether a single request is in progress."""


class Precedence:
    """Counts the cheap single requests in progress, each within a `with` block on the event loop."""

    def __init__(self) -> None:
        self._singles = 0
        self._none_left = trio.Event()

    def __enter__(self) -> None:
        self._singles += 1

    def __exit__(self, *_: object) -> None:
        self._singles -= 1
        if not self._singles:
            # An event cannot be reset, so the next pause gets a new one.
            self._none_left.set()
            self._none_left = trio.Event()

    async def give_way(self, worked_s: float) -> None:
        """Pause after `worked_s` seconds of work on the event loop, until no single request is in progress.

        The pause takes at most PAUSE_SHARE times as long as the work.
        """
        if self._singles:
            with trio.move_on_after(PAUSE_SHARE * worked_s):
                await self._none_left.wait()

    def give_way_in_thread(self, worked_s: float) -> None:
        """Pause as `give_way` does, after work in a thread."""
        ends_at = time.perf_counter() + PAUSE_SHARE * worked_s
        # Read without a lock. A late value only changes the pause by a step.
        while self._singles and time.perf_counter() < ends_at:
            time.sleep(STEP_S)
