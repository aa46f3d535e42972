"""Exact top-k selection that sorts only entries which may be among the best.

| symbol | meaning |
|---|---|
| n | entries of a row |
| g | number of groups that the entries of a row are divided into; entry j is in group j mod g |
| bound | k-th largest of the group maxima, so never above the k-th largest entry |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SORT_BELOW = 256
"""Up to this many entries are sorted as a whole: looking for a bound first would take longer."""
PARTITION_BELOW = 2048
"""Up to this many entries are partitioned directly: group maxima would not save anything."""


def group_count(limit: int) -> int:
    """Return the number of groups for the `limit` best: few enough to be cheap, many enough for a sharp bound."""
    return max(128, 1 << (4 * limit - 1).bit_length())


def group_maxima(scores: NDArray[Any], groups: int) -> NDArray[Any]:
    """Return the maxima of the groups of each row: (b, n) to (b, g), or (b, g + n mod g) with the ungrouped tail.

    Rows with no more than `groups` entries come back unchanged.
    """
    b, n = scores.shape
    depth = n // groups
    if depth <= 1:
        return scores
    maxima: NDArray[Any] = np.maximum.reduce(scores[:, : depth * groups].reshape(b, depth, groups), axis=1)
    if n == depth * groups:
        return maxima
    return np.concatenate([maxima, scores[:, depth * groups :]], axis=1)


def best(scores: NDArray[np.float64], limit: int) -> NDArray[np.intp]:
    """Return the indices of the `limit` largest of `scores`, (n,), best first, ties by lower index.

    Entries of minus infinity never come back, so there may be fewer than `limit`. No entry may be NaN.
    """
    if len(scores) <= SORT_BELOW:
        order = (-scores).argsort(kind="stable")[:limit]
        return order[scores[order] > -np.inf]
    candidates = reaching(scores, limit)
    values = scores[candidates]
    if len(candidates) > 4 * limit:
        candidates, values = _limit_best(candidates, values, limit)
    return candidates[np.lexsort((candidates, -values))[:limit]]


def reaching(scores: NDArray[Any], limit: int, slack: float = 0.0) -> NDArray[np.intp]:
    """Return the indices, ascending, of all entries not below the `limit`-th largest less `slack`, and of few others.

    Entries of minus infinity are left out.
    """
    maxima = scores
    if len(scores) > PARTITION_BELOW:
        maxima = group_maxima(scores[np.newaxis], group_count(limit))[0]
    position = len(maxima) - limit
    bound = float(np.partition(maxima, position)[position]) if position > 0 else -np.inf
    if bound > -np.inf:
        return np.flatnonzero(scores >= np.nextafter(scores.dtype.type(bound - slack), -np.inf))
    return np.flatnonzero(scores > -np.inf)


def _limit_best(
    candidates: NDArray[np.intp], values: NDArray[np.float64], limit: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the `limit` best: all candidates above the `limit`-th value, then its ties from the lowest index on."""
    position = len(values) - limit
    last = np.partition(values, position)[position]
    above = np.flatnonzero(values > last)
    ties = np.flatnonzero(values == last)[: limit - len(above)]
    chosen = np.concatenate([above, ties])
    return candidates[chosen], values[chosen]
