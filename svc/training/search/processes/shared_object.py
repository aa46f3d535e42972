"""One copy of a search's matrices for all worker processes of a host.

An object is pickled with its arrays out of band (protocol 5) into an anonymous memory file. A process that maps this
file gets the same object, with arrays that are views of the mapping. Pages are shared until a process writes to them.
The file has no name, so nothing remains when a process is killed. Its size is not limited by /dev/shm.
"""

from __future__ import annotations

import mmap
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """Location of a shared object: a file of this process, its pickle, and (offset, bytes) of each of its arrays."""

    path: str
    pickled: bytes
    extents: tuple[tuple[int, int], ...]
    n_bytes: int


class SharedObject:
    """Keeps the memory of one shared object until `close`.

    Processes that have attached it keep it longer.
    """

    def __init__(self, descriptor: int, location: MemoryLocation) -> None:
        self._descriptor = descriptor
        self.location = location

    @classmethod
    def of(cls, value: Any) -> SharedObject:
        """Copy a picklable `value` to memory that other processes of this user can attach."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        descriptor = os.memfd_create("svc-search")
        extents, at = [], 0
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            for buffer in buffers:
                raw = buffer.raw()
                file.seek(at)
                file.write(raw)
                extents.append((at, raw.nbytes))
                at += -(-raw.nbytes // _ALIGNMENT) * _ALIGNMENT
        n_bytes = max(at, 1)
        os.truncate(descriptor, n_bytes)
        return cls(descriptor, MemoryLocation(f"/proc/{os.getpid()}/fd/{descriptor}", pickled, tuple(extents), n_bytes))

    def close(self) -> None:
        os.close(self._descriptor)


def attach(location: MemoryLocation) -> Any:
    """Return the object at `location`, while the process that shares it lives.

    Changes to its arrays stay in this process.
    """
    with Path(location.path).open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), location.n_bytes, access=mmap.ACCESS_COPY))
    return pickle.loads(location.pickled, buffers=[view[at : at + n] for at, n in location.extents])
