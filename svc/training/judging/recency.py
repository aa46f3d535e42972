"""Choose the recency of a trained model, and evaluate the model with it.

Recency says how much less each item of a history counts than the next later one: by the factor exp(−recency). It does
not affect training. A trained model is evaluated at several recencies on a few of the validation users. The best one is
then used only if it scores better than the lowest one on the sample of validation users by more than chance. So the
lowest one, by default 0, wins if order has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.recipe.algorithms import TAKES_RECENCY
from svc.training.judging.evaluator import Evaluator, Evaluators, Ranker, Rankings
from svc.training.judging.intervals import Vector, is_gain

VALUES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0)
"""The recencies to try.

If the recipe bounds the recency of an algorithm, only the bounds and the values between them are tried.
"""
_STRIDE = 3
"""Distance of the values that are scored first, as positions in the list of values."""


@dataclass(frozen=True, slots=True, eq=False)
class HistoryOrder:
    """The order of the histories that a search trains on, and the recencies that the search may use.

    - `positions` has the position of each entry of the training matrix in its user's history, 0 for the latest item.
    - `fixed` is the recency of every model that can use order, or None if recency is searched.
    - `bounds` has the recipe's lowest and highest recency to try, by algorithm. Other algorithms try VALUES.
    """

    positions: sparse.csr_matrix
    fixed: float | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def values(self, algorithm: str) -> tuple[float, ...]:
        """Return the recencies to try for a model of `algorithm`, ascending, or none if it ignores order."""
        if algorithm not in TAKES_RECENCY:
            return ()
        if self.fixed is not None:
            return (self.fixed,)
        if algorithm not in self.bounds:
            return VALUES
        low, high = self.bounds[algorithm]
        return tuple(sorted({low, high, *(value for value in VALUES if low < value < high)}))


class RecencySearch(NamedTuple):
    """Inputs of the recency search of one trained model.

    `values` are the recencies to try, ascending. `at` returns the ranker of the model at a recency.
    """

    values: Sequence[float]
    at: Callable[[float], Ranker]


class Chosen(NamedTuple):
    """A recency, with the rankings of the users of a sample at this recency, and their scores, (users,)."""

    recency: float
    rankings: Rankings
    by_user: Vector


def choose(search: RecencySearch, evaluators: Evaluators) -> Chosen:
    """Return the best of the values, or the lowest if no other value is better on the sample by more than chance.

    To save time, the best value is found on `evaluators.few`, and only this value and the lowest are scored on the
    whole sample. Scores are assumed to have one peak. So every third value and the last are scored first, and then the
    neighbours of the best value until both have been scored.
    """
    values = search.values

    def on(evaluator: Evaluator, index: int) -> Chosen:
        rankings = evaluator.rankings(search.at(values[index]))
        return Chosen(values[index], rankings, evaluator.by_user(rankings, evaluators.metric))

    best, means = 0, dict[int, float]()
    untried = {*range(0, len(values), _STRIDE), len(values) - 1} if len(values) > 1 else set[int]()
    while untried:
        means |= {index: float(on(evaluators.few, index).by_user.mean()) for index in sorted(untried)}
        best = max(means, key=lambda index: means[index])
        untried = {index for index in (best - 1, best + 1) if 0 < index < len(values)} - means.keys()
    lowest = on(evaluators.sample, 0)
    if not best:
        return lowest
    other = on(evaluators.sample, best)
    return other if is_gain(other.by_user, lowest.by_user, comparisons=len(values) - 1) else lowest


@dataclass(frozen=True, slots=True)
class Fitted:
    """The outcome of one training.

    - `metrics` are those of the best epoch, and `epochs` is its number, or None for training without epochs.
    - `by_user` has the score for each validation user, (users,), or is None if they are unknown. Their mean is the
      trial's score.
    - `recency` is the chosen recency, at which the model was evaluated.
    - `rank_ms` is the time of a single ranking in milliseconds, or None before it is measured.
    """

    metrics: dict[str, float]
    epochs: int | None
    by_user: NDArray[np.float64] | None = None
    recency: float = 0.0
    rank_ms: float | None = None


def judge(search: RecencySearch, evaluators: Evaluators, report: Callable[[float], None]) -> Fitted:
    """Choose the best recency of a trained model on the sample, and evaluate the model on all validation users.

    `report` is called with the score on the sample if there are more validation users than the sample has. It may raise
    an exception to end the trial. The caller adds `epochs` and `rank_ms` to the result.
    """
    metric, full, sample = evaluators.metric, evaluators.full, evaluators.sample
    chosen = choose(search, evaluators)
    if full is not sample:
        report(float(chosen.by_user.mean()))
    # Users of the sample are not ranked again. The trials of a search on 3,000 users and 1,500 items take 15 instead of
    # 19 s of processor time, with the same scores.
    evaluation = full.complete(search.at(chosen.recency), sample, chosen.rankings)
    return Fitted(evaluation.metrics, None, evaluation.scores[metric], chosen.recency)
