"""Balances connections over processes that share a listener: a process with more connections accepts later."""

from __future__ import annotations

import time

import trio

PATIENCE_S = 0.002
"""Longest time that a process waits for others to accept first.

It waits in turns of the event loop: a sleep takes at least a millisecond, which costs three quarters of the rate of
short connections."""
VACANT = 1 << 62
"""Count for a slot without a process, so that no process waits for it."""


class Spread:
    """The number of open connections of one process, in its slot of a shared memory. Only this process writes there."""

    def __init__(self, counts: memoryview[int], slot: int = 0) -> None:
        self._counts = counts
        self._slot = slot
        self._n_open = 0

    @classmethod
    def alone(cls) -> Spread:
        """Return the spread of a process that does not share its listener."""
        return cls(memoryview(bytearray(8)).cast("Q"))

    @property
    def is_shared(self) -> bool:
        return len(self._counts) > 1

    def show(self) -> None:
        """Write the count, also over a VACANT that was written while this process looked dead."""
        self._counts[self._slot] = self._n_open

    def opened(self) -> None:
        """Count a connection that was accepted."""
        self._n_open += 1
        self.show()

    def closed(self) -> None:
        """Count a connection that has ended."""
        self._n_open -= 1
        self.show()

    async def wait_for_others(self) -> None:
        """Return when no other process has fewer connections, or after PATIENCE_S."""
        until_s = time.perf_counter() + PATIENCE_S
        while self._n_open > min(self._counts) and time.perf_counter() < until_s:
            await trio.lowlevel.checkpoint()
