"""Measure the cost of one ranking on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer

N_USERS = 32
_LIMIT = 10
_DIGITS = 4


def rank_ms(model: Model, rows: NDArray[np.int64] | None = None) -> float:
    """Return the median milliseconds of processor time to rank one known user alone, on one thread.

    The users are evenly spread over `rows` of `model`, or over all rows. `model` must be ready. Processor time hardly
    depends on the load of the machine. Requests that are answered together take less time each.
    """
    known_rows = np.arange(model.n_users) if rows is None else rows
    queries = [model.known_user(int(row), limit=_LIMIT) for row in known_rows[_spread(len(known_rows))]]
    return _median_ms(lambda query: model.rank([query]), queries)


def rank_ms_of(scorer: Scorer, matrix: sparse.csr_matrix) -> float:
    """Return `rank_ms` of a `scorer` trained on `matrix`, (users, items), before it is part of a model."""
    rows = _spread(matrix.shape[0])
    lengths = np.zeros(matrix.shape[0], dtype=np.int64)
    lengths[rows] = np.diff(matrix.indptr)[rows]
    chosen = matrix[rows]
    values = chosen.data.astype(np.float32) if scorer.reads_values else None
    history = History(np.concatenate([[0], np.cumsum(lengths)]), chosen.indices.astype(np.int32), values)
    scorer.ready()
    if isinstance(scorer, BlendScorer):
        scorer.measure(history, rows)
    queries = [Query(limit=_LIMIT, user=int(row)) for row in rows]
    return _median_ms(lambda query: scorer.rank([query], history), queries)


def _spread(n_users: int) -> NDArray[np.intp]:
    """Return at most N_USERS rows, evenly spread."""
    return np.arange(0, n_users, max(1, n_users // N_USERS))[:N_USERS]


def _median_ms(rank: Callable[[Query], object], queries: Sequence[Query]) -> float:
    with threadpool_limits(limits=1, user_api="blas"):  # the setting of servers
        rank(queries[0])  # the first call also fills caches
        return round(1e3 * median(_seconds(rank, query) for query in queries), _DIGITS)


def _seconds(rank: Callable[[Query], object], query: Query) -> float:
    began = time.thread_time()
    rank(query)
    return time.thread_time() - began
