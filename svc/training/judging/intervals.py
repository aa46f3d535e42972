"""Per-user scores, and confidence intervals of their mean by a bootstrap over users.

A score is a mean over the evaluated users. Its interval says by how much it would differ with other users of the same
kind. Two models that were evaluated on the same users are compared user by user. This removes the variance of users
who are difficult for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.bootstrap import CONFIDENCE, RESAMPLINGS, Vector, central, resample
from svc.training.judging.choice import Choice

PER_USER = ("ndcg", "map", "recall", "hit")
"""Metrics that are a mean over users."""
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


def user_scores(rankings: Sequence[Sequence[int]], truth: sparse.csr_matrix) -> dict[str, Vector]:
    """Return the (users,) scores of every ranking by each metric of PER_USER.

    Row u of `truth`, (users, items), has the choices of user u. The definitions are irspack's: a perfect ranking of as
    many items as were recommended has an ndcg of 1, and map divides by all chosen items. Each chosen item counts by its
    value in `truth`, in the gains of ndcg and in the sums that recall and map divide. An Evaluator sets the values to 1
    unless the metric is weighted.
    """
    truth = truth.sorted_indices()
    lengths = np.asarray([len(ranking) for ranking in rankings], dtype=np.int64)
    n_users, width = len(lengths), max(int(lengths.max(initial=0)), 1)
    rows = np.repeat(np.arange(n_users), lengths)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = np.fromiter(chain.from_iterable(rankings), dtype=np.int64, count=len(rows))
    gains = np.zeros((n_users, width))
    gains[rows, positions] = _worth(truth, rows, items)
    hits = (gains > 0).astype(np.float64)
    total = np.bincount(_owners(truth), weights=truth.data, minlength=n_users)
    total = np.maximum(total, np.finfo(np.float64).tiny)
    discounts = 1.0 / np.log2(np.arange(width) + 2.0)
    precision = np.cumsum(hits, axis=1) / np.arange(1, width + 1)
    return {
        "ndcg": gains @ discounts / np.maximum(_ideal(truth, lengths, discounts), 1e-300),
        "map": (precision * gains).sum(axis=1) / total,
        "recall": gains.sum(axis=1) / total,
        "hit": hits.max(axis=1),
    }


def _owners(truth: sparse.csr_matrix) -> NDArray[np.int64]:
    """Return the row of each entry, (entries,)."""
    return np.repeat(np.arange(truth.shape[0], dtype=np.int64), np.diff(truth.indptr))


def _worth(truth: sparse.csr_matrix, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Vector:
    """Return the value of each item to the user of the row beside it, (n,), or 0 if the user did not choose it.

    The indices of `truth` are sorted.
    """
    n_items = truth.shape[1]
    chosen, wanted = _owners(truth) * n_items + truth.indices, rows * n_items + items
    if not len(chosen):
        return np.zeros(len(wanted))
    positions = np.minimum(np.searchsorted(chosen, wanted), len(chosen) - 1)
    return np.where(chosen[positions] == wanted, truth.data[positions], 0.0).astype(np.float64)


def _ideal(truth: sparse.csr_matrix, lengths: NDArray[np.int64], discounts: Vector) -> Vector:
    """Return the (users,) gain of the best ranking of as many items as were recommended."""
    rows = _owners(truth)
    best_first = np.lexsort((-truth.data, rows))
    positions = np.arange(len(rows)) - truth.indptr[rows]
    counts = positions < lengths[rows]
    gains = truth.data[best_first][counts] * discounts[positions[counts]]
    return np.asarray(np.bincount(rows[counts], weights=gains, minlength=truth.shape[0]), dtype=np.float64)


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


def lead(choice: Choice, *, seed: int, confidence: float = CONFIDENCE) -> Change:
    """Return the lead of the winner of `choice` over the best trial of the next algorithm.

    The interval allows for both choices.
    """
    winner, runner_up = choice.scores[:, 0], choice.scores[:, choice.runner_up]
    change = paired_change(winner, runner_up, seed=seed, confidence=confidence)
    stretch = choice.stretch_of_lead(seed=seed, confidence=confidence)
    low = change.value - stretch * (change.value - change.low)
    return replace(change, low=low, high=change.value + stretch * (change.high - change.value))
