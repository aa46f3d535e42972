"""How fast a queue moves: what one in it takes, from what those before it took."""

from __future__ import annotations

from collections import deque

SLICE_S = 0.05
"""Short steps are put together up to so much time: a slice says what one takes on average."""
SLICES, FEWEST_SLICES = 9, 3
"""The median of the last slices is the estimate, so one slow call or one pause of the machine, however long, is
ignored; 0 until there are so many slices that one of them can be."""


class Pace:
    """Seconds that one in a queue takes, learned from steps in which the queue was at work."""

    def __init__(self) -> None:
        self._slices: deque[float] = deque(maxlen=SLICES)
        self._seconds, self._count = 0.0, 0.0
        self.each_s = 0.0

    def learn(self, seconds: float, count: float) -> None:
        """A step of so many seconds, in which `count` (above 0) left the queue."""
        self._seconds += seconds
        self._count += count
        if self._seconds < SLICE_S:
            return
        self._slices.append(self._seconds / self._count)
        self._seconds, self._count = 0.0, 0.0
        if len(self._slices) >= FEWEST_SLICES:
            self.each_s = sorted(self._slices)[len(self._slices) // 2]
