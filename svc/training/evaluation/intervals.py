"""Per-user scores, and confidence intervals of their mean by a bootstrap over users.

A score is a mean over the users who were judged. With other users of the same kind it would differ: the interval says
by how much. Two models that were judged by the same users are compared user by user, which removes the variance of
users who are difficult for every model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Vector = NDArray[np.float64]

PER_USER = ("ndcg", "map", "recall", "hit")
"""Metrics that are a mean over users."""
RESAMPLINGS = 10_000
CONFIDENCE = 0.95
_MOST_GROUPS = 4096
"""More users than this are divided at random into this many groups, and groups are drawn instead of users.

The mean keeps its variance, which is then estimated from 4,096 group means: to about 2%, an interval's width to 1%.
"""
_DRAWS_PER_BLOCK = 1 << 21


@dataclass(frozen=True, slots=True)
class Change:
    """`value`: how much better the first of two models is, in the mean; `low` to `high` its interval.

    `share` is the part of the resamplings in which the first one is ahead.
    """

    value: float
    low: float
    high: float
    share: float

    @property
    def is_more_than_chance(self) -> bool:
        return self.low > 0.0 or self.high < 0.0


def user_scores(rankings: Sequence[Sequence[int]], truth: sparse.csr_matrix) -> dict[str, Vector]:
    """(users,) each metric of PER_USER for every ranking; row u of `truth`, (users, items), has what u chose.

    Whoever scores rankings does it here. The definitions are irspack's: a perfect ranking of as many items as were
    recommended has an ndcg of 1, map divides by all chosen items. Each chosen item counts by its value in `truth`, in
    the gains of ndcg and in the sums that recall and map divide; an Evaluation sets them to 1 where items count alike.
    """
    lengths = np.asarray([len(ranking) for ranking in rankings], dtype=np.int64)
    n_users, width = len(lengths), max(int(lengths.max(initial=0)), 1)
    rows = np.repeat(np.arange(n_users), lengths)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    items = np.fromiter((item for ranking in rankings for item in ranking), dtype=np.int64, count=len(rows))
    gains = np.zeros((n_users, width))
    gains[rows, places] = _worth(truth, rows, items)
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
    """(entries,) the row of each entry."""
    return np.repeat(np.arange(truth.shape[0], dtype=np.int64), np.diff(truth.indptr))


def _worth(truth: sparse.csr_matrix, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Vector:
    """(n,) what each item is worth to the user of the row beside it: 0 where it was not chosen."""
    n_items = truth.shape[1]
    chosen, wanted = _owners(truth) * n_items + truth.indices, rows * n_items + items
    if not len(chosen):
        return np.zeros(len(wanted))
    order = np.argsort(chosen)
    places = order[np.minimum(np.searchsorted(chosen, wanted, sorter=order), len(order) - 1)]
    return np.where(chosen[places] == wanted, truth.data[places], 0.0).astype(np.float64)


def _ideal(truth: sparse.csr_matrix, lengths: NDArray[np.int64], discounts: Vector) -> Vector:
    """(users,) the gain of the best ranking of as many items as were recommended."""
    rows = _owners(truth)
    best_first = np.lexsort((-truth.data, rows))
    places = np.arange(len(rows)) - truth.indptr[rows]
    counts = places < lengths[rows]
    gains = truth.data[best_first][counts] * discounts[places[counts]]
    return np.asarray(np.bincount(rows[counts], weights=gains, minlength=truth.shape[0]), dtype=np.float64)


def interval(scores: Vector, *, seed: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The central `confidence` of the mean of `scores`, (users,), over resamplings of its users."""
    return intervals(scores[:, np.newaxis], seed=seed, confidence=confidence)[0]


def intervals(scores: NDArray[np.float64], *, seed: int, confidence: float = CONFIDENCE) -> list[tuple[float, float]]:
    """`interval` of each column of `scores`, (users, columns), over the same resamplings."""
    return [_central(means, confidence) for means in resample(scores, seed=seed).T]


def paired_change(
    first: Vector, second: Vector, *, seed: int, confidence: float = CONFIDENCE, relative: bool = False
) -> Change:
    """How much better `first` is than `second`, (users,) each and judged on the same users.

    `relative` divides by the mean of `second` (by the smallest number above zero where that mean is 0).
    """
    means = resample(np.stack([first, second], axis=1), seed=seed)
    changes = means[:, 0] - means[:, 1]
    value = float(first.mean() - second.mean())
    if relative:
        tiny = np.finfo(np.float64).tiny
        changes = changes / np.maximum(means[:, 1], tiny)
        value /= max(float(second.mean()), float(tiny))
    low, high = _central(changes, confidence)
    return Change(value, low, high, float(np.mean(changes > 0.0)))


def resample(scores: NDArray[np.float64], *, seed: int, n: int = RESAMPLINGS) -> NDArray[np.float64]:
    """(n, columns) means of the columns of `scores`, (users, columns), each over as many users drawn with return."""
    rng = np.random.default_rng([seed, 13])
    sums, sizes = _grouped(np.asarray(scores, dtype=np.float64), rng)
    groups = len(sizes)
    weighted = np.column_stack([sums, sizes]).T.copy()
    means = np.empty((n, scores.shape[1]))
    step = max(1, _DRAWS_PER_BLOCK // groups)
    for begin in range(0, n, step):
        drawn = rng.integers(0, groups, (min(step, n - begin), groups), dtype=np.uint16)
        totals = [column[drawn].sum(axis=1) for column in weighted]
        means[begin : begin + len(drawn)] = np.column_stack(totals[:-1]) / totals[-1][:, np.newaxis]
    return means


def _grouped(scores: NDArray[np.float64], rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(groups, columns) sums and (groups,) sizes; each user alone while there are few."""
    n_users = len(scores)
    if n_users <= _MOST_GROUPS:
        return scores, np.ones(n_users)
    group = rng.permutation(n_users) % _MOST_GROUPS
    columns = [np.bincount(group, weights=column, minlength=_MOST_GROUPS) for column in scores.T]
    return np.column_stack(columns), np.bincount(group, minlength=_MOST_GROUPS).astype(np.float64)


def _central(values: Vector, confidence: float) -> tuple[float, float]:
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, [tail, 1.0 - tail])
    return float(low), float(high)
