"""Delays refusals above a rate, so that a flood of one client costs other clients little."""

from __future__ import annotations

import math

import trio


class RefusalThrottle:
    """A throttle of refusals.

    The first `burst` refusals are answered at once, and further refusals at `per_s` a second. No refusal waits longer
    than `longest_s`, so a flood has no effect later than `longest_s` after its end.
    """

    def __init__(self, per_s: float, burst: float, longest_s: float) -> None:
        self.per_s, self.burst, self.longest_s = per_s, burst, longest_s
        self._next_s = -math.inf

    def next_wait_s(self) -> float:
        """Count one refusal, and return the seconds to wait before its answer."""
        now_s = trio.current_time()
        self._next_s = self.next_time(self._next_s, now_s)
        return max(self._next_s - now_s, 0.0)

    def next_time(self, last_s: float, now_s: float) -> float:
        """Return the time of the next refusal after one at `last_s`."""
        return min(max(last_s, now_s - self.burst / self.per_s) + 1 / self.per_s, now_s + self.longest_s)
