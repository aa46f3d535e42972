"""The versions of a recipe in the answer of a server, read without any artifact."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import Store
from svc.artifact.versions import Versions
from svc.recipe.load import LoadedRecipe, load_recipe
from svc.serving.models.versions import MOST, read_versions
from svc.settings import Settings
from tests.e2e.server import write_recipe
from tests.serving.artifacts import SIGNING_KEYS, header

KEYS = parse_signing_keys(SIGNING_KEYS)


def books(folder: Path, versioning: str = "append_sha") -> LoadedRecipe:
    path = write_recipe(folder, "books", folder / "books.svc")
    path.write_text(path.read_text(encoding="utf-8").replace("always_overwrite", versioning), encoding="utf-8")
    return load_recipe(path, {}, settings=Settings(), for_serving=True)


def train(folder: Path, number: int) -> str:
    kid, key = KEYS.active
    head = header(trained_at=f"2099-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00", best_score=number / 1000)
    write = partial(layout.write, kid=kid, key=key, header=head, payload=[b"x"])
    return Versions(str(folder / "books.svc"), KEYS, Settings()).publish(write, head, move=True, keep=None).sha8


def test_versions_are_listed_without_reading_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They equal those of the command. A version without a line in the log has only its name."""
    trained = [train(tmp_path, number) for number in range(3)]
    versions = Versions(str(tmp_path / "books.svc"), KEYS, Settings())
    versions.rollback(trained[1], hold=True)
    expected = [version.as_fields() for version in versions.history()]
    unlogged = tmp_path / "books.0123abcd.svc"
    unlogged.write_bytes(b"no artifact")

    def refused(*_: object) -> None:
        raise AssertionError("an artifact was read")

    monkeypatch.setattr(Store, "read_version", refused)
    found = read_versions(books(tmp_path), KEYS, Settings())
    assert found["versioning"] == "append_sha"
    (unknown,) = [version for version in found["versions"] if version["sha8"] == "0123abcd"]
    assert (unknown["trained_at"], unknown["best_class"], unknown["live"]) == (None, None, False)
    assert [version for version in found["versions"] if version is not unknown] == expected
    assert [version["sha8"] for version in expected if version["held"]] == [trained[1]]


def test_a_recipe_without_versioning_has_no_versions(tmp_path: Path) -> None:
    """It keeps one file, and the answer names this mode."""
    assert read_versions(books(tmp_path, "always_overwrite"), KEYS, Settings()) == {
        "versioning": "always_overwrite",
        "versions": [],
    }


def test_only_the_newest_versions_are_listed(tmp_path: Path) -> None:
    """The number is bounded."""
    trained = [train(tmp_path, number) for number in range(MOST + 3)]
    found = read_versions(books(tmp_path), KEYS, Settings())["versions"]
    assert [version["sha8"] for version in found] == trained[: -MOST - 1 : -1]
