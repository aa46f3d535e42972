"""The metrics of rankings: means over users, and figures of all lists together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.bootstrap import Vector

PER_USER = ("ndcg", "map", "recall", "hit")
"""Metrics that are a mean over users, with intervals."""
METRICS = (*PER_USER, "precision", "gini_index", "entropy", "appeared_item", "catalog_coverage")


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


def list_metrics(rankings: Sequence[Sequence[int]], truth: sparse.csr_matrix) -> dict[str, float]:
    """Return the other METRICS: precision, and how evenly all lists together recommend the items."""
    n_items, lengths = truth.shape[1], np.array([len(ranking) for ranking in rankings])
    items = np.fromiter(chain.from_iterable(rankings), dtype=np.int64, count=int(lengths.sum()))
    owners = np.repeat(np.arange(len(lengths)), lengths)
    n_hits = np.bincount(owners[_worth(truth.sorted_indices(), owners, items) > 0], minlength=len(lengths))
    counts = np.sort(np.bincount(items, minlength=n_items))
    shares = counts[counts > 0] / max(len(items), 1)
    return {
        "precision": float((n_hits / np.maximum(lengths, 1)).mean()),
        "gini_index": float((2 * np.arange(n_items) + 1 - n_items) @ counts / (n_items * max(len(items), 1))),
        "entropy": float(-(shares * np.log(shares)).sum()),
        "appeared_item": float(len(shares)),
        "catalog_coverage": len(shares) / n_items,
    }
