"""Relative paths in a recipe start at its folder, wherever a command starts and however it names the recipe."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import svc
from svc.artifact.keys import parse_signing_keys
from svc.artifact.store import read_verified
from svc.cli import main
from svc.settings import Settings
from tests.e2e.server import Server
from tests.e2e.test_start import FAILED
from tests.serving.artifacts import SIGNING_KEYS

KINDS = {
    "file": ("csv", "csv/{table}/a.csv"),
    "folder": ("csv", "csv/{table}"),
    "pattern": ("csv", "csv/{table}/*.csv"),
    "above": ("csv", "../shop/data/csv/**/{table}/[ab].csv"),
    "lake": ("parquet", "lake/{table}"),
    "parts": ("parquet", "lake/{table}/part*.parquet"),
}
"""The type of all sources of a recipe, and the pattern of their paths below the folder `data`."""
N_ITEMS = 12
COLUMNS = [{"name": "genre", "kind": "categorical"}]


@dataclass(frozen=True)
class Place:
    """A working folder, and the name of the recipe or of its folder as a user there would write it."""

    cwd: Path
    is_absolute: bool

    def name(self, path: Path) -> str:
        return str(path) if self.is_absolute else os.path.relpath(path, self.cwd)


def tables() -> Iterator[tuple[str, dict[str, list[Any]]]]:
    rated = [(user, item) for user in range(20) for item in range(N_ITEMS) if (user + item) % 3]
    items = [f"i{item}" for item in range(N_ITEMS)]
    yield "events", {"user_id": [f"u{user}" for user, _ in rated], "item_id": [f"i{item}" for _, item in rated]}
    yield "films", {"item_id": items, "title": [f"Film {item}" for item in items], "genre": [*"ab"] * (N_ITEMS // 2)}
    yield "users", {"user_id": [f"u{user}" for user in range(20)], "genre": [*"ab"] * 10}
    yield "new", {"item_id": ["n1", "n2"], "genre": ["a", "b"]}


COMMANDS_READ = pytest.mark.parametrize("recipe", ["folder", "above", "parts"], indirect=True)
"""Kinds of paths for the tests of whole commands, which take seconds. They differ in all that the other kinds test."""


@pytest.fixture(params=KINDS)
def recipe(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write tables, keys and a recipe in which every path is relative, and return the recipe's path."""
    for variable in [name for name in os.environ if name.startswith("SVC_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("SVC_STATE_DIR", str(tmp_path / "state"))  # headers then list the files that were read
    home = tmp_path / "shop"
    for table, columns in tables():
        for kind, file in (("csv", "a.csv"), ("lake", "part-0.parquet")):
            path = home / "data" / kind / table / file
            path.parent.mkdir(parents=True)
            rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
            text = "\n".join([",".join(columns), *rows, ""])
            path.write_text(text) if kind == "csv" else pq.write_table(pa.table(columns), path)
    kind, below = KINDS[request.param]

    def source(table: str) -> dict[str, str]:
        return {"type": kind, "path": f"../data/{below}".replace("data/..", "..").format(table=table)}

    def side(table: str, id_column: str) -> dict[str, Any]:
        return {"source": source(table), "id_column": id_column, "columns": COLUMNS}

    written = {
        "name": "shop",
        "source": source("events"),
        "schema": {"user_column": "user_id", "item_column": "item_id"},
        "features": {"item": side("films", "item_id"), "user": side("users", "user_id")},
        "item_metadata": {"source": source("films"), "id_column": "item_id", "fields": ["title"]},
        "training": {
            "algorithms": ["IALS"],
            "n_trials": 1,
            "cutoff": 5,
            "storage_path": "../searches.db",
            "split": {"heldout_ratio": 0.3},
        },
        "serving": {
            "availability": {"source": source("films"), "id_column": "item_id", "mode": "allow"},
            "new_items": {"source": source("new"), "refresh_seconds": 5, "max_share": None},
        },
        "output": {"path": "../artifacts/shop.svc", "versioning": "append_sha"},
    }
    recipe = home / "recipes" / "shop.yaml"
    (recipe.parent / "sub").mkdir(parents=True)
    recipe.write_text(json.dumps(written))
    keys = home / "keys.env"
    keys.write_text(f"SVC_SIGNING_KEYS={SIGNING_KEYS}\n")
    keys.chmod(0o600)
    (tmp_path / "elsewhere").mkdir()
    return recipe


def places(recipe: Path) -> Iterator[Place]:
    """Yield the folders beside, above and below the recipe's, each with both names of the recipe."""
    home = recipe.parent
    for cwd in (home.parent.parent / "elsewhere", home, home.parent, home / "sub", home.parent / "data"):
        for is_absolute in (True, False):
            yield Place(cwd, is_absolute)


def three_places(recipe: Path) -> Iterator[Place]:
    """Yield a place that names the recipe absolutely, the recipe's own folder's parent, and a folder below it."""
    home = recipe.parent
    yield Place(home.parent.parent / "elsewhere", True)
    yield Place(home.parent, False)
    yield Place(home / "sub", False)


def run(place: Place, capsys: pytest.CaptureFixture[str], *command: str | Path) -> tuple[int, str]:
    """Return the exit code of a command and its output, in which the place's own names of paths are absolute."""
    named = [place.name(part) if isinstance(part, Path) else part for part in command]
    capsys.readouterr()
    code = main.run(named)
    out, err = capsys.readouterr()
    for part in command:
        if isinstance(part, Path):
            out = out.replace(f" {place.name(part)} ", f" {part} ")
    return code, out if not code else out + err


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def answers(place: Place, recipe: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return what each command answers, and the files that all of them leave."""
    home = recipe.parent.parent
    code, told = run(place, capsys, "train", recipe, "--quiet")
    assert code == 0, (place, told)
    answered: dict[str, Any] = {}
    blob, parsed = read_verified(str(home / "artifacts/shop.svc"), parse_signing_keys(SIGNING_KEYS), Settings())
    assert blob.sha256
    answered["header"] = {key: parsed.header[key] for key in ("inputs", "recipe_hash", "best_score")}
    answered["validated with a model"] = run(place, capsys, "validate", recipe)
    answered["history"] = run(place, capsys, "history", recipe)[0]
    answered["recommend"] = run(place, capsys, "recommend", recipe, "--output", home / "out.csv")[0]
    answered["export"] = (home / "out.csv").read_text()
    answered["rollback"] = run(place, capsys, "rollback", recipe)[0]
    trained = svc.train(place.name(recipe), progress=False)
    answered["library"] = trained.recommender.recommend("u1", limit=3).to_dict()
    loaded = svc.load(place.name(home / "artifacts/shop.svc"), keys=SIGNING_KEYS)
    answered["loaded"] = loaded.recommend("u1", limit=3).to_dict()
    answered["files"] = [name for name in files(home) if ".svc" not in name], len(files(home))
    return answered


def test_a_recipe_is_valid_in_every_folder(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each line of the checks, with the full paths of sources and storage, is the same."""
    expected = None
    for place in places(recipe):
        monkeypatch.chdir(place.cwd)
        validated = run(place, capsys, "validate", recipe)
        assert validated[0] == 0, validated
        expected = expected or validated
        assert validated == expected, place


@COMMANDS_READ
def test_a_command_answers_the_same_in_every_folder(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Sources, features, metadata, lists, new items, output, storage and keys are found from every working folder."""
    expected: dict[str, Any] | None = None
    before = files(tmp_path)
    for place in three_places(recipe):
        monkeypatch.chdir(place.cwd)
        answered = answers(place, recipe, capsys)
        assert files(tmp_path / "elsewhere") == []
        expected = expected or answered
        assert answered == expected, place
        for name in set(files(tmp_path)) - set(before):
            (tmp_path / name).unlink()


@COMMANDS_READ
def test_a_server_reads_the_same_in_every_folder(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A server that names its folder of recipes relatively finds artifact, metadata, lists and keys."""
    monkeypatch.chdir(recipe.parent)
    assert run(Place(recipe.parent, is_absolute=True), capsys, "train", recipe, "--quiet")[0] == 0
    expected = None
    for place in three_places(recipe):
        monkeypatch.chdir(place.cwd)
        with Server(Path(place.name(recipe.parent)), env={"SVC_SIGNING_KEYS": "", "SVC_STATE_DIR": ""}) as server:
            assert not [record for record in server.records if record["level"] in FAILED], place
            answer = server.recommend("shop", "u1")
        assert answer.status_code == 200, answer.text
        expected = expected or answer.json()["items"]
        assert answer.json()["items"] == expected, place
        assert expected[0]["title"].startswith("Film")
