"""Confidence intervals of mean scores, and of differences of two, by a bootstrap over users.

A score is a mean over the evaluated users. Its interval says by how much it would differ with other users of the same
kind. Two models that were evaluated on the same users are compared user by user. This removes the variance of users
who are difficult for every model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from svc.training.judging.bootstrap import CONFIDENCE, RESAMPLINGS, Vector, central, resample
from svc.training.judging.choice import Choice

_TINY = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Change:
    """The mean `value` by which the first of two models is better, with its interval from `low` to `high`.

    `share` is the share of the resamplings in which the first model is better.
    """

    value: float
    low: float
    high: float
    share: float


def interval(
    scores: Vector, *, seed: int, confidence: float = CONFIDENCE, choice: Choice | None = None
) -> tuple[float, float]:
    """Return the interval of the mean of `scores`, (users,).

    With a `choice`, the scores are those of its winner, and the interval allows for the choice.
    """
    ((low, high),) = intervals(scores[:, np.newaxis], seed=seed, confidence=confidence)
    value = float(scores.mean())
    stretch = 1.0 if choice is None else choice.stretch(seed=seed, confidence=confidence)
    return value - stretch * (value - low), high


def intervals(
    scores: NDArray[np.float64], *, seed: int, confidence: float = CONFIDENCE, n: int = RESAMPLINGS
) -> list[tuple[float, float]]:
    """Return the `interval` of each column of `scores`, (users, columns), over the same `n` resamplings."""
    resampled = resample(scores, seed=seed, n=n)
    return [
        central(means, float(column.mean()), column - column.mean(), confidence)
        for means, column in zip(resampled.T, scores.T, strict=True)
    ]


def paired_change(
    first: Vector,
    second: Vector,
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    relative: bool = False,
    choice: Choice | None = None,
) -> Change:
    """Return the change from `second` to `first`, (users,) scores of two models on the same users.

    With `relative` the difference is divided by the mean of `second`, or by the smallest number above zero if that mean
    is 0. With a `choice`, `first` are the scores of its winner, and the interval allows for this choice. The second
    model must have been chosen independently of these users.
    """
    means = resample(np.stack([first, second], axis=1), seed=seed, n=RESAMPLINGS)
    divisor = max(float(second.mean()), _TINY) if relative else 1.0
    changes = (means[:, 0] - means[:, 1]) / (np.maximum(means[:, 1], _TINY) if relative else 1.0)
    value = (float(first.mean()) - float(second.mean())) / divisor
    influence = first - second - value * second if relative else first - second - value
    low, high = central(changes, value, influence, confidence)
    stretch = 1.0
    if choice is not None:
        over = second if relative else None
        stretch = choice.stretch(seed=seed, confidence=confidence, minus=second, over=over)
    return Change(value, value - stretch * (value - low), high, float(np.mean(changes > 0.0)))


def mean_interval(values: Vector, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of two or more independent `values`, by Student's t.

    It serves comparisons within a search, of which there are too many to resample, and means over a few folds.
    """
    mean, n = float(values.mean()), len(values)
    reach = float(stdtrit(n - 1, (1.0 + confidence) / 2.0)) * float(values.std(ddof=1)) / n**0.5
    return mean - reach, mean + reach


def is_gain(first: Vector, second: Vector, *, comparisons: int = 1) -> bool:
    """Return whether `first` is better than `second`, (users,) scores of the same users, by more than chance.

    If there are several `comparisons`, each is tested more strictly, so that all hold together with CONFIDENCE
    (Bonferroni correction).
    """
    if len(first) < 2:
        return False
    return mean_interval(first - second, 1.0 - (1.0 - CONFIDENCE) / max(comparisons, 1))[0] > 0.0


def lead(choice: Choice, *, seed: int, confidence: float = CONFIDENCE) -> Change:
    """Return the lead of the winner of `choice` over the best trial of the next algorithm.

    The interval allows for both choices.
    """
    winner, runner_up = choice.scores[:, 0], choice.scores[:, choice.runner_up]
    change = paired_change(winner, runner_up, seed=seed, confidence=confidence)
    stretch = choice.stretch_of_lead(seed=seed, confidence=confidence)
    low = change.value - stretch * (change.value - change.low)
    return replace(change, low=low, high=change.value + stretch * (change.high - change.value))
