"""Choose the recency of a trained model: how much less each item of a history counts than the one after it.

Recency does not affect training. A trained model is evaluated at several values on a sample of the validation users.
The best value is used only if it beats the lowest on all validation users by more than chance. So 0 wins if order has
no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.recipe.algorithms import TAKES_RECENCY
from svc.training.judging.evaluator import Evaluator, Ranker

VALUES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The recencies to try for one model."""
SAMPLE_USERS = 400
"""Most validation users on which recencies are compared, because this takes most of the time. The decision between the
best and the lowest is made on all of them."""
_STRIDE = 3
"""Every third value is scored first."""
_CERTAIN = 2.77
"""Standard errors of a gain that is more than chance: the two-sided 95% of nine comparisons (Bonferroni)."""
_PROMISING = 1.0
"""Standard errors of a gain on the sample from which the value is evaluated on all users."""
BEYOND_DOUBT = 4.0
"""Standard errors of a gain on the screening users from which no evaluation on all users is needed."""

UserScores = NDArray[np.float64]


def is_gain(first: UserScores, second: UserScores, deviations: float = _CERTAIN) -> bool:
    """Return whether `first` is better than `second`, (users,) scores of the same users, by more than chance."""
    gains = first - second
    if len(gains) < 2:
        return False
    return float(gains.mean()) > deviations * float(gains.std(ddof=1)) / math.sqrt(len(gains))


@dataclass(frozen=True, slots=True, eq=False)
class HistoryOrder:
    """The order of the histories that a search trains on, and the bounds of its use.

    `positions` has the entries of the training matrix. `fixed` is the recency of every model. It is None if recency is
    searched, within the `bounds` of an algorithm, [lowest, highest].
    """

    positions: sparse.csr_matrix
    fixed: float | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def values(self, algorithm: str) -> tuple[float, ...]:
        """Return the recencies to try for a model of this algorithm, ascending.

        Return nothing if its scores do not depend on order.
        """
        if algorithm not in TAKES_RECENCY:
            return ()
        if self.fixed is not None:
            return (self.fixed,)
        if algorithm not in self.bounds:
            return VALUES
        low, high = self.bounds[algorithm]
        return tuple(sorted({low, high, *(value for value in VALUES if low < value < high)}))


class RecencySearch(NamedTuple):
    """Inputs of the recency search of one trained model: its ranker at each of the ascending `values`."""

    values: Sequence[float]
    at: Callable[[float], Ranker]


class Chosen(NamedTuple):
    """The best recency on a sample, and its score there."""

    recency: float
    score: float


def choose(search: RecencySearch, sample: Evaluator, metric: str, check: Callable[[], None]) -> Chosen:
    """Return the best of the values for the users of `sample`, or the lowest if no other is a gain.

    Scores are assumed to have one peak. So every third value is scored, and then the neighbours of the best until both
    are worse.
    """

    def scores_of(ranker: Ranker) -> UserScores:
        check()
        return sample.scores_of_users(ranker, metric)

    values, lowest = search.values, scores_of(search.at(search.values[0]))
    best, scores = 0, {0: lowest}
    unscored = {*range(_STRIDE, len(values), _STRIDE), len(values) - 1} - {0}
    while unscored:
        scores |= {index: scores_of(search.at(values[index])) for index in sorted(unscored)}
        best = max(scores, key=lambda index: _mean(scores[index]))
        unscored = {index for index in (best - 1, best + 1) if 0 < index < len(values)} - scores.keys()
    if best and is_gain(scores[best], lowest, _PROMISING):
        return Chosen(values[best], _mean(scores[best]))
    return Chosen(values[0], _mean(lowest))


def _mean(scores: UserScores) -> float:
    return float(scores.mean())
