"""Memory for one artifact: private, writable, and of the requested size."""

from __future__ import annotations

import mmap
import os

import pytest

from svc.artifact.buffer import private_buffer


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 7])
def test_a_buffer_has_writable_zeros(size: int) -> None:
    """The buffer has exactly the requested size, which may be 0."""
    buffer = private_buffer(size)
    assert bytes(buffer) == bytes(size)
    buffer[:] = b"x" * size
    assert bytes(buffer) == b"x" * size


def test_a_write_in_another_process_does_not_change_the_buffer() -> None:
    """Verified bytes cannot change under their reader."""
    buffer = private_buffer(10)
    buffer[:5] = b"first"
    child = os.fork()
    if not child:
        buffer[:5] = b"other"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(buffer[:5]) == b"first"
