"""Ids of a request become columns of an offer's items."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from svc.asking.names import Names
from svc.model.history import History
from svc.model.ids import IdFinder, IdTable
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Interaction

ITEMS = IdTable.from_ids(["a", "b", "c", "d"])
HISTORY = History(np.array([0, 2]), np.array([0, 1], np.int32))
MODEL = cast(Any, SimpleNamespace(item_ids=ITEMS, n_items=4, finder=IdFinder(ITEMS), history=HISTORY))
NEW = NewItems(IdTable.from_ids(["n0", "n1"]), np.zeros((2, 1)), 4, None)


def test_columns_are_distinct_and_ascending() -> None:
    """Unknown ids have no column. New items are no items of the model."""
    assert Names(MODEL, NEW).of_model(["d", "b", "nobody", "n0", "d"]).tolist() == [1, 3]


def test_new_items_follow_the_items_of_the_model() -> None:
    names = Names(MODEL, NEW)
    assert names.columns(["n1", "x", "c"]).tolist() == [5, -1, 2]
    assert names.columns(["n1", "x", "c"], with_new=False).tolist() == [-1, -1, 2]
    assert [names.at(column) for column in (5, 2)] == ["n1", "c"]


def test_weights_of_a_history_add_up() -> None:
    """Weights are None if all are 1. Unknown ids and new items are listed once."""
    names = Names(MODEL, NEW)
    repeated = names.history([Interaction("c"), Interaction("n0"), Interaction("c", 2.0), Interaction("n0")])
    assert (repeated.columns.tolist(), repeated.unknown) == ([2], ("n0",))
    assert repeated.weights is not None
    assert repeated.weights.tolist() == [3.0]
    assert names.history([Interaction("c"), Interaction("a")]).weights is None


def test_disliked_new_items_are_known() -> None:
    """They are no items of the model, so they have no column."""
    disliked = Names(MODEL, NEW).dislikes([Interaction("n0"), Interaction("x"), Interaction("b", 3.0)])
    assert (disliked.columns.tolist(), disliked.unknown) == ([1], ("x",))
