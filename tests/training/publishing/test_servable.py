"""An artifact that a server would refuse is not published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from svc.recipe.load import LoadedRecipe
from svc.training import final_model
from tests.training.data.test_weights import DAY, SCHEMA
from tests.training.test_run import Make, last, run, small_training

OUTPUT = {"path": "out/small.svc", "versioning": "append_sha"}


def _weighted(path: Path, weights: list[float]) -> Path:
    """Return thirty users with six items each. The first rows have these weights, all others 1."""
    rng = np.random.default_rng(6)
    rows = [(user, item) for user in range(30) for item in rng.choice(12, size=6, replace=False)]
    rows.insert(1, rows[0])  # the first pair comes twice
    lines = ["user_id,item_id,ts,w"]
    for place, (user, item) in enumerate(rows):
        weight = weights[place] if place < len(weights) else 1
        lines.append(f"u{user},i{item},{1_600_000_000 + place * DAY},{weight}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class Bad(NamedTuple):
    """The weights of the first rows, and the expected error."""

    weights: list[float]
    dedup: str
    training: Mapping[str, Any] = {}


def recipe(make_recipe: Make, tmp_path: Path, bad: Bad) -> LoadedRecipe:
    return make_recipe(
        ratings=_weighted(tmp_path / "weights.csv", bad.weights),
        schema={**SCHEMA, "weight_column": "w"},
        cleansing={"dedup": bad.dedup},
        training=small_training(algorithms=["CosineKNN"], n_trials=1, **bad.training),
        output=OUTPUT,
    )


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Bad([1e39], "keep_first"), "user 'u0' and item "),
        (Bad([3e38, 3e38], "sum"), "is 6e+38"),
        (Bad([3e38, 3e38], "none"), "add up to is inf"),
        (Bad([1e-46, 1e-46], "max"), "is 1e-46"),
    ],
    ids=["one weight", "a sum of weights", "a sum in the matrix", "nearly nothing"],
)
def test_weights_beyond_single_precision_end_a_training_with_their_values(
    make_recipe: Make, tmp_path: Path, log: list[dict[str, Any]], bad: Bad, message: str
) -> None:
    """The exit code is 4, with the way out. The earlier artifact and its pointer stay."""
    assert run(recipe(make_recipe, tmp_path, Bad([1, 1], "sum"))).exit_code == 0
    before = _files(tmp_path / "out")
    assert run(recipe(make_recipe, tmp_path, bad)).exit_code == 4
    assert last(log)["code"] == "weight_out_of_range"
    assert message in last(log)["error"]
    assert "schema.weight_column" in last(log)["error"]
    assert _files(tmp_path / "out") == before


def test_a_half_life_that_decays_a_weight_to_zero_fails_its_trials(
    make_recipe: Make, tmp_path: Path, log: list[dict[str, Any]]
) -> None:
    """Other half-lives may still work. If none does, the exit code is 4 and the log has the reason."""
    bad = Bad([1e-43, 1e-43], "max", {"time_decay": {"half_life": "12h"}})
    assert run(recipe(make_recipe, tmp_path, bad)).exit_code == 4
    (failed,) = [record for record in log if record["event"] == "trial_failed"]
    assert "a weight after training.time_decay is " in failed["error"]


def test_a_model_that_a_server_would_refuse_is_not_written(
    make_recipe: Make, tmp_path: Path, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact is rehearsed as in a server first. One item without a finite score is enough to fail."""
    loaded = recipe(make_recipe, tmp_path, Bad([1], "sum"))
    assert run(loaded).exit_code == 0
    before = _files(tmp_path / "out")
    train_final = final_model.train_trial

    def damaged(*arguments: Any, **options: Any) -> Any:
        scorer = train_final(*arguments, **options)
        scorer.weights[:] = np.nan
        return scorer

    monkeypatch.setattr(final_model, "train_trial", damaged)
    assert run(loaded).exit_code == 4
    assert last(log)["code"] == "model_not_servable"
    assert "rehearsal: " in last(log)["error"]
    assert _files(tmp_path / "out") == before
