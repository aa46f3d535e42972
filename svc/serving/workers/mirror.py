"""The state of a recipe in the form that the parent sends to workers, which have a copy of the registry."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import trio

from svc.model.ranking.item_sets import ItemSet
from svc.serving.models.lanes import Lane
from svc.serving.models.policy import Policy
from svc.serving.models.registry import Entry, Served
from svc.serving.models.threads import ScoringThreads


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """The state of a published model that workers need besides its package, which has the same `number`.

    `items` are the available items, and `new` the new items, pickled. `keeps_new` replaces `new` if the previous order
    sent the same new items.
    """

    number: int
    model_version: str
    loaded_at: float
    policy: Policy
    items: ItemSet | None
    new: bytes | None
    keeps_new: bool


class RemoteLane(Lane):
    """The parent's placeholder for the workers' lanes of one model. Closing it makes the workers drop the model."""

    def __init__(self, number: int, drop: Callable[[int], None]) -> None:
        super().__init__(None, ScoringThreads(1))  # type: ignore[arg-type]  # the parent scores nothing
        self.number = number
        self._drop = drop

    def close(self) -> None:
        super().close()
        self._drop(self.number)


def on_clock(entry: Entry, shift_s: float) -> Entry:
    """Return an entry with its lists' times on another clock, and without the lists' items, which no worker needs."""
    listed, new_listed = entry.listed, entry.new_listed
    return replace(
        entry,
        listed=listed and listed.emptied(shift_s),
        new_listed=new_listed and new_listed.emptied(shift_s),
    )


def mirrored(entry: Entry, before: Served | None = None) -> tuple[Entry, ServedState | None]:
    """Return the entry to send to workers: without model and contents of lists, on the clock that all processes share.

    `before` is the model that was sent last, if any.
    """
    state, served = None, entry.served
    if served is not None:
        lane, available, new = served.lane, served.available, served.new
        assert isinstance(lane, RemoteLane), "the fleet made it"
        keeps_new = new is not None and before is not None and before.new is new
        pickled = None if new is None or keeps_new else pickle.dumps(new, protocol=5)
        items = None if available is None else available.items
        version, at, policy = served.model_version, served.loaded_at, served.policy
        state = ServedState(lane.number, version, at, policy, items, pickled, keeps_new)
    return on_clock(replace(entry, served=None), time.perf_counter() - trio.current_time()), state
