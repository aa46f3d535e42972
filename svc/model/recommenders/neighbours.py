"""Models that score by a sparse matrix of weights between items."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.explain import Contributions
from svc.model.history import History, Offsets
from svc.model.ranking.item_sets import spans
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import ItemWeightScorer, best_items, profile
from svc.model.recommenders.similar import cosines_of_rows, strongest
from svc.model.recommenders.users import ByColumn


class NeighbourScorer(ItemWeightScorer):
    """Scores by a sparse matrix, (n, n). Row i holds the weights with which item i of a profile counts for other items.

    The matrix is in compressed rows: `offsets` (n + 1,), `columns` (nnz,) int32, and `weights` (nnz,) float32. Sums are
    in float64 and in the order of the profile, so that a query has the same bits in any batch.
    """

    kind: ClassVar[str] = "neighbours"

    def __init__(self, offsets: Offsets, columns: NDArray[np.int32], weights: NDArray[np.float32]) -> None:
        self.offsets = offsets
        self.columns = columns
        self.weights = weights

    @property
    def n_items(self) -> int:
        return len(self.offsets) - 1

    def ready(self) -> None:
        """Do nothing, because rankings need only the stored arrays."""

    def _rank(self, query: Query, history: History) -> Ranking:
        scores = self.totals(*profile(query, history))
        items = best_items(scores, query, history)
        return Ranking(items, scores[items])

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions:
        rows, values = profile(query, history)
        addends = np.zeros((len(items), len(rows)))
        # A table over all items, so that each weight of a row finds its place among the shown items in one lookup.
        position_of = np.full(self.n_items, -1, dtype=np.intp)
        position_of[items] = np.arange(len(items))
        for number, row in enumerate(rows.tolist()):
            part = slice(self.offsets[row], self.offsets[row + 1])
            positions = position_of[self.columns[part]]
            addends[positions[positions >= 0], number] = self.weights[part][positions >= 0]
        addends = addends if values is None else addends * values
        return Contributions(rows, addends, n_disliked=len(query.dislikes))

    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return cosines of the strongest weights of the items."""
        ends = self.offsets[items + 1].tolist()
        parts = [slice(start, end) for start, end in zip(self.offsets[items].tolist(), ends, strict=True)]
        return cosines_of_rows(
            strongest(self.columns[part], self.weights[part], item)
            for part, item in zip(parts, items.tolist(), strict=True)
        )

    def weights_by_item(self) -> Callable[[int], NDArray[np.float32]]:
        # Takes 4 bytes a weight, so it is made only for models that rank users.
        return partial(self._weights_towards, ByColumn.of(self.columns, self.n_items))

    def _weights_towards(self, by_column: ByColumn, column: int) -> NDArray[np.float32]:
        weights = np.zeros(self.n_items, dtype=np.float32)
        rows, entries = by_column.rows(column, self.offsets)
        weights[rows] = self.weights[entries]
        return weights

    def totals(
        self,
        rows: NDArray[np.int32],
        values: NDArray[np.float64] | None,
        positions: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float64]:
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        entries = spans(starts, lengths)
        # Only the rows of the history: irspack takes 29 ms at 41,000 items, because it first converts the whole matrix.
        weights = self.weights.take(entries)
        addends = weights if values is None else weights * np.repeat(values, lengths)  # `bincount` adds in float64
        columns = self.columns.take(entries)
        if positions is not None:
            columns = positions.take(columns)
        return np.bincount(columns, addends, minlength=self.n_items).astype(np.float64, copy=False)
