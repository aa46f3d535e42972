"""Slows a flood of refusals down, so that it costs the others little however many it sends."""

from __future__ import annotations

import math

import trio


class RefusalThrottle:
    """Refusals of one kind: the first `burst` are answered at once, further ones `per_s` a second.

    None waits longer than `longest_s`, so a flood is forgotten as soon after its end.
    """

    def __init__(self, per_s: float, burst: float, longest_s: float) -> None:
        self._each_s = 1 / per_s
        self._burst_s = burst / per_s
        self._longest_s = longest_s
        self._next_s = -math.inf

    def next_wait_s(self) -> float:
        """Count one refusal; the seconds after which it is to be answered."""
        now_s = trio.current_time()
        self._next_s = min(max(self._next_s, now_s - self._burst_s) + self._each_s, now_s + self._longest_s)
        return max(self._next_s - now_s, 0.0)
