"""Packages, in which the parent hands a loaded model to its workers without copying the arrays.

The parent has verified, decoded and tested the model. The arrays of the model and the encoded pieces of its items
(`ItemFragments`) lie in sealed memory files, which all workers map. All other values are pickled. Unpickling runs code,
so workers accept packages only from their parent. An entry of the registry refers to the package of its model.
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
from svc.model.codec import Stored
from svc.processes import SealedMemory
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Entry, ListState, Served
from svc.serving.models.threads import ScoringThreads


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


class _EntryPickler(pickle.Pickler):
    """A pickler of entries, in which a served model is the number of its package beside its rules and items.

    Rules and lists change more often than models, so they are sent without the model. Lists are sent without their
    content, because workers need only the items.
    """

    def __init__(self, out: io.BytesIO, before: Served | None) -> None:
        super().__init__(out, protocol=5)
        self._sent = before and before.new

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        if isinstance(value, Served):
            assert isinstance(value.lane, WorkerLanes), "the fleet made it"
            is_sent = value.new is self._sent
            key = value.lane.number, value.name, value.loaded_at
            return key, value.available, value.policy, is_sent, None if is_sent else value.new
        if isinstance(value, ListState):
            # trio's clock has a different zero in each process, and this one has not.
            shift_s = time.perf_counter() - trio.current_time()
            return value.declared, None if value.read_at is None else value.read_at + shift_s
        return None


def write_entry(entry: Entry, before: Served | None = None) -> bytes:
    """Return an entry for `read_entry` in a worker. Call it on the event loop.

    `before` is the model in the entry that was last sent to the same workers, or None. If it has the same new items,
    they are not sent again.
    """
    out = io.BytesIO()
    _EntryPickler(out, before).dump(entry)
    return out.getvalue()


class _EntryUnpickler(pickle.Unpickler):
    shift_s: float
    served: Callable[..., Served]

    def persistent_load(self, parts: tuple[Any, ...]) -> Served | ListState[Any]:
        if len(parts) == 2:
            declared, read_at = parts
            return ListState(declared, None, None if read_at is None else read_at + self.shift_s)
        key, available, policy, is_sent, new = parts
        served = self.served(*key)
        return served.beside(available, served.new if is_sent else new, policy)


def read_entry(pickled: bytes, shift_s: float, served: Callable[[int, str, float], Served]) -> Entry:
    """Return the entry that `write_entry` has written. Blocks, because the recipe's filter is computed for all items.

    Times of lists are `shift_s` seconds later than on the clock of `time.perf_counter`. `served` returns the model to
    which rules and items are added, from the number of its package, the name of its recipe and the time of its load.
    """
    unpickler = _EntryUnpickler(io.BytesIO(pickled))
    unpickler.shift_s, unpickler.served = shift_s, served
    entry: Entry = unpickler.load()
    return entry


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
            # Without `__getstate__` of `Stored`, which leaves the derived attributes out of artifacts.
            return copyreg.__newobj__, (type(value),), vars(value)  # type: ignore[attr-defined]
        if isinstance(value, ItemFragments):
            blob, offsets = value.memory
            return ItemFragments, (SealedMemory.of([memoryview(blob)]), offsets)
        # Neither locks nor mapping proxies can be pickled. A worker needs a lock of its own anyway.
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
    raws = [array.raw() for array in arrays]
    stored = [_extent_in(artifact, raw) for raw in raws]
    memory, places = SealedMemory.of_arrays(raw for raw, extent in zip(raws, stored, strict=True) if extent is None)
    derived = (Extent(len(pickler.files), offset, size) for offset, size in places)
    package = Package(out.getvalue(), tuple(extent or next(derived) for extent in stored), (*pickler.files, memory))
    # The parent opens its own package, so that it keeps no private copy of the derived arrays.
    return replace(package.open(), package=package)


def _extent_in(artifact: SealedMemory, raw: memoryview) -> Extent | None:
    """Return the place of an array that is a view of the artifact, or None for a derived array."""
    if not raw.nbytes:  # the address of an empty array means nothing
        return Extent(0, 0, 0)
    # A view does not tell its offset in the file, so addresses are compared.
    begin, start = (np.frombuffer(view, np.uint8).ctypes.data for view in (memoryview(artifact), raw))
    is_inside = begin <= start and start + raw.nbytes <= begin + len(artifact)
    return Extent(0, start - begin, raw.nbytes) if is_inside else None
