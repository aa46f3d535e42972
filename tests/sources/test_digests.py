"""Digests of what is read: told only to who listens, and only for files that are read whole."""

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


def test_a_file_is_told_with_the_digest_of_its_bytes(make: Any, tmp_path: Path) -> None:
    """Whether the recipe gives its sha256 or not."""
    (tmp_path / "a.csv").write_bytes(CSV)
    digest = hashlib.sha256(CSV).hexdigest()
    for options in ({}, {"sha256": digest}):
        assert heard(make("csv", path=str(tmp_path / "a.csv"), **options)) == {str(tmp_path / "a.csv"): digest}


def test_each_file_of_a_folder_is_told(make: Any, tmp_path: Path) -> None:
    """By its own name."""
    contents = {f"{n}.csv": CSV + b"%d,c\n" % n for n in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = heard(make("csv", path=str(tmp_path)))
    assert found == {str(tmp_path / name): hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def test_nobody_is_told_outside_and_nothing_is_hashed_for_nobody(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a listener a file is read once, as ever."""
    (tmp_path / "a.csv").write_bytes(CSV)
    source = make("csv", path=str(tmp_path / "a.csv"))
    assert heard(source)
    assert not digests.is_wanted()
    monkeypatch.setattr("svc.sources.files._digest", lambda _: pytest.fail("hashed"))
    assert len(source.fetch()) == 2


def test_another_file_than_the_expected_one_is_still_an_error(make: Any, tmp_path: Path) -> None:
    """Listening changes nothing else."""
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(DataSourceError, match="is not the expected file"):
        heard(make("csv", path=str(tmp_path / "a.csv"), sha256="0" * 64))
