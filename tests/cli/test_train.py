"""`svc train`: runs that cannot start, and run ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import history


def test_a_recipe_that_cannot_be_loaded_ends_as_a_failed_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line is `train_error` with the run id and the file's name."""
    recipe = tmp_path / "books.yaml"
    recipe.write_text("name: books\n")
    assert main.run(["train", str(recipe), "--run-id", "nightly"]) == 2
    last = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (last["event"], last["name"], last["run_id"], last["exit_code"]) == ("train_error", "books", "nightly", 2)


def test_the_default_run_id_is_unique(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The id has twelve hex digits. With `--quiet` the outcome is the only line."""
    ids = set()
    for _ in range(2):
        assert main.run(["train", str(recipe), "--quiet"]) == 0
        (last,) = map(json.loads, capsys.readouterr().err.splitlines())
        assert last["event"] == "train_done"
        ids.add(last["run_id"])
    assert len(ids) == 2
    assert all(len(run_id) == 12 and int(run_id, 16) >= 0 for run_id in ids)
    assert history(recipe, capsys)[0]["live"]
