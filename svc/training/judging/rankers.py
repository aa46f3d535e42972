"""Rank items for the users of a split, by scores of all items or by a served model, and measure the ranking time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.asking.offer import Offer
from svc.asking.plan import known_user
from svc.cores import one_blas_thread, usable_cores
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.item_sets import best
from svc.model.ranking.query import NO_ITEMS, Query
from svc.training.data.split import SplitMatrices
from svc.training.judging.evaluator import Rankings, Rows

_BLOCK_BYTES = 8 << 20
"""Bytes of scores to compute at once.

With 2 MiB, matrix products of few users take longer: 521 instead of 307 ms for 2,000 users, 41,000 items and 64
components. More than 8 MiB gain little below 20,000 items.
"""

Scores = NDArray[Any]
ScoresOfUsers = Callable[[Rows], Scores]
"""A function of users, (r,) ascending rows of the training matrix, that returns their scores, (r, items).

The caller may overwrite the returned array.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreRanker:
    """A ranker by the scores of `scorer`. Items in `seen`, (users, items), are not recommended."""

    scorer: ScoresOfUsers
    seen: sparse.csr_matrix

    def __call__(self, users: Rows, size: int) -> Rankings:
        step = int(max(16, min(1024, _BLOCK_BYTES // (4 * max(self.seen.shape[1], 1)))))
        rankings: Rankings = []
        for begin in range(0, len(users), step):
            rows = users[begin : begin + step]
            # Select single rows of `seen`. A slice from the first of the users to the last has more rows. For 2,000 of
            # 12,681 users, it took six times as long.
            scores, seen = self.scorer(rows), self.seen[rows]
            scores[np.repeat(np.arange(len(rows)), np.diff(seen.indptr)), seen.indices] = -np.inf
            rankings += [best(own, size).tolist() for own in scores]
        return rankings


_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class ServedRanker:
    """A ranker for the users of a split by a `model`, with an empty ranking for users that the model does not know.

    - `rows` has the row in the model of each user of the split, and `columns` the column of each item, −1 if unknown.
    - `excluded`, (users, items) of the split, has items that are left out of rankings, in addition to the seen and
      hidden items of each user in the model.
    """

    model: Model
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    excluded: sparse.csr_matrix

    @classmethod
    def of(
        cls,
        model: Model,
        split: SplitMatrices,
        user_ids: Sequence[str],
        item_ids: Sequence[str],
        excluded: sparse.csr_matrix,
    ) -> ServedRanker:
        """Return a ranker by a model whose users and items may differ from those of the split.

        `user_ids` and `item_ids` are the ids of the interactions that were split.
        """
        rows = model.user_ids.indices([user_ids[row] for row in split.order.tolist()])
        columns = model.item_ids.indices([item_ids[column] for column in split.item_order.tolist()])
        return cls(model, rows.astype(np.int64), columns.astype(np.int64), excluded)

    @classmethod
    def alike(cls, model: Model) -> ServedRanker:
        """Return a ranker by a model whose rows and columns are those of the split."""
        nothing = sparse.csr_matrix((model.n_users, model.n_items), dtype=np.float32)
        return cls(model, np.arange(model.n_users), np.arange(model.n_items), nothing)

    def excluding(self, pairs: sparse.csr_matrix) -> ServedRanker:
        """Return the same ranker that also leaves out the items in `pairs`, (users, items) of the split."""
        return replace(self, excluded=(self.excluded + pairs).tocsr())

    def __call__(self, users: Rows, size: int) -> Rankings:
        return [items.tolist() for items, _ in self.pools(users, size)]

    def pools(self, users: Rows, size: int) -> list[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """Return at most `size` items for each user, best first, as columns of the split, and their scores."""
        pools = [(NO_ITEMS, np.empty(0))] * len(users)
        offer = Offer(model=self.model)
        column_of = _inverse(self.columns, self.model.n_items).astype(np.int32)
        # Excluded from the ranking: items that only the model knows would take places of a page, and no user could
        # choose them.
        not_in_split = np.flatnonzero(column_of < 0).astype(np.int32)
        in_model = np.flatnonzero(self.rows[users] >= 0)
        parts = [in_model[start : start + _AT_ONCE] for start in range(0, len(in_model), _AT_ONCE)]

        def rank(part: Rows) -> None:
            queries = [self._query(offer, row, size, not_in_split) for row in users[part].tolist()]
            for position, ranking in zip(part.tolist(), self.model.rank(queries), strict=True):
                pools[position] = column_of[ranking.items], ranking.scores

        with one_blas_thread(), ThreadPoolExecutor(usable_cores()) as pool:  # one thread is the setting of servers
            # `list`, because an exception of a part is raised only when its result is read.
            list(pool.map(rank, parts))
        return pools

    def pairs(self, rows: History) -> sparse.csr_matrix:
        """Return a matrix, (users, items) of the split, that is 1 at the pairs in `rows`, histories of the model.

        Users and items that are not in the split are left out.
        """
        row_of = _inverse(self.rows, self.model.n_users)
        column_of = _inverse(self.columns, self.model.n_items)
        owners = np.repeat(row_of, np.diff(rows.offsets))
        items = column_of[rows.columns]
        both = (owners >= 0) & (items >= 0)
        ones = np.ones(int(both.sum()), dtype=np.float32)
        return sparse.csr_matrix((ones, (owners[both], items[both])), shape=(len(self.rows), len(self.columns)))

    def _query(self, offer: Offer, row: int, size: int, not_in_split: NDArray[np.int32]) -> Query:
        query = known_user(offer, int(self.rows[row]), limit=size)
        # The arrays of the CSR matrix: scipy takes 23 µs to select one row, they take 0.3.
        own = self.columns[self.excluded.indices[self.excluded.indptr[row] : self.excluded.indptr[row + 1]]]
        exclude = np.concatenate([query.exclude, own[own >= 0].astype(np.int32), not_in_split])
        return query._replace(exclude=exclude)


def _inverse(mapping: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    inverse = np.full(size, -1, dtype=np.int64)
    mapped = mapping >= 0
    inverse[mapping[mapped]] = np.flatnonzero(mapped)
    return inverse


N_USERS = 32
"""Maximum number of users for whom one ranking is timed."""
_LIMIT = 10
_DIGITS = 4


def rank_ms(model: Model, rows: NDArray[np.int64] | None = None) -> float:
    """Return the median milliseconds of processor time to rank ten items for one known user alone, on one thread.

    The users, at most N_USERS, are evenly spread over `rows` of `model`, or over all rows. `ready` of the model must
    have been called. Processor time hardly depends on the load of the machine. A server needs less time for each of
    several requests that it ranks together.
    """
    known_rows = np.arange(model.n_users) if rows is None else rows
    timed = known_rows[:: max(1, len(known_rows) // N_USERS)][:N_USERS]
    offer = Offer(model=model)
    queries = [known_user(offer, int(row), limit=_LIMIT) for row in timed]
    with one_blas_thread():  # the setting of servers
        model.rank(queries[:1])  # the first call also fills caches
        return round(1e3 * median(_seconds(model, query) for query in queries), _DIGITS)


def _seconds(model: Model, query: Query) -> float:
    began = time.thread_time()
    model.rank([query])
    return time.thread_time() - began
