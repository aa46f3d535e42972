"""Rotation: shown items go down and a seed shuffles, among the best items only, equally for equal requests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.model.ranking.query import NO_ITEMS, Query, Ranking, Shown
from svc.model.ranking.rerank import ROTATED, Rotation, Rules
from tests import planned
from tests.families import EVERY_FAMILY, family
from tests.model.ranking.brute_force import variations
from tests.planned import Restriction, Variation

N_ITEMS = 3 * ROTATED
IDS = [f"i{item}" for item in range(N_ITEMS)]
OFF = Variation((), 0.25, None, 0.25)
model_of = cache(family)


def query_of(name: str, variation: Variation | None, limit: int = N_ITEMS, offset: int = 0, **more: Any) -> Query:
    restriction = Restriction(offset=offset, variation=variation)
    body: dict[str, Any] = {"user_id": "u1", "user_features": None, "limit": limit, "restriction": restriction, **more}
    return planned.recommend(model_of(name, n_items=N_ITEMS), **body).query


def ranking_of(name: str, variation: Variation | None, limit: int = N_ITEMS, offset: int = 0, **more: Any) -> Ranking:
    query = query_of(name, variation, limit, offset, **more)
    return model_of(name, n_items=N_ITEMS).rank([query])[0].from_place(offset)


def shown(*columns: int, times: int = 1) -> list[Shown]:
    return [Shown(f"i{column}", times) for column in columns]


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=20)
@given(variation=variations(IDS).map(lambda one: one._replace(seed=None)))
def test_shown_items_never_gain_on_unshown_ones(name: str, variation: Variation) -> None:
    """Items that were not shown keep their order and never fall. Items below the best keep their places."""
    plain, found = ranking_of(name, None).items.tolist(), ranking_of(name, variation).items.tolist()
    shown_ids = {item.item_id for item in variation.shown}
    others = [column for column in plain if f"i{column}" not in shown_ids]
    assert [column for column in found if f"i{column}" not in shown_ids] == others
    assert all(found.index(column) <= plain.index(column) for column in others)
    assert found[ROTATED:] == plain[ROTATED:]


@pytest.mark.parametrize("name", EVERY_FAMILY)
@settings(max_examples=10)
@given(variation=variations(IDS), limit=st.integers(7, 90))
def test_pages_by_offset_partition_the_ranking(name: str, variation: Variation, limit: int) -> None:
    """Each item is on one page of any length, with its own score and reasons."""
    whole = ranking_of(name, variation)
    pages = [ranking_of(name, variation, limit, offset) for offset in range(0, N_ITEMS, limit)]
    assert [column for page in pages for column in page.items.tolist()] == whole.items.tolist()
    assert [score for page in pages for score in page.scores.tolist()] == whole.scores.tolist()
    assert [reason for page in pages for reason in page.reasons] == list(whole.reasons)


@pytest.mark.parametrize(
    "off",
    [OFF, Variation(shown(*range(90)), 0.0, "seed", 0.0), Variation([Shown("nothing")], 1.0, None, 1.0)],
)
def test_rotation_without_weight_or_known_items_adds_no_rules(off: Variation) -> None:
    assert query_of("SVD", off, 5).rules is None


def test_unknown_shown_items_are_ignored_items() -> None:
    """Each unknown id in `shown` is listed once in `ignored_items`, even if rotation has no weight."""
    restriction = Restriction(variation=Variation([Shown("x"), Shown("i1"), Shown("x"), Shown("y")], 0.0, None, 0.0))
    model = model_of("SVD", n_items=N_ITEMS)
    prepared = planned.recommend(model, user_id="u1", user_features=None, limit=5, restriction=restriction)
    assert prepared.ignored_items == ("x", "y")


def test_an_item_listed_twice_counts_as_shown_twice() -> None:
    for limit in (5, N_ITEMS):
        twice = ranking_of("SVD", OFF._replace(shown=shown(*range(40)) * 2), limit)
        once = ranking_of("SVD", OFF._replace(shown=shown(*range(40), times=2)), limit)
        assert twice.items.tolist() == once.items.tolist()


def test_items_that_moved_up_have_the_reason_rotated() -> None:
    """Items have the reason `rotated`, also among the most chosen items for a user without a profile."""
    for more in ({}, {"user_id": None, "fallback": True}):
        plain = ranking_of("SVD", None, **more).items.tolist()
        found = ranking_of("SVD", OFF._replace(shown=shown(*plain[:3], times=100), rotation=1.0), **more)
        assert found.items.tolist() == [*plain[3:ROTATED], *plain[:3], *plain[ROTATED:]]
        assert list(found.reasons) == [("rotated",)] * (ROTATED - 3) + [()] * (len(plain) - ROTATED + 3)


def test_another_seed_gives_another_page_of_mostly_the_same_items() -> None:
    pages = [ranking_of("SVD", OFF._replace(seed=f"day {day}"), 20).items.tolist() for day in range(7)]
    assert len({tuple(page) for page in pages}) == 7
    assert 20 < len({column for page in pages for column in page}) < 70


def test_noise_has_the_distribution_of_gumbel() -> None:
    """Over many seeds, the frequency of an item in first place is its share of the sum of exp(value / deviation)."""
    items, values = np.arange(ROTATED, dtype=np.int32), np.linspace(1.0, 0.0, ROTATED)
    first = [
        Rotation(NO_ITEMS, None, 0.0, f"s{seed}", 1.0, lambda column: f"i{column}").order(items, values)[0]
        for seed in range(2000)
    ]
    odds = np.exp((values - values[0]) / values.std())
    expected = 2000 * odds[:5] / odds.sum()
    np.testing.assert_allclose(np.bincount(first, minlength=ROTATED)[:5], expected, atol=5 * expected.max() ** 0.5)


@pytest.mark.parametrize("values", [[], [1.0], [2.0, 2.0, 2.0]])
def test_items_of_equal_value_keep_their_order(values: list[float]) -> None:
    """The deviation of equal values, of a single item and of no item is 0."""
    items = np.arange(len(values), dtype=np.int32)
    rotation = Rotation(np.array([0], dtype=np.int32), np.array([100.0]), 1.0, "seed", 1.0, str)
    assert rotation.order(items, np.array(values)).tolist() == items.tolist()
    assert Rules(rotation=rotation).pool(5) == ROTATED
