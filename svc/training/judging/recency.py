"""Evaluate a trained model at its best recency: how much less each item of a history counts than the one after it.

Recency does not affect training. A trained model is evaluated at several values on a few of the validation users.
The best value is used only if it beats the lowest on the sample by more than chance. So 0 wins if order has no effect.
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
"""The recencies to try for one model."""
_STRIDE = 3
"""Every third value is scored first."""


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
    """The best recency on the sample, with the rankings of its users and their scores."""

    recency: float
    rankings: Rankings
    by_user: Vector


def choose(search: RecencySearch, evaluators: Evaluators, check: Callable[[], None]) -> Chosen:
    """Return the best of the values, or the lowest if no other is better for the sample by more than chance.

    The best is found on the few first users of the sample, because that takes most of the time. Scores are assumed to
    have one peak. So every third value is scored, and then the neighbours of the best until both are worse.
    """
    values = search.values

    def on(evaluator: Evaluator, index: int) -> Chosen:
        check()
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
    """The outcome of one training: `metrics` of its best state, and the `epochs` until then, or None without epochs.

    `by_user` has the (users,) scores at this `recency`. Their mean is the trial's score. `rank_ms` is the time of a
    single ranking in milliseconds.
    """

    metrics: dict[str, float]
    epochs: int | None
    by_user: NDArray[np.float64] | None = None
    recency: float = 0.0
    rank_ms: float | None = None


def judge(
    search: RecencySearch, evaluators: Evaluators, check: Callable[[], None], report: Callable[[float], None]
) -> Fitted:
    """Evaluate a trained model at the best of several recencies, which is chosen on the sample.

    `report` gets the score on the sample, if there are more validation users than the sample holds.
    """
    metric, full, sample = evaluators.metric, evaluators.full, evaluators.sample
    chosen = choose(search, evaluators, check)
    if full is not sample:
        report(float(chosen.by_user.mean()))
    check()
    # Ranks only the users outside the sample: on 3,000 users and 1,500 items the trials of a search take 15 instead of
    # 19 s of processor time, with the same scores.
    evaluation = full.complete(search.at(chosen.recency), sample, chosen.rankings)
    return Fitted(evaluation.metrics, None, evaluation.by_user(metric), chosen.recency)
