"""A request's history gets the weights of its events, and only some of its items are left out of the answer."""

from __future__ import annotations

import numpy as np
import pytest

from svc.asking.history import by_event, not_seen
from svc.errors import ValidationFailed
from svc.model.history import History
from svc.model.ranking.query import EventKind, EventOfItem, Interaction, Query

KINDS = (EventKind("view", 2.0, seen=False, target=False), EventKind("buy", 10.0, seen=True, target=True))


def test_weights_are_multiplied_by_those_of_events() -> None:
    """An element without an event keeps its weight, and its item is left out."""
    asked = [EventOfItem("a", 1.0, "view"), Interaction("b", 3.0), EventOfItem("c", 0.5, "buy")]
    weighed, seen = by_event(asked, KINDS)
    assert weighed == [("a", 2.0), ("b", 3.0), ("c", 5.0)]
    assert seen == ["b", "c"]


def test_a_history_without_events_is_unchanged() -> None:
    asked = [Interaction("a"), Interaction("b", 2.0)]
    weighed, seen = by_event(asked, KINDS)
    assert weighed is asked
    assert seen == ["a", "b"]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [(KINDS, "unknown event; the model has view, buy"), ((), "the model was trained without events")],
)
def test_an_unknown_event_is_refused_with_the_events(kinds: tuple[EventKind, ...], message: str) -> None:
    """The error names the element, and never repeats the text of the client."""
    with pytest.raises(ValidationFailed) as refused:
        by_event([Interaction("a"), EventOfItem("a", 1.0, "wish")], kinds)
    (error,) = refused.value.errors or ()
    assert (error["loc"], error["type"]) == (["body", "history", 1, "event"], "unknown_event")
    assert message in error["msg"]
    assert "wish" not in error["msg"]


def test_an_item_is_left_out_if_any_event_of_it_hides_it() -> None:
    """The events of the training history count too, if it is part of the seeds."""
    history = History(np.array([0, 3]), np.array([1, 4, 6], np.int32), is_seen=np.array([False, True, False]))
    query = Query(5, seeds=np.array([1, 4, 6, 8], np.int32), of_trained_user=True)
    assert not_seen(query, history, 0, np.array([6], np.int32)).tolist() == [1, 8]
    assert not_seen(query._replace(of_trained_user=False), history, -1, np.array([6], np.int32)).tolist() == [1, 4, 8]
