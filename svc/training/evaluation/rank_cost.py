"""What one ranking costs on this machine."""

from __future__ import annotations

import time
from statistics import median

from threadpoolctl import threadpool_limits

from svc.model.model import Model
from svc.model.query import Query

N_USERS, LIMIT = 32, 10
_DIGITS = 4


def rank_ms(model: Model) -> float:
    """Median milliseconds of processor time that one ranking of a known user takes by itself, on one thread.

    The users are evenly spread over the rows of `model`, which is ready. Being processor time, the figure hardly
    depends on what else the machine does. Requests that are answered together take less time each.
    """
    rows = range(0, model.n_users, max(1, model.n_users // N_USERS))[:N_USERS]
    queries = [model.known_user(row, limit=LIMIT) for row in rows]
    with threadpool_limits(limits=1, user_api="blas"):  # as a server sets it
        model.rank(queries[:1])  # the first call also fills caches
        return round(1e3 * median(_seconds(model, query) for query in queries), _DIGITS)


def _seconds(model: Model, query: Query) -> float:
    began = time.thread_time()
    model.rank([query])
    return time.thread_time() - began
