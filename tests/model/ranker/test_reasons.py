"""The reasons for the items of a reordered page add up to their scores."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranker.page_ranker import REORDERED
from svc.model.ranking.query import Restriction
from tests.model.ranker.test_controls import N_ITEMS, models

GROUPS = {"popularity", "neighbours", "labels", "numbers"}


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
    addends = ranker.addends(history, winner.items[:REORDERED], winner.scores[:REORDERED])
    place_of = {column: place for place, column in enumerate(winner.items[:REORDERED].tolist())}
    groups = np.array([feature.group for feature in ranker.features])
    for position, (column, because) in enumerate(zip(page.items.tolist(), page.because, strict=True)):
        shares = dict(because.reasons)
        if page.scores[position] == 0:
            assert because == ((), 0.0)
            continue
        assert sum(shares.values()) + because.rest == pytest.approx(1.0)
        if column not in place_of:
            assert not GROUPS & shares.keys()
            continue
        score = page.scores[position]
        told = GROUPS if own is not None else {*GROUPS, "scores"}
        for group in told:
            expected = addends[groups == group, place_of[column]].sum() / score
            assert shares.get(group, 0.0) == pytest.approx(expected, abs=1e-12)
        if own is not None:
            for number, item in enumerate(own.columns.tolist()):
                expected = own.of_columns[position, number] * ranker.scale_of_score / score
                assert shares.get(item, 0.0) == pytest.approx(expected, abs=1e-12)
            if own.of_popularity is not None:
                expected = own.of_popularity[position] * ranker.scale_of_score / score
                assert expected in {share for _, share in because.reasons}
