"""Models whose score is the sum of the weights of the items in the profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History, Offsets
from svc.model.query import Query, Ranking
from svc.model.recommenders.base import Side, left_out, profile
from svc.model.stored import Stored
from svc.model.topk import best


class NeighbourScorer(Stored):
    """Sparse item-to-item weights, (n, n), by row: `offsets` (n + 1,), `columns` int32, `weights` float32.

    Sums are in float64 and in the order of the profile, so they are the same wherever a query is answered.
    """

    kind: ClassVar[str] = "neighbours"
    reads_values: ClassVar[bool] = True

    def __init__(self, offsets: Offsets, columns: NDArray[np.int32], weights: NDArray[np.float32]) -> None:
        self.offsets = offsets
        self.columns = columns
        self.weights = weights

    @property
    def n_items(self) -> int:
        return len(self.offsets) - 1

    def ready(self) -> None:
        """Nothing is derived."""

    def feature_dim(self, side: Side) -> int | None:  # noqa: ARG002
        return None

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        return [self._rank(query, history) for query in queries]

    def _rank(self, query: Query, history: History) -> Ranking:
        scores = self._scores(*profile(query, history))
        scores[left_out(query, history)] = -np.inf
        items = best(scores, query.limit)
        return Ranking(items.astype(np.int32), scores[items])

    def _scores(self, rows: NDArray[np.int32], values: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """Σ value · weights[row], (n,)."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        entries = np.arange(total) + np.repeat(starts - ends + lengths, lengths)
        weights = self.weights[entries].astype(np.float64)
        if values is not None:
            weights *= np.repeat(values, lengths)
        return np.bincount(self.columns[entries], weights, minlength=self.n_items).astype(np.float64, copy=False)
