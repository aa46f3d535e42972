"""Weigh the items of a history by how recent they are.

The item at position k counts exp(-δk) times its weight, where δ is the recency of the model. Positions are dense ranks
of the items' latest times: 0 for the latest time, 1 for the next earlier distinct time, and so on.

Scorers see only the resulting weights. Item-weight models multiply the rows that they add by them, least squares takes
them as confidences, and a projection multiplies the item vectors by them.

The weights of Ludewig and Jannach, "Evaluation of Session-based Recommendation Algorithms" (2018) and "Empirical
Analysis of Session-based Recommendation Algorithms" (2021), and of Choi et al., "Session-aware Linear Item-Item Models
for Session-based Recommendation" (WWW 2021), decay with the position in the same way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import firsts

Weights = NDArray[np.float64]
LEAST = 1e-30
"""Lower bound of a factor: the confidence of an interaction must stay above zero and fit into float32."""


def factors(positions: NDArray[Any], recency: float) -> Weights:
    """Return the factor of each position, exp(-recency · position), (h,)."""
    return np.maximum(np.exp(-recency * positions), LEAST)


def positions_of(times: NDArray[Any]) -> NDArray[np.intp]:
    """Return the positions, (h,), of items with these `times`, (h,), which never fall."""
    positions = np.zeros(len(times), dtype=np.intp)
    np.cumsum(times[:0:-1] != times[-2::-1], out=positions[-2::-1])
    return positions


def decay_weights(weights: Weights | None, positions: NDArray[Any], recency: float) -> Weights | None:
    """Return the `weights`, (h,), decayed by the `positions`, (h,), of their items. None: all are 1."""
    if not recency:
        return weights
    decay = factors(positions, recency)
    return decay if weights is None else weights * decay


class Ordered(NamedTuple):
    """Distinct item columns, (h,), oldest first, with their weights, (h,), and positions, (h,).

    `weights` is None if all are 1.
    """

    columns: NDArray[np.int32]
    weights: Weights | None
    positions: NDArray[np.intp]


def order_history(columns: NDArray[np.int32], weights: Weights | None, times: NDArray[Any]) -> Ordered:
    """Return each item of `columns`, (h,), once, oldest first. The `times`, (h,), never fall. `weights` None: all are
    1.

    A repeated item takes its latest time, and its weights add up.
    """
    order = columns.argsort(kind="stable")
    is_first = firsts(columns[order])
    if not is_first.all():
        latest = order[np.append(is_first[1:], True)]
        total = np.bincount(is_first.cumsum() - 1, None if weights is None else weights[order])
        by_time = latest.argsort()
        weights = total[by_time].astype(np.float64, copy=False)
        columns, times = columns[latest[by_time]], times[latest[by_time]]
    return Ordered(columns, weights, positions_of(times))
