"""Measured processor time of plain queries, by the number of queries that are scored together."""

from __future__ import annotations

import math
from collections import deque

LARGEST_CALL = 256
"""Maximum number of queries that one call of a model scores."""
UNKNOWN_PLAIN_S = 1e-3
"""Assumed processor seconds of a plain query before any is measured."""
MEASUREMENTS = 9
"""The expected time of a call is the median of the last MEASUREMENTS calls, so a single slow call counts little."""


class PlainCosts:
    """Measured processor seconds of one model for plain queries, by the number of queries that are scored together.

    Numbers of queries are grouped by powers of two.
    """

    def __init__(self) -> None:
        self._measured = [deque[float](maxlen=MEASUREMENTS) for _ in range(LARGEST_CALL.bit_length() + 1)]
        self._medians = [math.inf] * len(self._measured)

    def measured_s(self, count: int) -> float:
        """Return the processor seconds of a call with about `count` queries, or infinity if none was measured."""
        return self._medians[count.bit_length()]

    def expected_s(self, weight: int) -> float:
        """Return the expected processor seconds of a call that scores `weight` plain queries.

        `weight` is at most LARGEST_CALL. If no call of about this size was measured, the result is `weight` times the
        cost of a single query, or UNKNOWN_PLAIN_S if that was not measured either.
        """
        measured_s, one_s = self.measured_s(weight), self.measured_s(1)
        if measured_s < math.inf:
            return measured_s
        return weight * (one_s if one_s < math.inf else UNKNOWN_PLAIN_S)

    def learn(self, count: int, seconds: float) -> None:
        size = count.bit_length()
        measured = self._measured[size]
        measured.append(seconds)
        self._medians[size] = sorted(measured)[(len(measured) - 1) // 2]
