"""The demo's folder: data, recipes and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli.main import run


def test_the_files_make_a_folder_to_work_in(tmp_path: Path) -> None:
    """Data, recipes and keys that only their owner can read."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        "data/books.csv",
        "data/new-books.csv",
        "data/readers.csv",
        "data/purchases.csv",
        "recipes/books.yaml",
        "recipes/books-cold-start.yaml",
        "keys.env",
    }
    assert (folder / "keys.env").stat().st_mode & 0o077 == 0


def test_a_second_demo_keeps_the_keys(tmp_path: Path) -> None:
    """Artifacts and clients of the first one stay valid."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    keys = (folder / "keys.env").read_text()
    (folder / "recipes" / "books.yaml").write_text("broken")
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    assert (folder / "keys.env").read_text() == keys
    assert "name: books" in (folder / "recipes" / "books.yaml").read_text()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of the user is overwritten, not even with --remove."""
    (tmp_path / "thesis.tex").write_text("precious")
    assert run(["demo", "--folder", str(tmp_path), "--files-only", "--remove"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage_error"
    assert (tmp_path / "thesis.tex").read_text() == "precious"
