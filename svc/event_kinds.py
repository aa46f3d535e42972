"""The kinds of events, each with its name, level and fields.

`svc.events` has the table of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log record.

    `fields` are the fields that it always carries. Other fields may join them.
    """

    name: str
    level: Level
    fields: tuple[str, ...]


EVENTS: dict[str, Event] = {}
"""Every event by name, in the order of the table."""


def event(name: str, level: Level, fields: str) -> Event:
    """Add a row to the table. `fields` are separated by blanks. Raises ValueError for a repeated name."""
    if name in EVENTS:
        raise ValueError(f"the event {name} is there twice")
    EVENTS[name] = Event(name, level, tuple(fields.split()))
    return EVENTS[name]
