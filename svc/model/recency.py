"""Weighs the items of a history by how recent they are.

The item at position k counts exp(-δk) times its weight, where δ is the recency of the model. Positions are dense ranks
of the items' latest times: 0 for the latest time, 1 for the next earlier distinct time, and so on.

Scorers know nothing of it: they see weights. So the weighing is the same for every family: item-weight models multiply
the rows that they add, least squares takes it as confidence, and a projection multiplies the item vectors.

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
"""Lower bound of a factor: the confidence of an interaction must stay above zero, and fit into float32."""


def factors(positions: NDArray[Any], recency: float) -> Weights:
    """exp(-recency · position), (h,)."""
    return np.maximum(np.exp(-recency * positions), LEAST)


def positions_of(times: NDArray[Any]) -> NDArray[np.intp]:
    """(h,) positions of items whose times, (h,), never fall."""
    positions = np.zeros(len(times), dtype=np.intp)
    np.cumsum(times[:0:-1] != times[-2::-1], out=positions[-2::-1])
    return positions


def decayed(weights: Weights | None, positions: NDArray[Any], recency: float) -> Weights | None:
    """The `weights`, (h,), decayed by their `positions`, (h,); None: all are 1."""
    if not recency:
        return weights
    decay = factors(positions, recency)
    return decay if weights is None else weights * decay


class Ordered(NamedTuple):
    """Distinct item columns, (h,), oldest first, what each weighs, (h,), and its position, (h,).

    `weights` are None where all are 1.
    """

    columns: NDArray[np.int32]
    weights: Weights | None
    positions: NDArray[np.intp]


def ordered(columns: NDArray[np.int32], weights: Weights | None, times: NDArray[Any]) -> Ordered:
    """The distinct ones of `columns`, (h,), whose `times`, (h,), never fall; `weights` are None where all are 1.

    An item that comes again takes its latest time, and its weights add up.
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
