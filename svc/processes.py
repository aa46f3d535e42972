"""Forked processes: when they end, and memory that they share.

Linux's prctl lets the kernel end a process together with its parent, or give orphans to a process that adopts them.
Models are shared in sealed memory files, which have no name in a folder, and counts in writable pages. A file is sealed
before any process maps it, so no process can change or remove the bytes that another process reads.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

from svc.errors import ConfigError

_PDEATHSIG, _SUBREAPER = 1, 36
CHUNK_BYTES = 16 << 20
ALIGNMENT = 64
"""The offset in bytes of each array in a file is a multiple of this."""
# Only Linux has seals, see `require_memory_files`.
_FIXED_SIZE: int = sum(getattr(fcntl, name, 0) for name in ("F_SEAL_GROW", "F_SEAL_SHRINK", "F_SEAL_SEAL"))
_SEALED: int = _FIXED_SIZE | getattr(fcntl, "F_SEAL_WRITE", 0)


def end_with(parent: int) -> None:
    """Let the kernel end this process when its parent, the process with the id `parent`, ends.

    Works however the parent ends, and even while this process runs C++ code. Without Linux, this only ends the process
    if the parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before prctl could take effect
        os._exit(1)


def reset_sigchld() -> None:
    """Let this process wait for its children. Call it in the main thread.

    A program that ignores SIGCHLD passes that on to this process, which then could not wait for any child.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants after their own parents have ended. Needs Linux.

    Calls `reset_sigchld`, so call it in the main thread.
    """
    reset_sigchld()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def require_memory_files() -> None:
    """Raise ConfigError if the system has no sealed memory files."""
    if not hasattr(os, "memfd_create") or not hasattr(fcntl, "F_SEAL_WRITE"):
        raise ConfigError(
            "--workers: this system has no sealed memory files, which only Linux offers: serve with one worker"
        )


@contextmanager
def _closed_on_error(descriptor: int) -> Iterator[None]:
    """Close the descriptor if the block raises.

    Otherwise a file that no process maps would keep the memory of a whole model for as long as it is open.
    """
    try:
        yield
    except BaseException:
        os.close(descriptor)
        raise


class _MemoryFile(mmap.mmap):
    """A mapping of a memory file, which lasts until no process holds or maps it."""

    descriptor: int

    @classmethod
    def _map(cls, descriptor: int, access: int) -> Self:
        """Map the whole file. The mapping owns the descriptor, which is closed on an error. Raises OSError."""
        with _closed_on_error(descriptor):
            mapped = cls(descriptor, os.fstat(descriptor).st_size, prot=access)
        mapped.descriptor = descriptor
        # mmap duplicates the descriptor, and keeps only its own copy.
        weakref.finalize(mapped, os.close, descriptor)
        return mapped


class SealedMemory(_MemoryFile):
    """A read-only mapping of a sealed memory file."""

    @classmethod
    def adopt(cls, descriptor: int) -> Self:
        """Map the file that another process gave, by its descriptor.

        The descriptor is closed on an error. Raises OSError if the file is not sealed or cannot be mapped.
        """
        with _closed_on_error(descriptor):
            if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALED != _SEALED:
                raise OSError("a memory file is not sealed")
        return cls._map(descriptor, mmap.PROT_READ)

    @classmethod
    def of(cls, parts: Iterable[bytes | memoryview]) -> Self:
        """Create a file of the concatenated `parts`, or of one zero byte if they are empty, because mmap needs one."""
        descriptor = os.memfd_create("svc-model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with _closed_on_error(descriptor):
            size = sum(_append(descriptor, part) for part in parts)
            os.ftruncate(descriptor, max(size, 1))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALED)
        return cls.adopt(descriptor)

    @classmethod
    def of_arrays(cls, arrays: Iterable[memoryview]) -> tuple[Self, list[tuple[int, int]]]:
        """Create a file of these contiguous arrays. Return it with the offset and length in bytes of each."""
        parts: list[bytes | memoryview] = []
        extents, end = [], 0
        for array in arrays:
            extents.append((end, array.nbytes))
            padding = -array.nbytes % ALIGNMENT
            parts += [array, bytes(padding)]
            end += array.nbytes + padding
        return cls.of(parts), extents

    @classmethod
    def take(cls, view: memoryview) -> Self:
        """Create a file with the bytes of a buffer. The copy of a private mapping needs no additional memory.

        The mapping's pages go back to the system chunk by chunk during the copy. Do not read the buffer afterwards.
        """
        pages = view.obj

        def chunks() -> Iterable[memoryview]:
            for start in range(0, len(view), CHUNK_BYTES):
                yield view[start : start + CHUNK_BYTES]
                if isinstance(pages, mmap.mmap):
                    pages.madvise(mmap.MADV_DONTNEED, start, min(CHUNK_BYTES, len(pages) - start))

        return cls.of(chunks())


def _append(descriptor: int, part: bytes | memoryview) -> int:
    left = memoryview(part).cast("B") if len(part) else memoryview(b"")
    while left:  # one write of the system may take less than all
        left = left[os.write(descriptor, left) :]
    return len(part)


class SharedPage(_MemoryFile):
    """Writable memory of fixed size that several processes map.

    Its size is sealed, so no process can shorten it while other processes use it.
    """

    @classmethod
    def of(cls, size: int) -> Self:
        """Create memory of zeros. Pages cost memory only once they are written to."""
        descriptor = os.memfd_create("svc-counts", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with _closed_on_error(descriptor):
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED_SIZE)
        return cls.adopt(descriptor)

    @classmethod
    def adopt(cls, descriptor: int) -> Self:
        """Map the memory that another process made. The mapping owns `descriptor` from now on."""
        return cls._map(descriptor, mmap.PROT_READ | mmap.PROT_WRITE)
