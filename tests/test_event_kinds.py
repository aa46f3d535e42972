"""What an event is, and that no two have one name."""

from __future__ import annotations

import pytest

from svc import events
from svc.event_kinds import EVENTS, Event, event


def test_event_adds_a_row_with_its_fields() -> None:
    """Its fields are separated by blanks; the table that others read has it under its name."""
    assert EVENTS is events.EVENTS
    assert EVENTS["train_done"] is events.TRAIN_DONE
    assert isinstance(events.TRAIN_DONE, Event)
    assert "exit_code" in events.TRAIN_DONE.fields
    assert events.FETCHING_DATA.fields == ()


def test_a_repeated_event_name_is_refused() -> None:
    """A second row would take the place of the first one without a word."""
    with pytest.raises(ValueError, match="train_done is there twice"):
        event("train_done", "info", "")
