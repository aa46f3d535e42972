"""Rankings of the live model, as it is served, for the users of a split.

What it was trained on counts neither for nor against it: pairs in its history are neither hits nor misses, and no
compared model may recommend them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.training.data.split import Split
from svc.training.evaluation.evaluator import Rows, Scores

_AT_ONCE = 256


@dataclass(frozen=True, slots=True, eq=False)
class IndexMapping:
    """Maps rows and columns of a split to those of the live model; −1 for users and items that it lacks."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, model: Model, split: Split, user_ids: Sequence[str], item_ids: Sequence[str]) -> IndexMapping:
        rows = model.user_ids.indices([user_ids[row] for row in split.order.tolist()])
        columns = model.item_ids.indices([item_ids[column] for column in split.item_order.tolist()])
        return cls(rows.astype(np.int64), columns.astype(np.int64))

    def history(self, model: Model) -> sparse.csr_matrix:
        """(users, items) of the split with 1 where the live model's history has the pair."""
        row_of = _inverse(self.rows, model.n_users)
        column_of = _inverse(self.columns, model.n_items)
        owners = np.repeat(row_of, np.diff(model.history.offsets))
        items = column_of[model.history.columns]
        both = (owners >= 0) & (items >= 0)
        shape = (len(self.rows), len(self.columns))
        ones = np.ones(int(both.sum()), dtype=np.float32)
        return sparse.csr_matrix((ones, (owners[both], items[both])), shape=shape)


def _inverse(mapping: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    inverse = np.full(size, -1, dtype=np.int64)
    mapped = mapping >= 0
    inverse[mapping[mapped]] = np.flatnonzero(mapped)
    return inverse


class LiveScores:
    """Scores of rows of a split by `model`, with −inf for whatever is not among the best `cutoff` of a user.

    All items that share the last place's score are kept, so that the evaluation breaks ties between them as it does
    for any model. `seen` is what is not recommended, in rows and columns of the split.
    """

    def __init__(self, model: Model, mapping: IndexMapping, seen: sparse.csr_matrix, cutoff: int) -> None:
        self._model = model
        self._mapping = mapping
        self._seen = seen
        self._cutoff = cutoff
        self._column_of = _inverse(mapping.columns, model.n_items)
        self._gone = np.flatnonzero(self._column_of < 0).astype(np.int32)

    def __call__(self, rows: Rows) -> Scores:
        scores = np.full((len(rows), len(self._mapping.columns)), -np.inf)
        in_model = np.flatnonzero(self._mapping.rows[rows] >= 0)
        parts = [in_model[start : start + _AT_ONCE] for start in range(0, len(in_model), _AT_ONCE)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for part, rankings in zip(parts, pool.map(self._rank, [rows[part] for part in parts]), strict=True):
                for position, ranking in zip(part.tolist(), rankings, strict=True):
                    scores[position, self._column_of[ranking.items]] = ranking.scores
        return scores

    def _rank(self, rows: Rows) -> list[Ranking]:
        queries = [self._query(row, 2 * self._cutoff) for row in rows.tolist()]
        rankings = self._model.rank(queries)
        for position, (query, ranking) in enumerate(zip(queries, rankings, strict=True)):
            more = len(ranking.items) == query.limit
            if more and ranking.scores[self._cutoff - 1] == ranking.scores[-1]:
                everything = query._replace(limit=self._model.n_items)
                rankings[position] = self._model.rank([everything])[0]
        return rankings

    def _query(self, row: int, limit: int) -> Query:
        query = self._model.known_user(int(self._mapping.rows[row]), limit=limit)
        seen = self._seen.indices[self._seen.indptr[row] : self._seen.indptr[row + 1]]
        columns = self._mapping.columns[seen]
        own = columns[columns >= 0].astype(np.int32)
        return query._replace(exclude=np.concatenate([query.exclude, own, self._gone]))
