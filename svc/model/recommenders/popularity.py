"""The same order for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.query import Query, Ranking
from svc.model.recommenders.base import Side, left_out
from svc.model.stored import Stored


class PopularityScorer(Stored):
    """The score of each item, (n,) float64."""

    kind: ClassVar[str] = "popularity"
    reads_values: ClassVar[bool] = False

    _order: NDArray[np.int32]

    def __init__(self, scores: NDArray[np.float64]) -> None:
        self.scores = scores

    @property
    def n_items(self) -> int:
        return len(self.scores)

    def ready(self) -> None:
        self._order = np.argsort(-self.scores, kind="stable").astype(np.int32)

    def feature_dim(self, side: Side) -> int | None:  # noqa: ARG002
        return None

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._rank(query, left_out(query, history)) for query in queries]

    def _rank(self, query: Query, banned: NDArray[np.int32]) -> Ranking:
        items = self._order[: query.limit + len(banned)]
        avoided = np.zeros(self.n_items, dtype=np.bool_)
        avoided[banned] = True
        items = items[~avoided[items]][: query.limit]
        return Ranking(items, self.scores[items])
