"""The cost class of a query depends on its content, and never on measurements."""

from __future__ import annotations

import numpy as np
import pytest

from svc.asking.costs import (
    HEAVY_LIMIT,
    LONG_PROFILE,
    PLAIN_LIMIT,
    PLAIN_PROFILE,
    RULED_LIMIT,
    RULED_PROFILE,
    Cost,
    cost_of,
)
from svc.model.columns.feature_values import Encoded
from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.ranking.rerank import Boost, Limit, Pin, Rotation, Rules

SEEDS = np.arange(PLAIN_PROFILE + 1, dtype=np.int32)
DESCRIBED = (Encoded(np.zeros(1, np.int64), np.ones(1), 1),)
FIELD = LabelField.read("genre", "categorical", "|", ["a", "b"], 2)
BOOSTS = (Boost(ItemSet.of_columns(np.arange(3), 10), 2.0),)
RULES = {
    "boosts": Rules(boosts=BOOSTS),
    "diversity": Rules(diversity=0.1),
    "limits": Rules(limits=(Limit(FIELD, 1),)),
    "rotation": Rules(rotation=Rotation(SEEDS[:0], None, 0.0, "seed", 0.25, str)),
}


@pytest.mark.parametrize(
    ("query", "cost"),
    [
        (Query(limit=PLAIN_LIMIT, user=1), Cost.PLAIN),
        (Query(limit=10, seeds=SEEDS[:-1]), Cost.PLAIN),
        (Query(limit=PLAIN_LIMIT + 1, user=1), Cost.LONG),
        (Query(limit=10, seeds=SEEDS), Cost.LONG),
        (Query(limit=10, seeds=SEEDS[:1], dislikes=SEEDS[1:]), Cost.LONG),
        (Query(limit=10, user=1, summed=PLAIN_PROFILE), Cost.PLAIN),
        (Query(limit=10, user=1, summed=LONG_PROFILE), Cost.LONG),
        (Query(limit=1000, user=1, summed=LONG_PROFILE + 1), Cost.RULED),
        (Query(limit=10, user=1, summed=RULED_PROFILE), Cost.RULED),
        (Query(limit=10, user=1, summed=RULED_PROFILE + 1), Cost.HEAVY),
        (Query(limit=10, popular=True), Cost.LONG),
        (Query(limit=10, user_features=np.zeros(3)), Cost.LONG),
        (Query(limit=10, seeds=SEEDS[:3], seed_features=DESCRIBED), Cost.LONG),
        (Query(limit=10, user=1, rules=Rules(pins=(Pin(1, 0),))), Cost.LONG),
        (Query(limit=10, user=1, explain=1), Cost.RULED),
        (Query(limit=10, seed_features=DESCRIBED * (PLAIN_LIMIT + 1)), Cost.RULED),
        (Query(limit=RULED_LIMIT + 1, user=1, explain=1), Cost.HEAVY),
        (Query(limit=10, seeds=SEEDS, explain=1), Cost.HEAVY),
    ],
)
def test_sizes_rules_and_explanations_decide_the_cost_class(query: Query, cost: Cost) -> None:
    assert cost_of(query) is cost
    assert cost.is_expensive == (cost > Cost.LONG)


@pytest.mark.parametrize("name", RULES)
def test_a_query_with_a_reranked_page_is_never_cheap(name: str) -> None:
    assert cost_of(Query(limit=1, user=1, rules=RULES[name])) is Cost.RULED
    assert cost_of(Query(limit=1000, user=1, rules=RULES[name])) is (Cost.HUGE if name == "diversity" else Cost.HEAVY)


def test_the_number_of_items_that_diversity_chooses_decides_the_cost_class() -> None:
    """Only such queries take long enough to be ranked in turns."""
    limits = (RULED_LIMIT, RULED_LIMIT + 1, HEAVY_LIMIT, HEAVY_LIMIT + 1)
    costs = [cost_of(Query(limit=limit, user=1, rules=RULES["diversity"])) for limit in limits]
    assert costs == [Cost.RULED, Cost.HEAVY, Cost.HEAVY, Cost.HUGE]
    assert [cost for cost in Cost if cost.is_sliced] == [Cost.HUGE]
    assert [cost.turn for cost in costs] == [Cost.RULED, Cost.HEAVY, Cost.HEAVY, Cost.RULED]
