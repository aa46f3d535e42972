"""The demo's folder: data, recipes and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from svc.cli.main import run
from svc.cli.shop.demo_files import FILES


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
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    assert (folder / "keys.env").read_text() == keys


@pytest.mark.parametrize("name", ["recipes/books.yaml", "data/purchases.csv"])
def test_a_file_that_was_changed_is_overwritten_by_force_only(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user's own data or recipe in the demo's folder is named, and no file changes."""
    folder = tmp_path / "shop"
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 0
    shipped = (folder / name).read_bytes()
    (folder / name).write_text("my own")
    (folder / "data" / "readers.csv").unlink()
    assert run(["demo", "--files-only", "--folder", str(folder)]) == 2
    assert name in json.loads(capsys.readouterr().err)["error"]
    assert (folder / name).read_text() == "my own"
    assert not (folder / "data" / "readers.csv").exists()
    assert run(["demo", "--files-only", "--folder", str(folder), "--force"]) == 0
    assert (folder / name).read_bytes() == shipped


@pytest.fixture(scope="module")
def purchases() -> pd.DataFrame:
    books = pd.read_csv(FILES / "data" / "books.csv")
    return pd.read_csv(FILES / "data" / "purchases.csv").merge(books, on="item_id", validate="many_to_one")


def test_the_data_has_the_shape_of_a_shop(purchases: pd.DataFrame) -> None:
    """Tens of thousands of purchases, none twice; a tenth of the books makes more than a third of the sales."""
    assert 50_000 < len(purchases) < 200_000
    assert not purchases.duplicated(["user_id", "item_id"]).any()
    sales = purchases["item_id"].value_counts()
    assert sales.head(100).sum() > len(purchases) / 3
    assert sales.max() < purchases["user_id"].nunique() / 2


def test_taste_can_be_learned(purchases: pd.DataFrame) -> None:
    """Two purchases of one reader share a genre much more often than two of any readers."""
    ordered = purchases.sort_values("user_id", kind="stable")
    genres = ordered["categories"].str.get_dummies("|").to_numpy(dtype=bool)
    shared = (genres[:-1] & genres[1:]).any(axis=1)
    same = ordered["user_id"].to_numpy()[:-1] == ordered["user_id"].to_numpy()[1:]
    strangers = (genres[: len(genres) // 2] & genres[-(len(genres) // 2) :]).any(axis=1)
    assert shared[same].mean() > 1.5 * strangers.mean()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No file of the user is overwritten, not even with --remove."""
    (tmp_path / "thesis.tex").write_text("precious")
    assert run(["demo", "--folder", str(tmp_path), "--files-only", "--remove"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage_error"
    assert (tmp_path / "thesis.tex").read_text() == "precious"
