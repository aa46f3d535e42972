"""Memory for one artifact: private, writable, and of the requested size.

Files on their way to a store that takes only whole ones.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest

from svc.artifact.buffers import private_buffer, spool_file
from svc.errors import ArtifactWriteError


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


def write(out: BinaryIO) -> int:
    return out.write(b"SVCMODEL")


def test_the_file_holds_what_was_written_and_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed leaves nothing behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with spool_file(write) as (file, written):
        assert written == 8
        file.seek(0)
        assert file.read() == b"SVCMODEL"
        assert list(tmp_path.iterdir()) == []
    assert file.closed


def test_no_room_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be missing, or the disk full while the file is written."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ArtifactWriteError, match="see TMPDIR"), spool_file(write):
        raise AssertionError("nothing was written")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def full(out: BinaryIO) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(ArtifactWriteError, match="No space left"), spool_file(full):
        raise AssertionError("nothing was written")
