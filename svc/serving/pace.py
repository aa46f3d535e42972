"""The pace of a queue: the time that one entry takes, estimated from earlier entries."""

from __future__ import annotations

from collections import deque

SLICE_S = 0.05
"""Seconds of a slice: short steps are joined into slices, and a slice gives the average time of an entry."""
SLICES, FEWEST_SLICES = 9, 3
"""Number of the last slices, and the fewest slices for an estimate.

The estimate is the median of the last slices, so one slow call or one pause of the machine is ignored, however long it
is. It is 0 until there are enough slices to ignore one of them."""


class Pace:
    """Seconds that one entry of a queue takes, learned from steps in which the queue was at work."""

    def __init__(self) -> None:
        self._slices: deque[float] = deque(maxlen=SLICES)
        self._seconds, self._count = 0.0, 0.0
        self.each_s = 0.0

    def learn(self, seconds: float, count: float) -> None:
        """Add a step of `seconds` in which `count` entries, above 0, left the queue."""
        self._seconds += seconds
        self._count += count
        if self._seconds < SLICE_S:
            return
        self._slices.append(self._seconds / self._count)
        self._seconds, self._count = 0.0, 0.0
        if len(self._slices) >= FEWEST_SLICES:
            self.each_s = sorted(self._slices)[len(self._slices) // 2]
