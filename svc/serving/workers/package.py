"""A loaded model as a package that another process opens without decoding, copying or computing.

The parent has verified, decoded and rehearsed the model. All its arrays, stored or derived, lie in sealed memory files.
The rest is a pickle of small values. Only workers open packages, and only those of their parent. The state of the
recipe, which changes more often than the model, follows in a message of its own.
"""

from __future__ import annotations

import copyreg
import ctypes
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
from svc.model.codec import Stored
from svc.model.ranking.item_sets import ItemSet
from svc.processes import SealedMemory
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.models.recipes import Policy
from svc.serving.models.registry import Entry, Served
from svc.serving.models.threads import ScoringThreads


@dataclass(frozen=True, slots=True, eq=False)
class ServedState:
    """The state of a published model that workers need besides its package, which has the same `number`.

    `items` are the available items, and `new` the new items, pickled. `keeps_new` replaces `new` if the previous order
    sent the same new items.
    """

    number: int
    loaded_at: float
    policy: Policy
    items: ItemSet | None
    new: bytes | None
    keeps_new: bool


class WorkerLanes(Lane):
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
    available, new = entry.availability, entry.new_items
    return replace(
        entry, availability=available and available.on_clock(shift_s), new_items=new and new.on_clock(shift_s)
    )


def mirror_entry(entry: Entry, before: Served | None = None) -> tuple[Entry, ServedState | None]:
    """Return the entry to send to workers: without model and contents of lists, on the clock that all processes share.

    `before` is the model that was sent last, if any.
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
    """The place of an array: the number of its file, and its offset and length in bytes."""

    file: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Package:
    """A packed model. `pickled` refers to `files`, and to the `extents` of arrays in them."""

    pickled: bytes
    extents: tuple[Extent, ...]
    files: tuple[SealedMemory, ...]

    def open(self) -> Loaded:
        """Return the model over the memory files."""
        views = [memoryview(file) for file in self.files]
        buffers = (views[file][offset : offset + length] for file, offset, length in self.extents)
        unpickler = _Unpickler(io.BytesIO(self.pickled), buffers=buffers)
        unpickler.files = self.files
        loaded: Loaded = unpickler.load()
        return loaded


class _Pickler(pickle.Pickler):
    """Pickles also the derived attributes, which `Stored` leaves out of artifacts, and memory files as numbers."""

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
    """Return the same model on memory that workers can map, with its package. Blocks, and copies derived arrays.

    The stored arrays of the model are views of `blob`.
    """
    artifact = blob.view.obj
    assert isinstance(artifact, SealedMemory), "the loader has sealed it"
    arrays: list[pickle.PickleBuffer] = []
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=5, buffer_callback=arrays.append)
    pickler.files = [artifact]
    pickler.dump(loaded)
    begin = _address(memoryview(artifact))
    extents: list[Extent | None] = []  # None: in the last file
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
    array = np.frombuffer(view, np.uint8)
    return int(ctypes.c_void_p(array.ctypes.data).value or 0)
