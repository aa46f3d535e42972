"""Packages, in which the parent hands a loaded model to its workers without copying the arrays.

The parent has verified, decoded and tested the model. The arrays of the model and the encoded pieces of its items
(`ItemFragments`) lie in sealed memory files, which all workers map. All other values are pickled. Unpickling runs code,
so workers accept packages only from their parent. The rules and lists of the recipe change more often than the model,
so they are sent separately (`ServedState`).
"""

from __future__ import annotations

import copyreg
import io
import pickle
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import trio

from svc.artifact.store import Blob
from svc.asking.policy import Policy
from svc.model.codec import Stored
from svc.model.ranking.item_sets import ItemSet
from svc.processes import SealedMemory
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Entry, Served
from svc.serving.models.threads import ScoringThreads


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """The rules, available items and new items of a recipe, with which workers serve a model."""

    number: int
    """Number of the model's package."""
    loaded_at: float
    """Unix time in seconds."""
    policy: Policy
    items: ItemSet | None
    """The available items, or None without a list of available items or before its first read."""
    new: bytes | None
    """The pickled `PlacedItems`, or None without new items or with `keeps_new`."""
    keeps_new: bool
    """True if the new items have not changed since the previous order `entry` for this recipe."""


class WorkerLanes(Lane):
    """The parent's placeholder for the lanes in which the workers score one model.

    The parent scores nothing. When the placeholder is closed, the workers drop the model.
    """

    def __init__(self, number: int, drop: Callable[[int], None]) -> None:
        super().__init__(None, ScoringThreads(1))  # type: ignore[arg-type]  # the parent scores nothing
        self.number = number
        self._drop = drop

    def close(self) -> None:
        super().close()
        self._drop(self.number)


def on_clock(entry: Entry, shift_s: float) -> Entry:
    """Return the entry with the times of its lists shifted by `shift_s` seconds, and without the lists' content.

    trio's clock has a different zero in each process, so the parent sends times of `time.perf_counter`. Workers do not
    need the content, because `ServedState` has the items.
    """
    available, new = entry.availability, entry.new_items
    return replace(
        entry, availability=available and available.on_clock(shift_s), new_items=new and new.on_clock(shift_s)
    )


def mirror_entry(entry: Entry, before: Served | None = None) -> tuple[Entry, ServedState | None]:
    """Return an entry without its model, and the state of its model, both in the form that is sent to workers.

    The state is None if the entry has no model. `before` is the model in the entry that was last sent to the same
    workers, or None. If it has the same new items, they are not sent again.
    """
    state, served = None, entry.served
    if served is not None:
        lane, available, new = served.lane, served.available, served.new
        assert isinstance(lane, WorkerLanes), "the fleet made it"
        keeps_new = new is not None and before is not None and before.new is new
        pickled = None if new is None or keeps_new else pickle.dumps(new, protocol=5)
        state = ServedState(lane.number, served.loaded_at, served.policy, available, pickled, keeps_new)
    return on_clock(replace(entry, served=None), time.perf_counter() - trio.current_time()), state


_LOCK = type(threading.Lock())


class Extent(NamedTuple):
    """The place of an array: the index of the memory file, and offset and length in bytes."""

    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Package:
    """A packed model: memory files, the places of arrays and encoded items in them, and the pickle of all else."""

    pickled: bytes
    extents: tuple[Extent, ...]
    files: tuple[SealedMemory, ...]

    def open(self) -> Loaded:
        """Return the model. Its arrays are views of the memory files."""
        views = [memoryview(file) for file in self.files]
        buffers = (views[file][offset : offset + length] for file, offset, length in self.extents)
        unpickler = _Unpickler(io.BytesIO(self.pickled), buffers=buffers)
        unpickler.files = self.files
        loaded: Loaded = unpickler.load()
        return loaded


class _Pickler(pickle.Pickler):
    """A pickler of loaded models.

    Unlike an artifact, the pickle contains derived attributes of `Stored` objects, so that workers need not compute
    them. A memory file is pickled as an index of `files`.
    """

    files: list[SealedMemory]

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, SealedMemory):
            self.files.append(value)
            return len(self.files) - 1
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Stored):
            return copyreg.__newobj__, (type(value),), vars(value)  # type: ignore[attr-defined]
        if isinstance(value, ItemFragments):
            blob, offsets = value.memory
            return ItemFragments, (SealedMemory.of([memoryview(blob)]), offsets)
        if isinstance(value, _LOCK):
            return threading.Lock, ()
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    files: tuple[SealedMemory, ...]

    def persistent_load(self, number: int) -> SealedMemory:
        return self.files[number]


def pack_loaded(loaded: Loaded, blob: Blob) -> Loaded:
    """Return the same model with its package. All arrays of the result lie in memory that workers can map.

    `blob` is the artifact in sealed memory. The stored arrays of the model are views of it and are not copied. Derived
    arrays are copied to a new memory file. Blocks.
    """
    artifact = blob.view.obj
    assert isinstance(artifact, SealedMemory), "the loader has sealed the artifact"
    arrays: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=5, buffer_callback=arrays.append)
    pickler.files = [artifact]
    pickler.dump(loaded)
    begin = _address(memoryview(artifact))
    extents: list[Extent | None] = []  # None for a derived array, whose place is known once all arrays are copied
    derived: list[memoryview] = []
    for array in arrays:
        raw = array.raw()
        offset = _address(raw) - begin if raw.nbytes else 0
        if offset >= 0 and offset + raw.nbytes <= len(artifact):
            extents.append(Extent(0, offset, raw.nbytes))
        else:
            extents.append(None)
            derived.append(raw)
    memory, derived_extents = SealedMemory.of_arrays(derived)
    last = (Extent(len(pickler.files), offset, length) for offset, length in derived_extents)
    extents_of_all = tuple(extent or next(last) for extent in extents)
    package = Package(out.getvalue(), extents_of_all, (*pickler.files, memory))
    return replace(package.open(), package=package)


def _address(view: memoryview) -> int:
    """Return the memory address of the first byte."""
    return np.frombuffer(view, np.uint8).ctypes.data
