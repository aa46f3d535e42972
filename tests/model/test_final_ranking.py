"""The step from a ranking by score to the items that are shown."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.explain import PopularityReason
from svc.model.final_ranking import candidate_query
from svc.model.ranker.page_ranker import GROUPS, REORDERED
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.ranking.rerank import POOL, Boost, Rules
from tests import planned
from tests.model.ranker.test_controls import N_ITEMS as N_REORDERED
from tests.model.ranker.test_controls import models
from tests.planned import Restriction


def test_no_more_items_are_ranked_than_the_rules_need() -> None:
    """A query without rules ranks its limit, diversity a pool, and boosts all items.

    No query ranks more than all items.
    """
    plain = Query(limit=3, user=0)
    assert candidate_query(plain, 10_000) is plain
    assert candidate_query(plain._replace(rules=Rules(diversity=0.5)), 10_000).limit == POOL
    assert candidate_query(plain._replace(rules=Rules(diversity=0.5)), 40).limit == 40
    everything = ItemSet.of_columns(np.arange(10_000, dtype=np.int32), 10_000)
    assert candidate_query(plain._replace(rules=Rules(boosts=(Boost(everything, 2.0),))), 10_000).limit == 10_000


OF_ITEMS = {"popularity", "neighbours", "labels", "numbers"}


@pytest.mark.parametrize("name", ["IALS", "neighbours", "blend", "popularity"])
def test_a_ranker_explains_by_feature_groups_and_the_winners_reasons(name: str) -> None:
    model, _ = models(name)
    ranker = model.ranker
    assert ranker is not None
    restriction = Restriction(explain=N_REORDERED)
    one = planned.recommend(model, user_id="u5", user_features=None, limit=N_REORDERED, restriction=restriction)
    (page,) = model.rank([one.query])
    (winner,) = model.scorer.rank([one.query._replace(limit=N_REORDERED)], model.history)
    own = model.scorer.contributions(one.query, model.history, page.items)
    history = model.history.items(5)
    groups = ranker.contributions(history, None, winner.items[:REORDERED], winner.scores[:REORDERED])
    place_of = {column: place for place, column in enumerate(winner.items[:REORDERED].tolist())}
    for position, (column, because) in enumerate(zip(page.items.tolist(), page.because, strict=True)):
        shares = dict((*because.reasons, *because.in_spite_of))
        if not because.reasons:
            assert because.in_spite_of == () or because.rest == pytest.approx(1.0)
            continue
        assert sum(share for _, share in because.reasons) + because.rest == pytest.approx(1.0)
        if column not in place_of:
            assert not OF_ITEMS & shares.keys()
            continue
        told = OF_ITEMS if own is not None else {*OF_ITEMS, "scores"}
        expected = {group: groups[GROUPS.index(group), place_of[column]] for group in told}
        if own is not None:
            scaled = own.of_columns[position] * ranker.scale_of_score
            expected |= dict(zip(own.columns.tolist(), scaled, strict=True))
            for (addend,) in own.others.get("popularity", np.empty((0, 1)))[position : position + 1]:
                expected[PopularityReason("of the winner")] = addend * ranker.scale_of_score
        unnamed = page.scores[position] - sum(expected.values())
        in_favour = sum(max(0.0, addend) for addend in (unnamed, *expected.values()))
        assert sorted(share * in_favour for _, share in (*because.reasons, *because.in_spite_of)) == pytest.approx(
            sorted(addend for addend in expected.values() if addend)
        )
        for reason, addend in expected.items():
            if not isinstance(reason, PopularityReason):
                assert shares.get(reason, 0.0) == pytest.approx(addend / in_favour, abs=1e-9)
