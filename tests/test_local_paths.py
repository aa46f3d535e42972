"""Absolute local paths without `..`."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.local_paths import absolute, without_detours


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
