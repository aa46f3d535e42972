"""Files on their way to a store that takes only whole ones."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import BinaryIO

import pytest

from svc.artifact.spool import spool_file
from svc.errors import ArtifactWriteError


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
