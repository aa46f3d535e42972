"""Popularity ranks items in the same order for every user."""

from __future__ import annotations

import numpy as np

from svc.model.history import History
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.ranking.steps import result_of
from svc.model.recommenders.popularity import PopularityScorer

EMPTY = History(np.array([0, 0, 2], dtype=np.int64), np.array([1, 4], dtype=np.int32))


def test_all_users_get_the_same_order_without_their_own_items() -> None:
    """Scores fall, ties by column. Seen, excluded and disallowed items are left out."""
    scorer = PopularityScorer(np.array([2.0, 5.0, 2.0, 0.0, 9.0]))
    scorer.ready()
    allowed = ItemSet.of_columns(np.array([0, 2, 3], dtype=np.int32), 5)
    queries = [
        Query(limit=3, user=0),
        Query(limit=3, user=1),
        Query(limit=9, user=0, exclude=np.array([2], dtype=np.int32)),
        Query(limit=2, user=0, allowed=allowed),
    ]
    rankings = scorer.rank(queries, EMPTY)
    assert [ranking.items.tolist() for ranking in rankings] == [[4, 1, 0], [0, 2, 3], [4, 1, 0, 3], [0, 2]]
    assert rankings[0].scores.tolist() == [9.0, 5.0, 2.0]


def test_popularity_has_no_reasons_and_no_similarities() -> None:
    """The scorer has no contributions of single items, and all of its similarities are 0."""
    scorer = PopularityScorer(np.arange(4.0))
    items = np.arange(4, dtype=np.int32)
    assert scorer.contributions(Query(limit=1, user=0), EMPTY, items) is None
    assert result_of(scorer.similar(items))(2).tolist() == [0.0] * 4
