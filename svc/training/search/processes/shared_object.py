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

from svc.processes.memory import SealedMemory


@dataclass(frozen=True, slots=True)
class MemoryLocation:
    """Location of a shared object: a file of this process, its pickle, and (offset, bytes) of each of its arrays."""

    path: str
    pickled: bytes
    extents: list[tuple[int, int]]


def share(value: Any) -> tuple[SealedMemory, MemoryLocation]:
    """Copy a picklable `value` to memory that other processes of this user can attach while this process keeps it."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    memory, extents = SealedMemory.of_arrays(buffer.raw() for buffer in buffers)
    return memory, MemoryLocation(f"/proc/{os.getpid()}/fd/{memory.descriptor}", pickled, extents)


def attach(location: MemoryLocation) -> Any:
    """Return the object at `location`, while the process that shares it lives.

    Changes to its arrays stay in this process.
    """
    with Path(location.path).open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    return pickle.loads(location.pickled, buffers=[view[at : at + n] for at, n in location.extents])
