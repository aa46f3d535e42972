"""Reorder the best items of the winner by a weighted sum of features."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from svc.errors import PayloadInvalid
from svc.model.history import History
from svc.model.ranker.contributions import Contributions
from svc.model.ranker.item_record import Feature, ItemRecord, names
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.topk import reaching
from svc.model.stored import Stored

REORDERED: Final = 50
"""The number of best items, after exclusions and filters, that are reordered."""

Values = NDArray[np.float64]


class PageRanker(Stored):
    """A linear ranker of standardized features: Σ weight · (feature − mean) / deviation, (F,) float32 each.

    A feature that did not vary in training has the weight 0 and the deviation 1.
    """

    def __init__(
        self,
        record: ItemRecord,
        weights: NDArray[np.float32],
        means: NDArray[np.float32],
        deviations: NDArray[np.float32],
    ) -> None:
        self.record = record
        self.weights = weights
        self.means = means
        self.deviations = deviations

    @property
    def features(self) -> tuple[Feature, ...]:
        """Return the features in the order of the weights."""
        return names(self.record)

    @property
    def scale_of_score(self) -> float:
        """Return the factor of the winner's score."""
        return self._contributions.of_score

    def ready(self) -> None:
        """Compute the addends that depend on the item alone."""
        weights, means, deviations = (array.astype(np.float64) for array in (self.weights, self.means, self.deviations))
        self._contributions = Contributions(self.record, weights, means, deviations, REORDERED)

    def check(self, n_items: int) -> None:
        """Raise PayloadInvalid unless the ranker was made for `n_items` items, with a weight for each feature."""
        self.record.check(n_items)
        for array in (self.weights, self.means, self.deviations):
            if array.shape != (len(self.features),):
                raise PayloadInvalid(
                    f"payload: the ranker has {len(self.features)} features and numbers for {array.size}"
                )

    def page(self, query: Query, ranking: Ranking, history: History) -> Ranking:
        """Return the ranking that answers `query`, given that of the winner with at least REORDERED items.

        The best items are reordered. They stand above the others, which keep their order and scores.
        """
        items, scores = ranking.items, ranking.scores
        if query.unordered:
            order = _best_first(items, scores, REORDERED)
            items, scores = items[order], scores[order]
        n = min(REORDERED, len(items))
        if not n:
            return ranking
        own = np.add.reduce(self.contributions(history_of(query, history), items[:n], scores[:n]), axis=0)
        order = (-own).argsort(kind="stable")
        own = own.take(order)
        best, shown, ties = items[:n].take(order), own - own[-1] + scores[n - 1], np.arange(n)
        if n < len(items):
            best, shown = np.concatenate([best, items[n:]]), np.concatenate([shown, scores[n:]])
            ties = np.concatenate([ties, REORDERED + items[n:].astype(np.int64)])
        kept = slice(None if query.unordered else query.limit)
        return Ranking(best[kept], shown[kept], ties=ties[kept])

    def contributions(self, history: NDArray[np.int32], items: NDArray[np.int32], scores: Values) -> Values:
        """Return the contributions, (G, n), of the GROUPS to `items`, which the winner ranks in this order."""
        return self._contributions.of(history, items, scores)


def history_of(query: Query, history: History) -> NDArray[np.int32]:
    """Return the item columns of the history behind `query`, oldest first if the model keeps the order of histories."""
    return history.items(query.user) if query.user >= 0 else query.seeds


def _best_first(items: NDArray[np.int32], scores: Values, most: int) -> NDArray[np.intp]:
    """Return an order of `items` that begins with the `most` best, by descending score, ties by ascending column."""
    leaders = reaching(scores, most)
    first = leaders[np.lexsort((items[leaders], -scores[leaders]))]
    others = np.ones(len(items), dtype=np.bool_)
    others[first] = False
    return np.concatenate([first, np.flatnonzero(others)])
