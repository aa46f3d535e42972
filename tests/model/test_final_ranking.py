"""From a ranking by score to the items that are shown."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.final_ranking import candidate_query
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.ranking.rerank import POOL, Boost, Pin, Rules
from tests.families import EVERY_FAMILY, N_ITEMS, family


def test_no_more_items_are_ranked_than_the_rules_need() -> None:
    """A query without rules ranks its limit, diversity a pool, boosts all items, and no query more than all items."""
    plain = Query(limit=3, user=0)
    assert candidate_query(plain, 10_000) is plain
    assert candidate_query(plain._replace(rules=Rules(diversity=0.5)), 10_000).limit == POOL
    assert candidate_query(plain._replace(rules=Rules(diversity=0.5)), 40).limit == 40
    everything = ItemSet.of_columns(np.arange(10_000, dtype=np.int32), 10_000)
    assert candidate_query(plain._replace(rules=Rules(boosts=(Boost(everything, 2.0),))), 10_000).limit == 10_000


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_a_pin_has_the_score_of_the_model(name: str) -> None:
    """The pinned item moves with its score, and the others keep their order."""
    model = family(name)
    query = Query(limit=N_ITEMS, user=2, include_seen=True)
    (whole,) = model.rank([query])
    last = int(whole.items[-1])
    (pinned,) = model.rank([query._replace(limit=6, rules=Rules(pins=(Pin(last, 1),)))])
    assert pinned.items.tolist() == [int(whole.items[0]), last, *whole.items[1:5].tolist()]
    assert pinned.scores.tolist() == [whole.scores[0], whole.scores[-1], *whole.scores[1:5].tolist()]
    assert pinned.reasons[1] == ("pinned",)
