"""Rank the users of a split with a model, as a server does."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from threadpoolctl import threadpool_limits

from svc.cores import usable_cores
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import NO_ITEMS, Query
from svc.training.data.split import Split
from svc.training.judging.evaluator import Rankings, Rows

_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class ServedRanker:
    """A ranker of the rows of a split by `model`, with an empty ranking for users that the model does not know.

    `rows` and `columns` have the row and column in the model of each user and item of the split, or −1 if it lacks
    them. The model leaves out its own hidden and seen items. Items of `excluded`, (users, items) of the split, are left
    out too.
    """

    model: Model
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    excluded: sparse.csr_matrix

    @classmethod
    def of(
        cls, model: Model, split: Split, user_ids: Sequence[str], item_ids: Sequence[str], excluded: sparse.csr_matrix
    ) -> ServedRanker:
        """Return the ranker of a model whose users and items are in another order than those of the split."""
        rows = model.user_ids.indices([user_ids[row] for row in split.order.tolist()])
        columns = model.item_ids.indices([item_ids[column] for column in split.item_order.tolist()])
        return cls(model, rows.astype(np.int64), columns.astype(np.int64), excluded)

    @classmethod
    def alike(cls, model: Model) -> ServedRanker:
        """Return the ranker of a model whose rows and columns are those of the split."""
        nothing = sparse.csr_matrix((model.n_users, model.n_items), dtype=np.float32)
        return cls(model, np.arange(model.n_users), np.arange(model.n_items), nothing)

    def excluding(self, pairs: sparse.csr_matrix) -> ServedRanker:
        """Return the same ranker without these items, (users, items) of the split."""
        return replace(self, excluded=(self.excluded + pairs).tocsr())

    def __call__(self, users: Rows, size: int) -> Rankings:
        return [items.tolist() for items, _ in self.pools(users, size)]

    def pools(self, users: Rows, size: int) -> list[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """Return the items of each user, best first, as columns of the split, and their scores."""
        pools = [(NO_ITEMS, np.empty(0))] * len(users)
        column_of = _inverse(self.columns, self.model.n_items).astype(np.int32)
        not_in_split = np.flatnonzero(column_of < 0).astype(np.int32)
        in_model = np.flatnonzero(self.rows[users] >= 0)
        parts = [in_model[start : start + _AT_ONCE] for start in range(0, len(in_model), _AT_ONCE)]

        def rank(part: Rows) -> None:
            queries = [self._query(row, size, not_in_split) for row in users[part].tolist()]
            for position, ranking in zip(part.tolist(), self.model.rank(queries), strict=True):
                pools[position] = column_of[ranking.items], ranking.scores

        limits = threadpool_limits(limits=1, user_api="blas")  # the setting of servers
        with limits, ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(rank, parts))
        return pools

    def pairs(self, rows: History) -> sparse.csr_matrix:
        """Return the pairs of the model's histories `rows` as a matrix of ones, (users, items) of the split."""
        row_of = _inverse(self.rows, self.model.n_users)
        column_of = _inverse(self.columns, self.model.n_items)
        owners = np.repeat(row_of, np.diff(rows.offsets))
        items = column_of[rows.columns]
        both = (owners >= 0) & (items >= 0)
        ones = np.ones(int(both.sum()), dtype=np.float32)
        return sparse.csr_matrix((ones, (owners[both], items[both])), shape=(len(self.rows), len(self.columns)))

    def _query(self, row: int, size: int, not_in_split: NDArray[np.int32]) -> Query:
        query = self.model.known_user(int(self.rows[row]), limit=size)
        own = self.columns[self.excluded.indices[self.excluded.indptr[row] : self.excluded.indptr[row + 1]]]
        exclude = np.concatenate([query.exclude, own[own >= 0].astype(np.int32), not_in_split])
        return query._replace(exclude=exclude)


def _inverse(mapping: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    inverse = np.full(size, -1, dtype=np.int64)
    mapped = mapping >= 0
    inverse[mapping[mapped]] = np.flatnonzero(mapped)
    return inverse
