"""A caller's list in the order for a user: every item comes back, and the order is the mean of two places."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from svc.asking.offer import Offer
from svc.asking.parsing import parse
from svc.asking.plan import plan
from svc.asking.requests import RecommendRequest
from svc.asking.rerank import RerankAnswer, RerankRequest, rerank_steps
from svc.errors import ValidationFailed
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.ranking.item_sets import ItemSet
from tests.asking.test_page import ids, offer_of, stranger_offer
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family


def answer(body: dict[str, Any], offer: Offer) -> RerankAnswer:
    steps, ranking = rerank_steps(parse(RerankRequest, body), offer), None
    try:
        while True:
            prepared = next(steps) if ranking is None else steps.send(ranking)
            (ranking,) = offer.model.rank([prepared.query])
    except StopIteration as end:
        result: RerankAnswer = end.value
        return result


def listed(result: RerankAnswer) -> list[str]:
    return [result.ids[origin] for origin in result.order.tolist()]


def by_brute_force(body: dict[str, Any], offer: Offer) -> list[str]:
    """Return the list in its new order, from the model's order of the whole catalogue.

    A learned order looks at the places among the candidates, so it gets the list alone, as with `include_items`.
    """
    user = {name: value for name, value in body.items() if name not in ("items", "weight")}
    if offer.model.ranker is not None:
        user["include_items"] = body["items"]
    prepared = plan(parse(RecommendRequest, user | {"limit": N_ITEMS, "include_seen": True}), offer)
    (ranking,) = offer.model.rank([prepared.query])
    items, weight = body["items"], body.get("weight", 0.5)
    known = [item for item in ids(offer, ranking) if item in items]
    slots = [place for place, item in enumerate(items) if item in known]
    place_of = dict(zip(known, slots, strict=True))
    values = [(1 - weight) * place + weight * place_of.get(item, place) for place, item in enumerate(items)]
    return [items[place] for place in sorted(range(len(items)), key=lambda place: values[place])]


@pytest.mark.parametrize("name", [*EVERY_FAMILY, "ranked"])
def test_the_list_is_ordered_by_both_places(name: str) -> None:
    """Unknown items keep their places in both orders, and ties stand as in the list."""
    offer = offer_of(name)
    for number in range(30):
        random = Random(f"{name} {number}")
        items = random.sample([f"i{item}" for item in range(N_ITEMS)] + ["x", "y", "z"], random.randint(1, 30))
        body: dict[str, Any] = {"items": items, "weight": random.choice([0.0, 0.25, 0.5, 1.0])}
        body["user_id"] = f"u{random.randint(0, N_USERS - 1)}"
        if random.random() < 0.4:
            body["history"] = random.sample([f"i{item}" for item in range(N_ITEMS)], 2)
        result = answer(body, offer)
        assert listed(result) == by_brute_force(body, offer), body
        if not body["weight"]:
            assert listed(result) == items


def test_seen_and_unavailable_items_are_told_and_not_left_out() -> None:
    offer = offer_of("neighbours")
    own = [offer.names.at(column) for column in offer.model.history.items(3).tolist()]
    available = ItemSet.of_columns(np.array([0, 1, 2], np.int32), N_ITEMS)
    items = [*own[:2], "i39", "nothing", "i1"]
    result = answer({"user_id": "u3", "items": [*dict.fromkeys(items)]}, replace(offer, available=available))
    told = dict(zip(listed(result), zip(result.seen.tolist(), result.unavailable.tolist(), strict=True), strict=True))
    assert {*told} == {*items}
    assert all(told[item][0] for item in own[:2])
    assert told["nothing"] == (False, False)
    assert told["i39"][1]
    assert not told["i1"][1]
    given = answer({"history": ["i39"], "items": ["i1", "i39"]}, offer)
    assert dict(zip(listed(given), given.seen.tolist(), strict=True)) == {"i1": False, "i39": True}


def test_the_list_stays_if_nothing_is_known_of_the_user() -> None:
    result = answer({"user_id": "nobody", "items": ["i3", "i1", "x"]}, offer_of("neighbours"))
    assert listed(result) == ["i3", "i1", "x"]
    assert result.about is None
    assert result.ranked.tolist() == [-1, -1, -1]


def test_hidden_items_of_an_unknown_user_are_told() -> None:
    """New items are told too."""
    told = answer({"user_id": "stranger", "items": ["i3", "i5", "n0"]}, stranger_offer())
    assert (listed(told), told.seen.tolist()) == (["i3", "i5", "n0"], [False, True, True])


def test_a_new_item_that_is_hidden_permanently_has_its_score() -> None:
    """It takes part in the order as it does for other users, and is told as seen."""
    model, user = family("IALS"), N_USERS - 1
    new = model.new_items(["n0"], [{"tag": "a", "age": 20.0}], 0.0)
    body = {"user_id": f"u{user}", "items": ["i3", "n0", "i5"], "weight": 1}
    before = answer(body, Offer(model=model, new_items=new))
    model.hidden_new_ids = IdTable.from_ids(["n0"])
    starts = np.append(np.zeros(N_USERS, np.int64), 1)
    model.hidden_new = History(starts, np.zeros(1, np.int32), np.ones(1, np.float32))
    after = answer(body, Offer(model=model, new_items=new))
    assert (listed(after), after.ranked.tolist()) == (listed(before), before.ranked.tolist())
    assert after.ranked.min() == 0
    assert after.seen[listed(after).index("n0")]


def test_scores_and_reasons_are_those_of_the_model() -> None:
    offer = offer_of("neighbours")
    result = answer({"user_id": "u2", "items": ["i5", "i9"], "explain": 2}, offer)
    asked = {"user_id": "u2", "limit": N_ITEMS, "include_seen": True, "explain": 2}
    (ranking,) = offer.model.rank([plan(parse(RecommendRequest, asked), offer).query])
    of_all = dict(zip(ids(offer, ranking), zip(ranking.scores, ranking.because, strict=True), strict=True))
    for item, place in zip(listed(result), result.ranked.tolist(), strict=True):
        score, because = of_all[item]
        assert result.ranking.scores[place] == score
        assert result.ranking.because[place] == because


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"user_id": "u1", "items": ["i1", "i2", "i1"]}, ["body", "items", 2]),
        ({"items": ["i1"]}, ["body", "user_id"]),
        ({"user_id": "u1", "items": []}, ["body", "items"]),
        ({"user_id": "u1", "items": ["i1"], "weight": 2}, ["body", "weight"]),
        ({"user_id": "u1", "items": ["i1"], "history_mode": "append"}, ["body", "history_mode"]),
    ],
)
def test_an_invalid_request_is_refused_with_its_place(body: dict[str, Any], loc: list[str | int]) -> None:
    with pytest.raises(ValidationFailed) as raised:
        answer(body, offer_of("neighbours"))
    assert raised.value.errors[0]["loc"] == loc
