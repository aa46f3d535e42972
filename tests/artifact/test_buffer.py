"""Memory for one artifact: private, writable, and of the size that was asked for."""

from __future__ import annotations

import mmap
import os

import pytest

from svc.artifact.buffer import private_buffer


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 7])
def test_a_buffer_is_zeros_that_can_be_written(size: int) -> None:
    """Of exactly that many bytes, also none."""
    buffer = private_buffer(size)
    assert bytes(buffer) == bytes(size)
    buffer[:] = b"x" * size
    assert bytes(buffer) == b"x" * size


def test_another_process_does_not_see_what_is_written() -> None:
    """Bytes whose signature was checked cannot change under their reader."""
    buffer = private_buffer(10)
    buffer[:5] = b"first"
    child = os.fork()
    if not child:
        buffer[:5] = b"other"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(buffer[:5]) == b"first"
