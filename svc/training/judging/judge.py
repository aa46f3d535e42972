"""Evaluate a trained model at its best recency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from svc.training.judging.evaluator import Evaluation, Evaluator
from svc.training.judging.recency import BEYOND_DOUBT, SAMPLE_USERS, RecencySearch, choose, is_gain

QUICK_USERS = 2_000
"""Most validation users on which screenings and epochs are evaluated, because an evaluation of all costs more than an
epoch. The score of a trial is always that of all validation users."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """Evaluators of trials: `full` on all validation users, `quick` on a sample at first and between epochs.

    `brief` compares values of recency, on some of the users of `quick`.
    """

    full: Evaluator
    quick: Evaluator
    brief: Evaluator
    metric: str

    @property
    def screened(self) -> NDArray[np.intp]:
        """Return the positions of the users of `quick` among those of `full`."""
        return np.searchsorted(self.full.evaluated_users, self.quick.evaluated_users)

    @classmethod
    def of(cls, evaluator: Evaluator, metric: str, seed: int) -> Evaluators:
        quick, brief = evaluator.sample(QUICK_USERS, seed), evaluator.sample(SAMPLE_USERS, seed)
        return cls(evaluator, quick, brief, metric)


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
    """Evaluate a trained model at its best recency.

    `report` gets the score on a sample, if there are more validation users than the sample holds. The best recency on
    the sample is kept if it beats the lowest on all users by more than chance. If the screening users already show this
    clearly, the lowest is not evaluated on all users.
    """
    metric, lowest, is_sampled = evaluators.metric, search.values[0], evaluators.full is not evaluators.quick

    def fitted(evaluation: Evaluation, recency: float) -> Fitted:
        return Fitted(evaluation.metrics, None, evaluation.by_user(metric), recency)

    check()
    if len(search.values) == 1:
        ranker = search.at(lowest)
        ranked = evaluators.quick.rankings(ranker)
        if is_sampled:
            report(evaluators.quick.score(ranked, metric))
        return fitted(evaluators.full.complete(ranker, evaluators.quick, ranked), lowest)
    chosen = choose(search, evaluators.brief, metric, check)
    if is_sampled:
        report(chosen.score)
    check()
    evaluation = evaluators.full.evaluate(search.at(chosen.recency))
    if chosen.recency == lowest:
        return fitted(evaluation, lowest)
    baseline = search.at(lowest)
    check()
    if is_sampled:
        screened = evaluation.by_user(metric)[evaluators.screened]
        if is_gain(screened, evaluators.quick.scores_of_users(baseline, metric), BEYOND_DOUBT):
            return fitted(evaluation, chosen.recency)
        check()
    other = evaluators.full.evaluate(baseline)
    if is_gain(evaluation.by_user(metric), other.by_user(metric)):
        return fitted(evaluation, chosen.recency)
    return fitted(other, lowest)
