"""The parent's registry. Every worker has a copy that gets each change."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import trio

from svc.serving.models.lanes import Lane
from svc.serving.models.lists.availability import Available, ItemList
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.threads import ScoringThreads

Tell = Callable[..., None]
"""Sends an order to present and later workers, by its kind and its arguments."""


@dataclass(frozen=True, slots=True)
class WorkersState:
    """The numbers of wanted workers, of ready workers, and of failing places.

    A place is failing if each of its workers dies at once.
    """

    total: int
    ready: int
    failing: int

    def document(self) -> dict[str, int]:
        """Return the state as `/v1/health` shows it."""
        return {"total": self.total, "ready": self.ready, "failing": self.failing}


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """The state of a published model that workers need beside its package, which has the same `number`."""

    number: int
    model_version: str
    loaded_at: float
    available: Available | None
    new_items: int | None
    """Number of the new items beside the model, which an earlier order gave to the worker."""


@dataclass(frozen=True, slots=True, eq=False)
class MirroredEntry:
    """An entry of the registry. Its `served` stands apart."""

    entry: Entry
    served: ServedState | None


class RemoteLane(Lane):
    """The parent's stand-in for the workers' lanes of one model. Closing it makes workers drop the model."""

    def __init__(self, number: int, drop: Callable[[int], None]) -> None:
        super().__init__(None, ScoringThreads(1))  # type: ignore[arg-type]  # nobody asks it
        self.number = number
        self._drop = drop

    def close(self) -> None:
        super().close()
        self._drop(self.number)


class FleetRegistry(Registry):
    """A registry with the number of workers in its health document."""

    workers = WorkersState(1, 0, 0)

    def health(self) -> tuple[dict[str, Any], int]:
        document, status = super().health()
        return {**document, "workers": self.workers.document()}, status


class MirroringRegistry(FleetRegistry):
    """The registry of the parent, which sends each change to the workers."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def put(self, entry: Entry) -> None:
        super().put(entry)
        for order in orders_of(entry):
            self._tell(*order)

    def remove(self, name: str) -> None:
        super().remove(name)
        self._tell("remove", name)

    def skip(self, errors: Mapping[str, str]) -> None:
        if dict(errors) != dict(self.skipped_files()):
            self._tell("skip", dict(errors))
        super().skip(errors)


def on_clock(listed: ItemList | None, shift_s: float) -> ItemList | None:
    """Return a list with its time on another clock, and without its ids, which no worker needs."""
    return None if listed is None else ItemList((), listed.read_at + shift_s)


def orders_of(entry: Entry) -> Iterator[tuple[Any, ...]]:
    """Yield the orders to a worker about an entry, in their order."""
    told = mirrored(entry)
    new = None if entry.served is None else entry.served.new
    if told.served is not None and new is not None:
        yield "new_items", told.served.number, new.number, pickle.dumps(new, protocol=5)
    yield "entry", told


def mirrored(entry: Entry) -> MirroredEntry:
    """Return an entry as workers get it: without models and ids of lists, with times that all processes share."""
    shift_s = time.perf_counter() - trio.current_time()
    served = None
    if entry.served is not None:
        lane, available = entry.served.lane, entry.served.available
        assert isinstance(lane, RemoteLane), "the fleet made it"
        shown = available and replace(available, listed=on_clock(available.listed, shift_s))
        new = None if entry.served.new is None else entry.served.new.number
        served = ServedState(lane.number, entry.served.model_version, entry.served.loaded_at, shown, new)
    new_listed = entry.new_listed and entry.new_listed.emptied(shift_s)
    shown_entry = replace(entry, served=None, listed=on_clock(entry.listed, shift_s), new_listed=new_listed)
    return MirroredEntry(shown_entry, served)
