"""Helpers of all scorers: exclusions, profiles, and the selection of the best items."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.history import History
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.recommenders.base import best_items, excluded_columns, profile

N_ITEMS = 200
HISTORY = History(
    np.array([0, 2, 2], dtype=np.int64), np.array([4, 9], dtype=np.int32), np.array([2.0, 0.5], dtype=np.float32)
)


def columns(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_excluded_and_seen_items_never_come_back() -> None:
    """Excluded items never come back. Seeds and the items of the user's history come back only if requested."""
    query = Query(limit=5, user=0, seeds=columns(1), exclude=columns(7))
    assert set(excluded_columns(query, HISTORY).tolist()) == {1, 4, 7, 9}
    assert excluded_columns(query._replace(include_seen=True), HISTORY).tolist() == [7]
    assert excluded_columns(Query(limit=5, user=1), HISTORY).tolist() == []


def test_the_profile_is_the_history_or_the_seeds() -> None:
    """The profile has the weights of the items unless all are 1."""
    rows, values = profile(Query(limit=5, user=0), HISTORY)
    assert values is not None
    assert (rows.tolist(), values.tolist()) == ([4, 9], [2.0, 0.5])
    assert profile(Query(limit=5, seeds=columns(3)), HISTORY)[1] is None


@pytest.mark.parametrize("share", [1.0, 0.8, 0.3, 0.02, 0.0])
def test_the_best_are_those_of_a_full_sort(share: float) -> None:
    """The best items agree for any allowed set. Ties go to the lower column."""
    rng = np.random.default_rng([3, int(share * 100)])
    for limit in (1, 10, N_ITEMS + 1):
        scores = rng.integers(0, 20, N_ITEMS).astype(np.float64)
        allowed = rng.random(N_ITEMS) < share
        exclude = rng.integers(0, N_ITEMS, 30).astype(np.int32)
        left = [c for c in range(N_ITEMS) if allowed[c] and c not in set(exclude.tolist())]
        expected = sorted(left, key=lambda column: (-scores[column], column))[:limit]
        query = Query(limit=limit, exclude=exclude, allowed=ItemSet.of_flags(allowed))
        assert best_items(scores.copy(), query, HISTORY).tolist() == expected
