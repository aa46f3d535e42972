"""Plans of requests: restrictions, and reasons for pins that are not shown. Other parts are tested with the rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from svc.asking.offer import Offer
from svc.asking.parsing import parse
from svc.asking.plan import known_user, plan
from svc.asking.requests import RecommendRequest
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.rerank import Pin, Rules
from svc.model.recommenders.popularity import PopularityScorer
from tests import planned
from tests.families import EVERY_FAMILY, family
from tests.planned import Restriction

ALLOWED = ItemSet.of_columns(np.array([0, 1], np.int32), 4)


def model() -> Model:
    """Return a model of the items a to d, whose only user has chosen a and b."""
    made = Model(
        user_ids=IdTable.from_ids(["u"]),
        item_ids=IdTable.from_ids(["a", "b", "c", "d"]),
        history=History(np.array([0, 2]), np.array([0, 1], np.int32)),
        scorer=PopularityScorer(np.arange(4.0)),
        features=None,
    )
    made.ready()
    return made


def test_include_items_restrict_the_allowed_items() -> None:
    """Only items that are included and allowed remain. Unknown ids are listed as ignored items."""
    restriction = Restriction(offset=3, include_items=["b", "c", "x"], allowed=ALLOWED)
    prepared = planned.recommend(model(), user_id="u", limit=2, exclude_items=["a"], restriction=restriction)
    query = prepared.query
    assert query.allowed is not None
    assert query.allowed.contains(np.arange(4)).tolist() == [False, True, False, False]
    assert (query.limit, query.offset, query.exclude.tolist()) == (5, 3, [0])
    assert (prepared.ignored_items, prepared.query.offset) == (("x",), 3)


def test_each_hidden_pin_has_a_reason() -> None:
    """The first reason that applies is given: unknown, excluded, seen, then filtered."""
    pins = [("d", 0), ("x", 1), ("c", 2), ("a", 3), ("b", 4)]
    restriction = Restriction(pins=pins, allowed=ItemSet.of_columns(np.array([0, 2, 3], np.int32), 4))
    asked = {"user_id": "u", "limit": 10, "exclude_items": ["c"], "restriction": restriction}
    prepared = planned.recommend(model(), **asked)
    assert prepared.query.rules == Rules(pins=(Pin(3, 0),))
    assert prepared.ignored_pins == (("x", "unknown"), ("c", "excluded"), ("a", "seen"), ("b", "seen"))
    shown_again = planned.recommend(model(), include_seen=True, **asked)
    assert shown_again.ignored_pins == (("x", "unknown"), ("c", "excluded"), ("b", "filtered"))


def test_each_hidden_pin_of_a_new_item_has_a_reason() -> None:
    """The reasons are those of the items of the model."""
    new = NewItems(IdTable.from_ids(["n0", "n1", "n2", "n3"]), np.zeros((4, 2)), 4, None)
    pins = [{"item_id": f"n{place}", "position": place} for place in range(4)]
    body = {"user_id": "u", "exclude_items": ["n0"], "history": ["n1"], "include_items": ["n1", "n3"], "pins": pins}
    gone = plan(parse(RecommendRequest, body), Offer(model=model(), new_items=new)).ignored_pins
    assert gone == (("n0", "excluded"), ("n1", "seen"), ("n2", "filtered"))


def test_a_training_user_gets_the_same_query_by_row_and_by_id() -> None:
    """The query by row has no rules of the recipe."""
    by_id = planned.recommend(model(), user_id="u", limit=2, restriction=Restriction(allowed=ALLOWED)).query
    by_row = known_user(Offer(model=model(), available=ALLOWED), 0, limit=2)
    assert by_row.allowed is not None
    assert by_row.allowed.equals(ALLOWED)
    assert by_row._replace(allowed=None) == by_id._replace(allowed=None)


def comparable(value: object) -> object:
    """Return the parts of a query as values that `==` compares."""
    if isinstance(value, ItemSet):
        return value.flags().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist(), value.dtype
    if isinstance(value, tuple):
        return [type(value), *map(comparable, value)]
    return value


@pytest.mark.parametrize("name", EVERY_FAMILY)
@pytest.mark.parametrize("hides", [False, True])
@pytest.mark.parametrize("n_new", [0, 2])
@pytest.mark.parametrize("listed", [None, [0, 3, 5], [1, 9, "last"]])
def test_a_request_of_only_a_known_user_is_planned_as_every_other(
    name: str, hides: bool, n_new: int, listed: list[int | str] | None
) -> None:
    """A field with its default value, which leads past the short way, changes nothing in the query."""
    n_items, hidden = 20, History(np.arange(0, 25, 2), np.tile(np.array([2, 7], np.int32), 12))
    model = replace(family(name, n_items=n_items), hidden=hidden if hides else None, repeats=hides)
    model.ready()
    new = NewItems(IdTable.from_ids(["n0", "n1"]), np.zeros((2, 1)), n_items, None) if n_new else None
    total = n_items + n_new
    columns = None if listed is None else np.array([total - 1 if it == "last" else it for it in listed], np.int32)
    offer = Offer(model=model, new_items=new, available=None if columns is None else ItemSet.of_columns(columns, total))
    for user in range(12):
        asked = {"user_id": f"u{user}", "limit": 3 + user}
        short, whole = (plan(RecommendRequest(**asked, **more), offer) for more in ({}, {"offset": 0}))
        assert comparable(short) == comparable(whole)
