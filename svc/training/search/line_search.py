"""Search for the best value of a single number, if each evaluation is a training.

The values of a search range are positions from 0 (the lowest) to 1 (the highest), on the range's own scale. From the
best position so far, the search steps to the unknown side until the best has a worse position on either side. Then it
goes to the peak of the parabola through the three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

STEP = 0.2
"""Length of a step to an unknown side of the best position."""
_CLOSEST = 0.02
"""Positions closer to each other than this count as equal."""


def next_position(scores: Mapping[float, float], running: Sequence[float], *, upwards_first: bool) -> float:
    """Return the position to evaluate next.

    `scores` has the evaluated positions, at least one, with −inf for a position that is bad without a score. The
    positions in `running` are being evaluated. Of two unknown sides the upper one comes first if `upwards_first`.
    """
    best = max(scores, key=lambda position: scores[position])
    evaluated = sorted({*scores, *running})
    below = max((position for position in evaluated if position < best), default=None)
    above = min((position for position in evaluated if position > best), default=None)
    up = None if above is not None or best >= 1.0 else min(1.0, best + STEP)
    down = None if below is not None or best <= 0.0 else max(0.0, best - STEP)
    step = next((side for side in ((up, down) if upwards_first else (down, up)) if side is not None), None)
    if step is not None:
        return step
    low, high = best if below is None else below, best if above is None else above
    peak = _peak([(low, scores.get(low)), (best, scores[best]), (high, scores.get(high))])
    if peak is not None and low < peak < high and min(abs(peak - position) for position in evaluated) >= _CLOSEST:
        return peak
    return (best + (high if high - best >= best - low else low)) / 2


def _peak(points: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the peak of the parabola through three points.

    Return None if they have none, or if a score is missing.
    """
    (x1, y1), (x2, y2), (x3, y3) = points
    if y1 is None or y2 is None or y3 is None or not all(map(math.isfinite, (y1, y2, y3))):
        return None
    left, right = (x2 - x1) * (y2 - y3), (x2 - x3) * (y2 - y1)
    if left == right:
        return None
    return x2 - ((x2 - x1) * left - (x2 - x3) * right) / (2 * (left - right))
