"""Recording of the digests of files that are read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from svc.errors import DataSourceError
from svc.sources import digests

CSV = b"user_id,item_id\n1,a\n2,b\n"


def heard(source: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    with digests.record_digests(found.__setitem__):
        source.fetch()
    return found


def test_a_file_is_recorded_with_its_digest(make: Any, tmp_path: Path) -> None:
    """Files are recorded with and without a sha256 in the recipe."""
    (tmp_path / "a.csv").write_bytes(CSV)
    digest = hashlib.sha256(CSV).hexdigest()
    for options in ({}, {"sha256": digest}):
        assert heard(make("csv", path=str(tmp_path / "a.csv"), **options)) == {str(tmp_path / "a.csv"): digest}


def test_each_file_of_a_folder_is_recorded(make: Any, tmp_path: Path) -> None:
    """Each file is recorded under its own path."""
    contents = {f"{n}.csv": CSV + b"%d,c\n" % n for n in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = heard(make("csv", path=str(tmp_path)))
    assert found == {str(tmp_path / name): hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_without_a_recorder_nothing_is_hashed(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is then read once."""
    (tmp_path / "a.csv").write_bytes(CSV)
    source = make("csv", path=str(tmp_path / "a.csv"))
    assert heard(source)
    assert not digests.is_wanted()
    monkeypatch.setattr("svc.sources.files._digest", lambda _: pytest.fail("hashed"))
    assert len(source.fetch()) == 2


def test_a_wrong_digest_is_an_error_while_recording(make: Any, tmp_path: Path) -> None:
    """Recording does not change the check of the sha256."""
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(DataSourceError, match="is not the expected file"):
        heard(make("csv", path=str(tmp_path / "a.csv"), sha256="0" * 64))
