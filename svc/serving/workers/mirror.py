"""The parent's registry, of which every worker has a copy that is told each change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import trio

from svc.serving.models.availability import Available, ItemList
from svc.serving.models.lanes import Lane
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.threads import ScoringThreads

Tell = Callable[..., None]
"""Tells every worker, and those to come: the kind of a message, and what belongs to it."""


@dataclass(frozen=True, slots=True)
class WorkersState:
    """How many workers are wanted, how many answer, and how many places stay empty because each worker dies at once."""

    total: int
    ready: int
    failing: int

    def document(self) -> dict[str, int]:
        """As `/v1/health` shows it."""
        return {"total": self.total, "ready": self.ready, "failing": self.failing}


@dataclass(frozen=True, slots=True, eq=False)
class ToldList:
    """A list of available items for a worker, which needs no ids. Times are those of the machine's clock."""

    available: Available

    def shifted(self, shift_s: float) -> Available:
        """The list with its time on the clock of the worker's event loop."""
        listed = self.available.listed
        return replace(self.available, listed=listed and replace(listed, read_at=listed.read_at + shift_s))


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """What a worker has to know of a published model beside its package, which has the same `number`."""

    number: int
    model_version: str
    loaded_at: float
    available: ToldList | None


@dataclass(frozen=True, slots=True, eq=False)
class MirroredEntry:
    """An entry of the registry; its `served` stands apart."""

    entry: Entry
    served: ServedState | None


class RemoteLane(Lane):
    """Stands in the parent for the lanes that workers have for one model. Closing it makes them drop the model."""

    def __init__(self, number: int, drop: Callable[[int], None]) -> None:
        super().__init__(None, ScoringThreads(1))  # type: ignore[arg-type]  # nobody asks it
        self.number = number
        self._drop = drop

    def close(self) -> None:
        super().close()
        self._drop(self.number)


class MirroringRegistry(Registry):
    """Tells workers each change. `workers` is what the health documents say of them."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell
        self.workers = WorkersState(1, 0, 0)

    def put(self, entry: Entry) -> None:
        super().put(entry)
        self._tell("entry", mirrored(entry))

    def remove(self, name: str) -> None:
        super().remove(name)
        self._tell("remove", name)

    def skip(self, errors: Mapping[str, str]) -> None:
        if dict(errors) != dict(self.skipped_files()):
            self._tell("skip", dict(errors))
        super().skip(errors)

    def health(self) -> tuple[dict[str, object], int]:
        document, status = super().health()
        return {**document, "workers": self.workers.document()}, status


def mirrored(entry: Entry) -> MirroredEntry:
    """An entry as workers are told it: without models and ids of lists, with times that all processes share."""
    shift_s = time.perf_counter() - trio.current_time()

    def told(listed: ItemList | None) -> ItemList | None:
        return None if listed is None else ItemList((), listed.read_at + shift_s)

    served = None
    if entry.served is not None:
        lane = entry.served.lane
        assert isinstance(lane, RemoteLane), "the fleet made it"
        available = entry.served.available
        shown = None if available is None else ToldList(replace(available, listed=told(available.listed)))
        served = ServedState(lane.number, entry.served.model_version, entry.served.loaded_at, shown)
    return MirroredEntry(replace(entry, served=None, listed=told(entry.listed)), served)
