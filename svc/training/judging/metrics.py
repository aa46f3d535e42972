"""Compute the metrics of rankings, over all users and by groups of users and items.

A mean over all users can hide that a model serves only active users well, or finds only popular items. So `breakdown`
divides users by the length of their history into three groups of equal size. It also divides items by popularity into
head, middle and tail. Each has a third of the training interactions, so the head has few items and the tail many. If
seen items may be recommended, it also tells items that the user met before from items that are new to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.intervals import CONFIDENCE, TINY, Vector, intervals

PER_USER = ("ndcg", "map", "recall", "hit")
"""Metrics that are a mean over users, with intervals."""
METRICS = (*PER_USER, "precision", "gini_index", "entropy", "appeared_item", "catalog_coverage")


def user_scores(rankings: Sequence[Sequence[int]], truth: sparse.csr_matrix) -> dict[str, Vector]:
    """Return the score of each ranking, (users,), by each metric of PER_USER.

    `truth`, (users, items), has the items that the user of each ranking chose. Each item counts by its value in
    `truth`, which an Evaluator sets to 1 unless the metric is weighted. Only `hit` ignores these values: it is 1 or 0.
    The score of a user without chosen items is 0.

    The definitions are those of irspack. The ndcg is relative to the best ranking of as many items as were recommended.
    The map divides by the number of all chosen items, or the sum of their values.
    """
    # Sorted, so that the last bits of sums do not depend on the order in which items are stored.
    truth = truth.sorted_indices()
    lengths = np.asarray([len(ranking) for ranking in rankings], dtype=np.int64)
    n_users, width = len(lengths), max(int(lengths.max(initial=0)), 1)
    rows = np.repeat(np.arange(n_users), lengths)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    # Rankings have different lengths, so they are one flat array with the row and the position of each item.
    items = np.fromiter(chain.from_iterable(rankings), dtype=np.int64, count=len(rows))
    gains = np.zeros((n_users, width))
    gains[rows, positions] = _worth(truth, rows, items)
    hits = (gains > 0).astype(np.float64)
    total = np.bincount(_owners(truth), weights=truth.data, minlength=n_users)
    # A user without chosen items has no gains either, and scores 0 / tiny.
    total = np.maximum(total, TINY)
    discounts = 1.0 / np.log2(np.arange(width) + 2.0)
    precision = np.cumsum(hits, axis=1) / np.arange(1, width + 1)
    return {
        "ndcg": gains @ discounts / np.maximum(_ideal(truth, lengths, discounts), 1e-300),
        "map": (precision * gains).sum(axis=1) / total,
        "recall": gains.sum(axis=1) / total,
        "hit": hits.max(axis=1),
    }


def _owners(truth: sparse.csr_matrix) -> NDArray[np.int64]:
    """Return the row of each stored value of `truth`, (n,)."""
    return np.repeat(np.arange(truth.shape[0], dtype=np.int64), np.diff(truth.indptr))


def _worth(truth: sparse.csr_matrix, rows: NDArray[np.int64], items: NDArray[np.int64]) -> Vector:
    """Return the value in `truth` at each pair of `rows` and `items`, (n,): 0 if the user did not choose the item."""
    if not len(rows):  # scipy would return a sparse matrix
        return np.empty(0)
    return np.asarray(truth[rows, items], dtype=np.float64).ravel()


def _ideal(truth: sparse.csr_matrix, lengths: NDArray[np.int64], discounts: Vector) -> Vector:
    """Return the largest possible discounted gain for each user, (users,), with as many items as were recommended."""
    rows = _owners(truth)
    best_first = np.lexsort((-truth.data, rows))
    positions = np.arange(len(rows)) - truth.indptr[rows]
    counts = positions < lengths[rows]
    gains = truth.data[best_first][counts] * discounts[positions[counts]]
    return np.asarray(np.bincount(rows[counts], weights=gains, minlength=truth.shape[0]), dtype=np.float64)


def list_metrics(rankings: Sequence[Sequence[int]], truth: sparse.csr_matrix) -> dict[str, float]:
    """Return the METRICS that are not in PER_USER: precision, and how evenly all rankings recommend the items."""
    n_items, lengths = truth.shape[1], np.array([len(ranking) for ranking in rankings])
    items = np.fromiter(chain.from_iterable(rankings), dtype=np.int64, count=int(lengths.sum()))
    owners = np.repeat(np.arange(len(lengths)), lengths)
    n_hits = np.bincount(owners[_worth(truth, owners, items) > 0], minlength=len(lengths))
    counts = np.sort(np.bincount(items, minlength=n_items))
    shares = counts[counts > 0] / max(len(items), 1)
    return {
        "precision": float((n_hits / np.maximum(lengths, 1)).mean()),
        # The formula for ascending counts, which needs no pairs of items.
        "gini_index": float((2 * np.arange(n_items) + 1 - n_items) @ counts / (n_items * max(len(items), 1))),
        "entropy": float(-(shares * np.log(shares)).sum()),
        "appeared_item": float(len(shares)),
        "catalog_coverage": len(shares) / n_items,
    }


ACTIVITY = ("few", "some", "many")
POPULARITY = ("head", "middle", "tail")
COVERAGE, NOVELTY, SHARE = "coverage", "novelty", "share"
Part = tuple[str, str]
"""The group of a figure and the part of this group, for example ("popularity", "head")."""
EVERYTHING = ("all", "all")
Row = dict[str, Any]
"""A figure of a breakdown, with the keys group, part, metric, value, low, high and n_users.

`low` and `high` are the ends of its confidence interval, or None if the figure is not a mean over users.
"""
_RESAMPLINGS = 2_000
"""Bootstrap resamplings for an interval. Fewer than RESAMPLINGS suffice, because no decision depends on these
intervals. Eight intervals take at most a second.
"""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCounts:
    """Counts of the interactions that a model was trained on.

    - `history`, (evaluated users,), is the number of items in the history of each evaluated user.
    - `popularity`, (items,), is the number of users of each item.
    - `n_users` is the number of all users.
    - `met`, (evaluated users, items), is 1 at chosen items that the user met before. It is None if such items are
      never recommended.
    """

    history: NDArray[np.int64]
    popularity: NDArray[np.int64]
    n_users: int
    met: sparse.csr_matrix | None = None


def breakdown(
    rankings: Sequence[Sequence[int]],
    truth: sparse.csr_matrix,
    training: TrainingCounts,
    *,
    metrics: Sequence[str] = PER_USER,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> list[Row]:
    """Return the figures of `rankings`, over all users and items and by groups.

    `rankings` has a list of item columns for each row of `truth`. `truth`, (evaluated users, items), has the chosen
    items. It may have more columns than there are training items, for items that the model does not know and so never
    recommends. A figure of a group of items is a mean over the users who chose at least one of them. A group without
    such users is left out.
    """

    def means(truth: sparse.csr_matrix, part: Part, rows: NDArray[np.int64] | None = None) -> Iterator[Row]:
        choosing = np.flatnonzero(np.diff(truth.indptr))
        rows = choosing if rows is None else np.intersect1d(rows, choosing)
        if len(rows):
            scores = user_scores([rankings[row] for row in rows.tolist()], truth[rows])
            values = np.column_stack([scores[metric] for metric in metrics])
            ends = intervals(values, seed=seed, confidence=confidence, n=_RESAMPLINGS)
            for metric, column, span in zip(metrics, values.T, ends, strict=True):
                yield _row(part, metric, float(column.mean()), span, len(rows))

    figures = list(means(truth, EVERYTHING))
    for name, rows in zip(ACTIVITY, _activity_parts(training.history), strict=True):
        figures += means(truth, ("activity", name), rows)
    parts = _popularity_parts(training.popularity)
    for number, name in enumerate(POPULARITY):
        inside = np.zeros(truth.shape[1], dtype=bool)
        # Items that the model does not know belong to no part.
        inside[: len(parts)] = parts == number
        figures += means(choices_of(truth, inside), ("popularity", name))
    if training.met is not None:
        met = truth.multiply(training.met).tocsr()
        for name, choices in (("yes", met), ("no", (truth - met).tocsr())):
            choices.eliminate_zeros()
            of_part, n_users = ("met_before", name), int(np.count_nonzero(np.diff(choices.indptr)))
            figures += means(choices, of_part)
            figures.append(_row(of_part, SHARE, choices.nnz / max(truth.nnz, 1), (None, None), n_users))
    return [*figures, *_diversity(rankings, training, seed, confidence)]


def _row(part: Part, metric: str, value: float, span: tuple[float | None, float | None], n_users: int) -> Row:
    names = ("group", "part", "metric", "value", "low", "high", "n_users")
    return dict(zip(names, (*part, metric, value, *span, n_users), strict=True))


def mean_popularity(items: NDArray[Any], popularity: NDArray[np.int64]) -> float:
    """Return the mean popularity of `items`, the columns of n interactions, (n,).

    The popularity of an item is its number of users. It is 0 for a column beyond the known items.
    """
    counts = popularity[items[items < len(popularity)]]
    return float(counts.sum() / max(len(items), 1))


def _activity_parts(history: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the indices of the users with short, medium and long histories.

    Users with equally long histories keep their order.
    """
    # `array_split` gives parts whose sizes differ by one at most, for any number of users.
    return [np.sort(part) for part in np.array_split(np.argsort(history, kind="stable"), 3)]


def _popularity_parts(popularity: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each item, (items,): 0 for the head, 1 for the middle, 2 for the tail."""
    order = np.argsort(-popularity, kind="stable")
    # By the interactions of more popular items: each part gets a third of the interactions, not of the items.
    before = np.cumsum(popularity[order]) - popularity[order]
    parts = np.empty(len(popularity), dtype=np.int64)
    parts[order] = np.minimum(3 * before // max(int(popularity.sum()), 1), 2)
    return parts


def choices_of(truth: sparse.csr_matrix, inside: NDArray[np.bool_]) -> sparse.csr_matrix:
    """Return `truth` with only the choices of items for which `inside`, (items,), is True."""
    choices = truth @ sparse.diags(inside.astype(np.float32))
    choices = choices.tocsr()
    choices.eliminate_zeros()
    return choices


def _diversity(
    rankings: Sequence[Sequence[int]], training: TrainingCounts, seed: int, confidence: float
) -> Iterator[Row]:
    """Yield coverage and novelty.

    Coverage is the share of the training items that at least one ranking contains. The novelty of an item is −log2 of
    the share of users who have it: 1 if half of the users have it, 10 if one in a thousand. An item of no user counts
    like an item of one user. The novelty of the rankings is the mean over the items of a ranking, then over rankings
    that are not empty. It is missing if every ranking is empty.
    """
    shown = np.unique(np.fromiter((item for ranking in rankings for item in ranking), dtype=np.int64))
    yield _row(EVERYTHING, COVERAGE, len(shown) / max(len(training.popularity), 1), (None, None), len(rankings))
    surprise = -np.log2(np.maximum(training.popularity, 1) / max(training.n_users, 1))
    each = np.array([surprise[list(ranking)].mean() for ranking in rankings if len(ranking)])
    if len(each):
        (span,) = intervals(each[:, np.newaxis], seed=seed, confidence=confidence, n=_RESAMPLINGS)
        yield _row(EVERYTHING, NOVELTY, float(each.mean()), span, len(each))
