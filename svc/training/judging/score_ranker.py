"""Rank users by the scores of all items at once, to compare the trials of a search.

Sorting whole rows of scores would take most of the time, so only candidates for the best are sorted. Of items with
equal scores the first column comes first, as in the served model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.evaluator import Rankings, Rows

_BLOCK_BYTES = 2 << 20
"""Bytes of scores that are ranked at once, so that they stay in the cache of a core."""

Scores = NDArray[Any]
Scorer = Callable[[Rows], Scores]
"""(r,) ascending rows of the training matrix to their scores, (r, items), free to overwrite."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRanker:
    """A ranker of the rows of `seen`, (users, items), by `scorer`. Items in `seen` are not recommended."""

    scorer: Scorer
    seen: sparse.csr_matrix

    def __call__(self, users: Rows, size: int) -> Rankings:
        step = int(max(16, min(1024, _BLOCK_BYTES // (4 * max(self.seen.shape[1], 1)))))
        rankings: Rankings = []
        for begin in range(0, len(users), step):
            rows = users[begin : begin + step]
            # Only these rows: all rows from the first user to the last cost six times as much (2,000 of 12,681 users).
            scores, seen = self.scorer(rows), self.seen[rows]
            scores[np.repeat(np.arange(len(rows)), np.diff(seen.indptr)), seen.indices] = -np.inf
            rankings += best_columns(scores, size)
        return rankings


def best_columns(scores: Scores, k: int) -> Rankings:
    """Return the columns of the `k` best scores of each row, best first, without masked ones.

    Equal scores are ordered by column. Column j belongs to group j mod g. At least k scores reach the k-th largest
    group maximum, so only groups that reach it are searched. If many groups share that bound, like the zeros of a
    sparse model, only entries above it are sorted. The first entries at the bound fill the rest.
    """
    b, n = scores.shape
    groups = min(n, max(512, 8 * k))
    depth = n // groups
    head = scores[:, : depth * groups].reshape(b, depth, groups)
    tail = np.pad(scores[:, depth * groups :], ((0, 0), (0, (depth + 1) * groups - n)), constant_values=-np.inf)
    maxima = np.maximum(np.maximum.reduce(head, axis=1), tail)
    kth_largest = max(groups - k, 0)
    bound = np.partition(maxima, kth_largest, axis=1)[:, kth_largest]
    wide = np.isneginf(bound) | (np.count_nonzero(maxima >= bound[:, np.newaxis], axis=1) > 2 * k)
    floor = np.where(wide, np.nextafter(bound, np.inf, dtype=bound.dtype), bound)
    rows, group = np.divmod(np.flatnonzero(maxima >= floor[:, np.newaxis]), groups)
    values = np.concatenate([head[rows, :, group], tail[rows, group][:, np.newaxis]], axis=1)
    at, layer = np.divmod(np.flatnonzero(values >= floor[rows, np.newaxis]), depth + 1)
    rows, columns, values = rows[at], group[at] + layer * groups, values[at, layer]
    best_first = np.lexsort((columns, -values, rows))
    ends = np.searchsorted(rows[best_first], np.arange(b + 1)).tolist()
    ranked = columns[best_first].tolist()
    best = [ranked[begin : min(begin + k, end)] for begin, end in pairwise(ends)]
    for row in np.flatnonzero(wide & (bound > -np.inf)).tolist():
        missing = k - len(best[row])
        if missing > 0:
            best[row] += _first_equal(scores[row], bound[row], missing)
    return best


def _first_equal(scores: Scores, bound: float, count: int) -> list[int]:
    """Return the first columns that hold `bound`, at most `count`.

    The beginning of the row is tried first, because it suffices for most rows.
    """
    columns = np.flatnonzero(scores[: 8 * count] == bound)
    if len(columns) < count:
        columns = np.flatnonzero(scores == bound)
    first: list[int] = columns[:count].tolist()
    return first
