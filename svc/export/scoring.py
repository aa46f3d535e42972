"""Ranking of many rows by several threads. The results keep the order of the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.export.request import ExportRequest
from svc.export.user_selection import Rows
from svc.model.model import Model
from svc.model.ranking.query import Query, Restriction

AHEAD = 2
"""Number of chunks for each thread that may wait to be written. Two keep the thread busy in constant memory."""


class Scored(NamedTuple):
    """The rankings of consecutive rows, concatenated. `counts[i]` entries belong to `rows[i]`."""

    rows: Rows
    counts: NDArray[np.int64]
    items: NDArray[np.int32]
    scores: NDArray[np.float64]

    def ranks(self) -> NDArray[np.int32]:
        """Return the rank of each entry in its ranking, from 1."""
        ends = np.cumsum(self.counts)
        starts = np.repeat(ends - self.counts, self.counts)
        return (np.arange(len(self.items)) - starts + 1).astype(np.int32)


def score(model: Model, request: ExportRequest, rows: Rows) -> Scored:
    """Return the same rankings that the API would answer for each row."""
    rankings = model.rank([_query(model, request, row) for row in rows.tolist()])
    return Scored(
        rows,
        np.array([len(ranking.items) for ranking in rankings], dtype=np.int64),
        np.concatenate([ranking.items for ranking in rankings]),
        np.concatenate([ranking.scores for ranking in rankings]),
    )


def _query(model: Model, request: ExportRequest, row: int) -> Query:
    if request.to_users:
        item = model.item_ids.at(row)
        return model.prepare_users(item_id=item, item_features=None, limit=request.limit, order=request.order).query
    if request.related:
        return Query(limit=request.limit, seeds=np.array([row], dtype=np.int32), allowed=request.allowed)
    restriction = Restriction(allowed=request.allowed, new=request.new)
    return model.known_user(row, limit=request.limit, restriction=restriction)


def score_all(model: Model, request: ExportRequest, chunks: Iterator[Rows], threads: int) -> Iterator[Scored]:
    """Yield the rankings of each chunk, in order. Closing the iterator ends the threads."""
    pool = ThreadPoolExecutor(threads, "svc-export")
    waiting: deque[Future[Scored]] = deque()
    try:
        for rows in chunks:
            waiting.append(pool.submit(score, model, request, rows))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
