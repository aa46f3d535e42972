"""The reasons for the items of a reordered page add up to their scores."""

from __future__ import annotations

import pytest

from svc.model.explain import Popular
from svc.model.ranker.contributions import GROUPS
from svc.model.ranker.page_ranker import REORDERED
from svc.model.ranking.query import Restriction
from tests.model.ranker.test_controls import N_ITEMS, models

OF_ITEMS = {"popularity", "neighbours", "labels", "numbers"}


@pytest.mark.parametrize("name", ["IALS", "neighbours", "blend", "popularity"])
def test_reasons_are_groups_of_features_and_within_one_those_of_the_winner(name: str) -> None:
    model, _ = models(name)
    ranker = model.ranker
    assert ranker is not None
    restriction = Restriction(explain=N_ITEMS)
    one = model.prepare_recommend(user_id="u5", user_features=None, limit=N_ITEMS, restriction=restriction)
    (page,) = model.rank([one.query])
    (winner,) = model.scorer.rank([one.query._replace(limit=N_ITEMS)], model.history)
    own = model.scorer.contributions(one.query, model.history, page.items)
    history = model.history.items(5)
    groups = ranker.contributions(history, winner.items[:REORDERED], winner.scores[:REORDERED])
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
            if own.of_popularity is not None:
                expected[Popular("of the winner")] = own.of_popularity[position] * ranker.scale_of_score
        unnamed = page.scores[position] - sum(expected.values())
        in_favour = sum(max(0.0, addend) for addend in (unnamed, *expected.values()))
        assert sorted(share * in_favour for _, share in (*because.reasons, *because.in_spite_of)) == pytest.approx(
            sorted(addend for addend in expected.values() if addend)
        )
        for reason, addend in expected.items():
            if not isinstance(reason, Popular):
                assert shares.get(reason, 0.0) == pytest.approx(addend / in_favour, abs=1e-9)
