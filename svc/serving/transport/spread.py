"""How connections are spread over processes that accept from one listener: a busier one lets the others go first."""

from __future__ import annotations

import time

import trio

PATIENCE_S = 0.002
"""How long a process lets others go first. A turn of a busy event loop takes milliseconds; a sleep instead of turns
lasts a millisecond at least, which costs three quarters of the rate of short connections."""
VACANT = 1 << 62
"""The count of a place without a process: nobody lets it go first."""


class Spread:
    """The open connections of one process, in its place of a shared memory. Only the process writes there."""

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
        """Write the count, also where somebody has taken this process to be gone."""
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
