"""Models that score by a dense matrix of weights between items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranking.item_sets import best, mask, reaching
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import ItemWeightScorer, excluded_columns, is_few, profile
from svc.model.recommenders.products import UNIT_ROUNDOFF, row_sums
from svc.model.recommenders.similar import cosines_of_rows, strongest

ROWS_AT_ONCE = 256
CELLS_AT_ONCE = 1 << 20
"""The most weights that are copied at once. Bounds the memory for a long history, but not the time."""


class DenseWeightsScorer(ItemWeightScorer):
    """Scores by `weights`, (n, n) float32. Row i holds the weights with which item i of a profile counts for all items.

    A float32 product of the profile with the weights selects candidates. Their scores are then summed again in float64,
    in the order of the profile.
    """

    kind: ClassVar[str] = "dense_weights"

    _largest: NDArray[np.float64]

    def __init__(self, weights: NDArray[np.float32]) -> None:
        self.weights = weights

    @property
    def n_items(self) -> int:
        return len(self.weights)

    def ready(self) -> None:
        # By row, because `np.abs` of all weights would copy them, 441 MB for 10,506 items.
        largest = [max(row.max(), -row.min()) for row in self.weights]
        self._largest = np.array(largest, dtype=np.float64)

    def totals(
        self,
        rows: NDArray[np.int32],
        values: NDArray[np.float64] | None,
        positions: NDArray[np.int32] | None = None,
    ) -> NDArray[np.float64]:
        total = np.zeros(self.n_items)
        for number, row in enumerate(rows):
            exact = self.weights[row].astype(np.float64)
            # One row after the other, so that the bits of a sum depend on the order of the profile alone.
            total += exact if values is None else values[number] * exact
        if positions is None:
            return total
        placed = np.empty_like(total)
        placed[positions] = total
        return placed

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> Contributions:
        rows, values = profile(query, history)
        # Only the cells of the shown items are read, not whole rows of the catalogue.
        addends = self.weights[rows, items[:, np.newaxis]].astype(np.float64)
        addends = addends if values is None else addends * values
        return Contributions(rows, addends, n_disliked=len(query.dislikes))

    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return cosines of the strongest weights of the items."""
        every = np.arange(self.n_items, dtype=np.int32)
        return cosines_of_rows(strongest(every, self.weights[item], item) for item in items.tolist())

    def weights_by_item(self) -> Callable[[int], NDArray[np.float32]]:
        return self._weights_towards

    def _weights_towards(self, column: int) -> NDArray[np.float32]:
        return self.weights[:, column]

    def _rank(self, query: Query, history: History) -> Ranking:
        rows, values = profile(query, history)
        if values is None:
            values = np.ones(len(rows))
        excluded = excluded_columns(query, history)
        if query.allowed is not None and is_few(query.allowed):
            items: NDArray[Any] = query.allowed.columns_without(excluded)
        else:
            items = self._candidates(rows, values, query, excluded)
        scores = self._exact(rows, values, items)
        first = best(scores, query.limit)
        return Ranking(items[first].astype(np.int32), scores[first])

    def _candidates(
        self, rows: NDArray[np.int32], values: NDArray[np.float64], query: Query, excluded: NDArray[np.int32]
    ) -> NDArray[np.intp]:
        """Return the columns, ascending, of all items that may be among the best, and of a few other items."""
        approximate = self._approximate(rows, values.astype(np.float32))
        approximate[excluded] = -np.inf
        if query.allowed is not None:
            mask(approximate, query.allowed.flags())
        # The bound of `scan.error_bound`, with the largest weight of each row in place of a norm.
        slack = (len(rows) + 8) * (UNIT_ROUNDOFF * 1.01 * float(np.abs(values) @ self._largest[rows]) + 1e-37)
        # Twice the slack: the item at the bound may be too high by it, and another item too low.
        return reaching(approximate, query.limit, 2 * slack)

    def _approximate(self, rows: NDArray[np.int32], values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return Σ value · weights[row] in float32, (n,)."""
        total = np.zeros(self.n_items, dtype=np.float32)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            # Indexing copies the rows, so a long history is read in parts.
            total += values[part] @ self.weights[rows[part]]
        return total

    def _exact(self, rows: NDArray[np.int32], values: NDArray[np.float64], items: NDArray[Any]) -> NDArray[np.float64]:
        """Return Σ value · weights[row, item] in float64 for each of `items`, (m,)."""
        scores = np.empty(len(items))
        step = max(1, CELLS_AT_ONCE // max(1, len(rows)))
        for start in range(0, len(items), step):
            part = slice(start, start + step)
            cells = self.weights[rows, items[part, np.newaxis]].astype(np.float64)
            # Not `cells @ values`: the bits of a BLAS product depend on the number of its rows, here of candidates.
            scores[part] = row_sums(cells * values)
        return scores
