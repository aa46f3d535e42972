"""Models that give every user the same ranking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.history import History
from svc.model.ranking.item_sets import without
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import Scorer, excluded_columns


class PopularityScorer(Scorer):
    """Ranks items by `scores`, (n,) float64, which are the same for every user."""

    kind: ClassVar[str] = "popularity"
    reads_dislikes: ClassVar[bool] = False

    _order: NDArray[np.int32]

    def __init__(self, scores: NDArray[np.float64]) -> None:
        self.scores = scores

    @property
    def n_items(self) -> int:
        return len(self.scores)

    def ready(self) -> None:
        self._order = by_count(self.scores)

    def rank(self, queries: Sequence[Query], history: History) -> list[Ranking]:
        of_queries = [first_of(self._order, query, excluded_columns(query, history)) for query in queries]
        return [Ranking(items, self.scores[items]) for items in of_queries]

    def contributions(self, query: Query, history: History, items: NDArray[np.int32]) -> None:  # noqa: ARG002
        """Return None, because scores do not depend on a profile."""
        return

    def similar(self, items: NDArray[np.int32]) -> Steps[Similar]:
        """Return similarities of 0, because the model does not know how items relate. Diversity then has no effect."""
        yield
        return lambda _: np.zeros(len(items))


class PopularPart(Stored):
    """Popularity as a part of a blend. `addends`, (n,) float64, are added to the scores of the items for every user."""

    def __init__(self, addends: NDArray[np.float64]) -> None:
        self.addends = addends

    @classmethod
    def of(cls, scorer: PopularityScorer, weight: float) -> PopularPart:
        """Build the part with the addends weight · score / deviation, or 0 if all items are equally popular.

        The deviation is the standard deviation of the scores of all items.
        """
        # Once for all users, because popularity scores are the same for everybody.
        deviation = float(scorer.scores.std())
        return cls(scorer.scores * (weight / deviation if deviation > 0 else 0.0))


def by_count(counts: NDArray[Any]) -> NDArray[np.int32]:
    """Return the item columns by descending count, ties by ascending column."""
    return np.argsort(-counts, kind="stable").astype(np.int32)


def first_of(order: NDArray[np.int32], query: Query, excluded: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the first items of `order`, (n,), that may be recommended, at most `query.limit`."""
    if query.allowed is None:
        # So many first items suffice even if all excluded ones stand among them.
        return without(order[: query.limit + len(excluded)], excluded, len(order))[: query.limit]
    return without(order[query.allowed.flags()[order]], excluded, len(order))[: query.limit]
