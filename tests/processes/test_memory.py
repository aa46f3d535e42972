"""A process cannot change, shorten or exchange the shared memory of another one."""

from __future__ import annotations

import fcntl
import mmap
import os

import pytest

from svc.artifact.store_local import private_buffer
from svc.processes import memory
from svc.processes.memory import SealedMemory, SharedPage

ALL_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


def test_a_memory_file_is_sealed_in_every_way_and_read_only() -> None:
    """A process can change it neither through the descriptor nor through its own mapping."""
    sealed = SealedMemory.of([b"model ", memoryview(b"bytes")])
    assert sealed[:] == b"model bytes"
    assert fcntl.fcntl(sealed.descriptor, fcntl.F_GET_SEALS) == ALL_SEALS
    with pytest.raises(PermissionError):
        os.pwrite(sealed.descriptor, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(sealed.descriptor, 1)
    with pytest.raises(PermissionError):
        mmap.mmap(sealed.descriptor, 0)
    with pytest.raises(TypeError):
        sealed[0] = 0
    assert memoryview(sealed).readonly


def test_arrays_of_one_file_are_aligned() -> None:
    """Each is at its extent, also an empty one."""
    arrays = [memoryview(b"abc"), memoryview(b""), memoryview(bytes(range(65)))]
    sealed, extents = SealedMemory.of_arrays(arrays)
    assert extents == [(0, 3), (64, 0), (64, 65)]
    assert [sealed[at : at + n] for at, n in extents] == arrays
    assert SealedMemory.of_arrays([])[1] == []


def test_a_file_that_is_not_sealed_is_refused() -> None:
    """A worker maps no writable file, and keeps no descriptor of it."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"bytes")
    with pytest.raises(OSError, match="not sealed"):
        SealedMemory.adopt(descriptor)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_moving_a_buffer_gives_its_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading takes the memory of one model and one chunk, not of two models."""
    monkeypatch.setattr(memory, "CHUNK_BYTES", 4 * mmap.PAGESIZE)
    content = os.urandom(10 * mmap.PAGESIZE + 5)
    buffer = private_buffer(len(content))
    buffer[:] = content
    sealed = SealedMemory.take(buffer.toreadonly())
    assert sealed[:] == content
    assert bytes(buffer) == bytes(len(content))


def test_the_descriptor_is_closed_with_the_last_reference() -> None:
    """A replaced model leaves no file behind."""
    sealed = SealedMemory.of([b"x"])
    descriptor = sealed.descriptor
    del sealed
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_a_worker_cannot_shorten_its_page_under_the_parent() -> None:
    """Reading a mapping without its file would end a process."""
    page = SharedPage.of(8192)
    page[:3] = b"abc"
    other = SharedPage.adopt(os.dup(page.descriptor))
    assert other[:3] == b"abc"
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(page.descriptor, size)
