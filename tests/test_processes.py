"""Processes that end with their parent, and memory that no process can change."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys

import pytest

from svc.artifact.store_local import private_buffer
from svc.processes import SealedMemory, SharedPage

CHILD = "import os, sys, time; from svc.processes import end_with; end_with({parent}); print('on', flush=True)"
PARENT = f"""
import os, subprocess, sys, time
child = {CHILD!r}.format(parent=os.getpid()) + "; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
time.sleep(600)
"""
ALL_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL


@pytest.mark.system
def test_a_process_ends_when_its_parent_is_killed() -> None:
    """The child ends long before its sleep of ten minutes is over."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"on\n"
        parent.kill()
        assert parent.stdout.read() == b""


@pytest.mark.system
def test_a_process_whose_parent_has_gone_ends_at_once() -> None:
    """The parent may end before the child starts to watch it."""
    code = CHILD.format(parent=os.getpid() + 1)
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


@pytest.mark.system
def test_a_server_can_wait_for_its_workers_if_its_parent_ignores_their_end() -> None:
    """The server inherits an ignored SIGCHLD, and the kernel would forget each worker that ends."""
    wait = "print(os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(3), 0)[1]))"
    code = f"import os; from svc.processes import adopt_orphans; adopt_orphans(); {wait}"
    ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.executable, {})"
    command = ignoring.format([sys.executable, "-c", code])
    ended = subprocess.run([sys.executable, "-c", command], stdout=subprocess.PIPE, check=True)
    assert ended.stdout == b"3\n"


def test_a_memory_file_is_sealed_in_every_way_and_read_only() -> None:
    """It can be changed neither through its descriptor nor through a new mapping."""
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
    """Each array, even an empty one, starts at a multiple of 64 bytes."""
    arrays = [memoryview(b"abc"), memoryview(b""), memoryview(bytes(range(65)))]
    sealed, extents = SealedMemory.of_arrays(arrays)
    assert extents == [(0, 3), (64, 0), (64, 65)]
    assert [sealed[at : at + n] for at, n in extents] == arrays
    assert SealedMemory.of_arrays([])[1] == []


def test_a_file_that_is_not_sealed_is_refused() -> None:
    """A worker maps no file that another process could change, and closes its descriptor."""
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"bytes")
    with pytest.raises(OSError, match="not sealed"):
        SealedMemory.adopt(descriptor)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_moving_a_buffer_gives_its_pages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving a model into sealed memory never needs memory for two models."""
    monkeypatch.setattr("svc.processes.CHUNK_BYTES", 4 * mmap.PAGESIZE)
    content = os.urandom(10 * mmap.PAGESIZE + 5)
    buffer = private_buffer(len(content))
    buffer[:] = content
    sealed = SealedMemory.take(buffer.toreadonly())
    assert sealed[:] == content
    assert bytes(buffer) == bytes(len(content))


def test_the_descriptor_is_closed_with_the_last_reference() -> None:
    """A replaced model leaves no open file."""
    sealed = SealedMemory.of([b"x"])
    descriptor = sealed.descriptor
    del sealed
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_a_worker_cannot_shorten_its_page_under_the_parent() -> None:
    """Reading a page of a shortened file would kill the parent."""
    page = SharedPage.of(8192)
    page[:3] = b"abc"
    other = SharedPage.adopt(os.dup(page.descriptor))
    assert other[:3] == b"abc"
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(page.descriptor, size)
