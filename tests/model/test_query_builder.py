"""The builder of queries: ids of a request become columns, and hidden pins get a reason."""

from __future__ import annotations

import numpy as np

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.query_builder import QueryBuilder
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Interaction, Restriction
from svc.model.ranking.rerank import Pin, Rules

ITEMS = IdTable.from_ids(["a", "b", "c", "d"])
HISTORY = History(np.array([0, 2]), np.array([0, 1], np.int32))


def builder() -> QueryBuilder:
    return QueryBuilder(ITEMS, HISTORY)


def test_columns_are_distinct_and_ascending() -> None:
    """Unknown ids have no column."""
    assert builder().columns(["d", "b", "nobody", "d"]).tolist() == [1, 3]
    assert builder().unknown(["d", "nobody", "b", "x"]).tolist() == [1, 3]


def test_weights_of_a_history_add_up() -> None:
    """Weights are None if all are 1. Unknown ids are listed once."""
    repeated = builder().given([Interaction("c"), Interaction("x"), Interaction("c", 2.0), Interaction("x")])
    assert (repeated.columns.tolist(), repeated.unknown) == ([2], ("x",))
    assert repeated.weights is not None
    assert repeated.weights.tolist() == [3.0]
    assert builder().given([Interaction("c"), Interaction("a")]).weights is None


def test_include_items_restrict_the_allowed_items() -> None:
    """Only items that are included and allowed remain. Unknown ids are listed as ignored items."""
    allowed = ItemSet.of_columns(np.array([0, 1], np.int32), 4)
    query, ignored = builder().build(2, ["a"], Restriction(offset=3, include_items=["b", "c", "x"], allowed=allowed))
    assert query.allowed is not None
    assert query.allowed.contains(np.arange(4)).tolist() == [False, True, False, False]
    assert (query.limit, query.offset, query.exclude.tolist(), ignored) == (5, 3, [0], ("x",))


def test_each_hidden_pin_has_a_reason() -> None:
    """The first reason that applies is given: unknown, excluded, seen, then filtered."""
    pins = [("d", 0), ("x", 1), ("c", 2), ("a", 3), ("b", 4)]
    allowed = ItemSet.of_columns(np.array([0, 2, 3], np.int32), 4)
    restriction = Restriction(pins=pins, allowed=allowed)
    query, ignored = builder().build(10, ["c"], restriction)
    query = query._replace(user=0, exclude=np.array([2], np.int32))
    resolved = builder().prepared(query, ignored, restriction, None)
    assert resolved.query.rules == Rules(pins=(Pin(3, 0),))
    assert resolved.ignored_pins == (("x", "unknown"), ("c", "excluded"), ("a", "seen"), ("b", "seen"))
    shown_again = builder().prepared(query._replace(include_seen=True), ignored, restriction, None)
    assert shown_again.ignored_pins == (("x", "unknown"), ("c", "excluded"), ("b", "filtered"))
