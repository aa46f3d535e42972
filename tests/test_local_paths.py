"""Absolute local paths without `..`, and the words for a full disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from svc.artifact import layout
from svc.local_paths import absolute, failure, naming_size, without_detours


@pytest.mark.parametrize(
    "name", ["a.yaml", "./a.yaml", "../recipes/a.yaml", "sub/../a.yaml", "../../home/recipes/a.yaml"]
)
def test_every_name_of_a_file_becomes_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The result never depends on the working folder or the spelling."""
    folder = tmp_path / "home" / "recipes"
    (folder / "sub").mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert absolute(Path(name)) == folder / "a.yaml"
    monkeypatch.chdir(folder / "sub")
    assert absolute(Path("..") / name) == folder / "a.yaml"
    assert absolute(Path("..")) == folder


def test_a_link_keeps_the_meaning_of_the_folder_above(tmp_path: Path) -> None:
    """`link/..` is the folder above the target of the link."""
    (tmp_path / "far" / "target").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "target")
    path = tmp_path / "link" / ".." / "a.csv"
    assert without_detours(path) == path
    assert without_detours(tmp_path / "far" / ".." / "a.csv") == tmp_path / "a.csv"


@pytest.mark.parametrize("n_bytes", [10, 1_000_000])
def test_a_full_disk_is_told_with_the_bytes_that_are_free_and_needed(tmp_path: Path, n_bytes: int) -> None:
    """The few bytes fail twice: when they are flushed, and when the file is closed."""
    full = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught, full.open("wb") as file, naming_size(n_bytes):
        file.write(bytes(n_bytes))
        file.flush()
    assert re.fullmatch(
        rf"No space left on device \([0-9,]+ bytes are free in {tmp_path}, {n_bytes:,} are needed\)",
        failure(caught.value, tmp_path),
    )


def test_an_artifact_names_its_size_on_a_full_disk(tmp_path: Path) -> None:
    """The size has the header, the payload and the signature."""
    artifact: dict[str, Any] = {"kid": "k", "key": bytes(32), "header": {}, "payload": [bytes(5000)]}
    with (tmp_path / "whole").open("wb") as file:
        size = layout.write(file, **artifact).artifact_bytes
    with pytest.raises(OSError, match="No space left") as caught, Path("/dev/full").open("wb") as full:
        layout.write(full, **artifact)
    assert failure(caught.value, tmp_path).endswith(f", {size:,} are needed)")
