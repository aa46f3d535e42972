"""Rank the users of a split by the winner and its learned order, as the new model will."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.history import History
from svc.model.ranker.page_ranker import REORDERED, PageRanker
from svc.model.ranking.query import Query, Ranking
from svc.training.judging.evaluator import Rankings, Rows


class Pooling(Protocol):
    """A ranker that returns the best items of the users of a split, with scores."""

    def pools(self, users: Rows, size: int) -> Iterable[tuple[NDArray[np.int32], NDArray[np.float64]]]:
        """Return for each user the columns of the `size` best items, best first, and their scores."""

    def excluding(self, pairs: sparse.csr_matrix) -> Pooling:
        """Return the same ranker without these items, (users, items) of the split."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRanker:
    """A ranker by the winner, `own`, whose best items `ranker` reorders by the histories of the split.

    Rows in `judges` are reordered by their own ranker, whose weights were fitted without their user.
    """

    own: Pooling
    ranker: PageRanker
    judges: Mapping[int, PageRanker]
    history: History

    def excluding(self, pairs: sparse.csr_matrix) -> OrderedRanker:
        """Return the same ranker without these items, (users, items) of the split."""
        return replace(self, own=self.own.excluding(pairs))

    def __call__(self, users: Rows, size: int) -> Rankings:
        pools = self.own.pools(users, max(size, REORDERED))
        return [
            self._page(Query(limit=size, user=row), Ranking(items, scores))
            for row, (items, scores) in zip(users.tolist(), pools, strict=True)
        ]

    def _page(self, query: Query, ranking: Ranking) -> list[int]:
        ranker = self.judges.get(query.user, self.ranker)
        page: list[int] = ranker.page(query, ranking, self.history).items.tolist()
        return page
