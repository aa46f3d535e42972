"""What one ranking costs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer

N_USERS, LIMIT = 32, 10
Asked = TypeVar("Asked")
_DIGITS = 4


def rank_ms(model: Model) -> float:
    """Median milliseconds of processor time that one ranking of a known user takes by itself, on one thread.

    The users are evenly spread over the rows of `model`, which is ready. Being processor time, the figure hardly
    depends on what else the machine does. Requests that are answered together take less time each.
    """
    queries = [model.known_user(int(row), limit=LIMIT) for row in _spread(model.n_users)]
    return median_ms(lambda query: model.rank([query]), queries)


def rank_ms_of(scorer: Scorer, matrix: sparse.csr_matrix) -> float:
    """The same of a `scorer` that was trained on `matrix`, (users, items), before it is part of a model."""
    rows = _spread(matrix.shape[0])
    lengths = np.zeros(matrix.shape[0], dtype=np.int64)
    lengths[rows] = np.diff(matrix.indptr)[rows]
    chosen = matrix[rows]
    values = chosen.data.astype(np.float32) if scorer.reads_values else None
    history = History(np.concatenate([[0], np.cumsum(lengths)]), chosen.indices.astype(np.int32), values)
    scorer.ready()
    if isinstance(scorer, BlendScorer):
        scorer.measure(history, rows)
    queries = [Query(limit=LIMIT, user=int(row)) for row in rows]
    return median_ms(lambda query: scorer.rank([query], history), queries)


def _spread(n_users: int) -> NDArray[np.intp]:
    """At most N_USERS rows, evenly spread."""
    return np.arange(0, n_users, max(1, n_users // N_USERS))[:N_USERS]


def median_ms(rank: Callable[[Asked], object], queries: Sequence[Asked]) -> float:
    """Median milliseconds of processor time of `rank`, on one thread."""
    with threadpool_limits(limits=1, user_api="blas"):  # as a server sets it
        rank(queries[0])  # the first call also fills caches
        return round(1e3 * median(_seconds(rank, query) for query in queries), _DIGITS)


def _seconds(rank: Callable[[Asked], object], query: Asked) -> float:
    began = time.thread_time()
    rank(query)
    return time.thread_time() - began
