"""Queries and rankings as values: profiles, and the beginning of a page."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.explain import Because
from svc.model.history import History
from svc.model.ranking.query import Given, Query, Ranking, joined_profile, profile_of, settle_history


def test_a_page_has_its_own_reasons() -> None:
    """Items, scores and both kinds of reasons are cut at the same place. The first page is the ranking itself."""
    because = tuple(Because(((column, 1.0),), 0.0) for column in (7, 8, 9))
    whole = Ranking(
        np.array([5, 4, 3], dtype=np.int32), np.array([3.0, 2.0, 1.0]), True, ((), ("pinned",), ()), because
    )
    assert whole.from_place(0) is whole
    page = whole.from_place(1)
    assert (page.items.tolist(), page.scores.tolist(), page.popular) == ([4, 3], [2.0, 1.0], True)
    assert (page.reasons, page.because) == ((("pinned",), ()), because[1:])
    assert not len(whole.from_place(3).items)


OFFSETS, COLUMNS = np.array([0, 3]), np.array([4, 0, 2], dtype=np.int32)


def given(columns: list[int], weights: list[float] | None = None) -> Given:
    return Given(np.array(columns, dtype=np.int32), None if weights is None else np.array(weights), ())


def test_without_recency_the_order_of_a_history_has_no_effect() -> None:
    """Columns are ascending, and weights of repeated items add up."""
    history = History(OFFSETS, COLUMNS)
    one = settle_history(given([5, 1, 5]), history)
    columns, weights, *_, values = profile_of(one, history)
    assert values is weights
    assert (columns.tolist(), weights.tolist()) == ([1, 5], [1.0, 2.0])  # type: ignore[union-attr]
    columns, weights, *_, values = joined_profile(history, 0, one)
    assert values is weights
    assert (columns.tolist(), weights.tolist()) == ([0, 1, 2, 4, 5], [1.0, 1.0, 1.0, 1.0, 2.0])  # type: ignore[union-attr]


def test_a_request_history_follows_the_known_history() -> None:
    """Positions count over both histories. A repeated item leaves no gap, unless other items share its old position."""
    history = History(OFFSETS, COLUMNS, recency=1.0, ties=np.array([False, True, False]))
    columns, weights, *_, values = joined_profile(history, 0, settle_history(given([9, 4]), history))
    assert columns.tolist() == [0, 2, 9, 4]
    assert values is not None
    assert values.tolist() == [1, 1, 1, 2]
    np.testing.assert_allclose(weights, np.exp([-3.0, -2.0, -1.0, 0.0]) * [1, 1, 1, 2])  # type: ignore[arg-type]
    columns, weights, *_ = joined_profile(history, 0, settle_history(given([2]), history))
    assert columns.tolist() == [4, 0, 2]
    np.testing.assert_allclose(weights, np.exp([-1.0, -1.0, 0.0]) * [1, 1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("recency", [0.0, 0.7])
def test_an_empty_history_is_an_empty_profile(recency: float) -> None:
    """An empty history gives a profile without items and weights."""
    history = History(OFFSETS, COLUMNS, recency=recency)
    columns, *others = profile_of(settle_history(given([]), history), history)
    assert (len(columns), others) == (0, [None, None, (), None])


def test_a_profile_can_be_weighted_anew_for_another_recency() -> None:
    history = History(OFFSETS, COLUMNS, recency=0.7, recency_beside=True)
    query = Query(5).of_profile(profile_of(settle_history(given([5, 1, 5]), history), history))
    np.testing.assert_allclose(query.seed_weights, [np.exp(-0.7), 2.0])
    assert query.seed_values is not None
    assert query.seed_values.tolist() == [1, 2]
    beside = query.at_recency(0.2)
    np.testing.assert_allclose(beside.seed_weights, [np.exp(-0.2), 2.0])
    assert beside.at_recency(0.2) is beside
