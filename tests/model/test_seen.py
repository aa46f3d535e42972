"""Items of a history that may be shown, for every family of recommenders, alone and in a batch."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np
import pytest

from svc.model.model import Model
from svc.model.ranking.query import EventOfItem, Interaction
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family
from tests.model.test_feature_embedder import model_of as embedding
from tests.model.test_feature_embedder import new_items

KINDS = [
    {"event": "view", "weight": 0.5, "seen": False, "target": False},
    {"event": "buy", "weight": 2.0, "seen": True, "target": True},
]


def with_events(name: str) -> Model:
    """Return a model of which a random half of each history is seen."""
    model = family(name)
    seen = np.random.default_rng(4).random(len(model.history.columns)) < 0.5
    model = replace(model, history=replace(model.history, is_seen=seen))
    model.describe_events(KINDS)
    model.ready()
    return model


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_only_seen_items_are_left_out(name: str) -> None:
    """Those of the training history and of the request's own events, in any batch."""
    model = with_events(name)
    rng, everything, queries, wanted = np.random.default_rng(5), set(range(N_ITEMS)), [], []
    for row in range(N_USERS):
        seen = set(model.history.seen_items(row).tolist())
        assert seen <= set(model.history.items(row).tolist())
        more = rng.choice(N_ITEMS, 6, replace=False).tolist()
        asked = [Interaction(f"i{more[0]}"), *(EventOfItem(f"i{item}", 1.0, "view") for item in more[1:4])]
        asked += [EventOfItem(f"i{item}", 3.0, "buy") for item in more[3:]]
        own = {more[0], *more[3:]}
        for user, history, left_out in (
            (f"u{row}", None, seen),
            (f"u{row}", asked, seen | own),
            (None, asked, own),
        ):
            for include_seen in (None, True):
                fields = {"user_id": user, "history": history, "include_seen": include_seen, "limit": N_ITEMS}
                queries.append(planned.recommend(model, **fields).query)
                wanted.append(everything if include_seen else everything - left_out)
    alone = [model.rank([query])[0] for query in queries]
    assert [set(ranking.items.tolist()) for ranking in alone] == wanted
    together = model.rank(queries)
    assert [ranking.items.tolist() for ranking in together] == [ranking.items.tolist() for ranking in alone]
    assert all(a.scores.tobytes() == b.scores.tobytes() for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_an_event_weighs_as_its_weight_does(name: str) -> None:
    """Scores are those of a history with the products of both weights."""
    model = with_events(name)
    by_event = [EventOfItem("i3", 3.0, "view"), EventOfItem("i9", 1.0, "buy"), Interaction("i5", 0.25)]
    by_weight = [Interaction("i3", 1.5), Interaction("i9", 2.0), Interaction("i5", 0.25)]
    fields = {"limit": N_ITEMS, "include_seen": True}
    queries = [planned.recommend(model, history=own, **fields).query for own in (by_event, by_weight)]
    for query in queries:
        assert query.seed_values is not None
        assert dict(zip(query.seeds.tolist(), query.seed_values.tolist(), strict=True)) == {3: 1.5, 9: 2.0, 5: 0.25}
    first, second = model.rank(queries)
    assert first.items.tolist() == second.items.tolist()
    assert first.scores.tobytes() == second.scores.tobytes()


def test_a_new_item_is_left_out_by_a_seen_event_alone() -> None:
    """New items of a request's history obey the events too."""
    model = copy(embedding("IALS"))
    model.describe_events(KINDS)
    model.ready()
    for event, is_shown in (("view", True), ("buy", False)):
        restriction = planned.Restriction(new=new_items(1.0))
        history = [Interaction("i3"), EventOfItem("n2", 1.0, event)]
        query = planned.recommend(model, history=history, limit=N_ITEMS + 30, restriction=restriction).query
        assert query.new is not None
        assert (2 in query.new.rows.tolist()) is is_shown
