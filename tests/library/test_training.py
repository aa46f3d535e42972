"""`svc.train`: a recipe with overrides, a result that can be loaded, and errors as exceptions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import svc
from svc import errors
from svc.artifact.lock import run_lock
from svc.settings import Settings
from tests.serving.artifacts import SIGNING_KEYS

RECIPE = """
name: shop
source: {type: csv, path: sales.csv}
schema: {user_column: user_id, item_column: item_id}
training: {algorithms: [TopPop, CosineKNN], n_trials: 3, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: models/shop.svc, versioning: append_sha}
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"user_id": random.integers(0, 60, 900), "item_id": random.zipf(1.3, 900) % 40})
    frame.to_csv(tmp_path / "sales.csv", index=False)
    (tmp_path / "shop.yaml").write_text(RECIPE)
    monkeypatch.delenv("SVC_SIGNING_KEYS", raising=False)
    return tmp_path / "shop.yaml"


def test_a_recipe_becomes_a_recommender(recipe: Path, capsys: Any) -> None:
    """The result names artifact, version, winner and score. Nothing is printed without a terminal."""
    result = svc.train(recipe, keys=SIGNING_KEYS)
    assert (result.promoted, result.best_class) == (True, result.header["best_class"])
    assert result.best_score == result.header["best_score"] > 0
    assert result.header["recipe_name"] == "shop"
    assert result.artifact in result._repr_html_()
    best = f"trained {result.best_class}, ndcg@5 {result.best_score:.4g} on held-out rows"
    assert repr(result) == f"<svc.TrainResult: {best}; live: {result.artifact}>"
    model = svc.load(result.artifact, keys=SIGNING_KEYS)
    assert model.model_version == result.model_version
    assert len(svc.load(recipe.parent / "models/shop.svc", keys=SIGNING_KEYS).recommend("7", limit=3)) == 3
    assert capsys.readouterr() == ("", "")


def test_a_refit_takes_the_parameters_of_the_live_artifact(recipe: Path) -> None:
    """There is no search. For a changed recipe, the error names the difference."""
    searched = svc.train(recipe, keys=SIGNING_KEYS)
    refitted = svc.train(recipe, keys=SIGNING_KEYS, refit=True)
    assert refitted.header["best_params"] == searched.header["best_params"]
    assert refitted.header["tuning"]["n_trials"] == 1
    assert refitted.header["tuning"]["reused_from"]["sha8"] == searched.model_version.removeprefix("sha256:")[:8]
    with pytest.raises(errors.RefitRefused, match="seed was not given and is 7"):
        svc.train(recipe, keys=SIGNING_KEYS, refit=True, seed=7)


def test_overrides_replace_values_of_the_recipe(recipe: Path) -> None:
    """Keys of the training block, also retired ones, need no block. Other blocks keep their other keys."""
    first = svc.train(recipe, keys=SIGNING_KEYS, algorithms=["TopPop"], n_trials=1, seed=7, report_diversity=False)
    assert first.header["algorithms"] == ["TopPopRecommender"]
    assert first.header["recipe_hash"] != svc.train(recipe, keys=SIGNING_KEYS, n_trials=2).header["recipe_hash"]
    other = svc.train(recipe, keys=SIGNING_KEYS, algorithms=["TopPop"], output={"path": "models/other.svc"})
    assert Path(other.artifact).name == f"other.{other.model_version[7:15]}.svc"
    assert recipe.read_text() == RECIPE


def test_a_table_without_the_fields_of_the_rules_is_refused(recipe: Path) -> None:
    """The recipe's rules need these fields. The table replaces the recipe's `item_metadata`."""
    table = pd.DataFrame({"item_id": [str(item) for item in range(40)], "year": range(40)})
    table.rename(columns={"item_id": "id"}).to_csv(recipe.parent / "items.csv", index=False)
    source = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "id"}
    metadata = {**source, "filter_fields": [{"name": "year", "kind": "numerical"}]}
    rules = {"serving": {"filter": {"year": {"gte": 30}}}, "item_metadata": metadata}
    result = svc.train(recipe, keys=SIGNING_KEYS, items=table, algorithms=["TopPop"], n_trials=1, **rules)
    assert set(result.recommender.recommend("7", limit=5)["year"]) <= set(range(30, 40))
    with pytest.raises(errors.UsageError, match=r"items: the table does not fit .* serving\.filter\.year"):
        svc.train(recipe, keys=SIGNING_KEYS, items=table[["item_id"]], **rules)


def test_the_time_of_a_table_may_be_two_columns(recipe: Path) -> None:
    """The latest rows are held out, as by one column of times."""
    random = np.random.default_rng(0)
    table = pd.DataFrame({"user_id": random.integers(0, 60, 900), "item_id": random.zipf(1.3, 900) % 40}).astype(str)
    table["ts"] = pd.date_range("2024-01-01", periods=900, freq="77min")
    table["day"], table["clock"] = table["ts"].dt.normalize(), table["ts"].dt.strftime("%H:%M:%S")
    by_one, by_two = (
        svc.train(table, time=time, algorithms=["TopPop"], n_trials=1) for time in ("ts", ["day", "clock"])
    )
    assert by_two.header["data_stats"] == by_one.header["data_stats"]
    assert by_two.best_score == by_one.best_score > 0
    assert by_two.header["recipe"]["schema"]["time_column"] == ["day", "clock"]
    with pytest.raises(errors.UsageError, match="time: data has no column 'hour'"):
        svc.train(table, time=["day", "hour"])


def test_labels_of_a_table_have_the_kind_that_the_recipe_declares(recipe: Path) -> None:
    """The recipe's operator `all` needs a multi-label field, although each cell of the table has one label."""
    table = pd.DataFrame({"item_id": [str(item) for item in range(40)], "tag": ["a", "b"] * 20})
    table.to_csv(recipe.parent / "items.csv", index=False)
    source = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id"}
    metadata = {**source, "filter_fields": [{"name": "tag", "kind": "multi_label"}]}
    rules = {"serving": {"filter": {"tag": {"all": ["b"]}}}, "item_metadata": metadata}
    result = svc.train(recipe, keys=SIGNING_KEYS, items=table, algorithms=["TopPop"], n_trials=1, **rules)
    assert set(result.recommender.recommend("7", limit=5)["tag"]) == {"b"}


def test_a_refused_model_is_written_and_not_promoted(recipe: Path) -> None:
    """A refused first model makes no pointer, but its artifact can be loaded."""
    bold = {"mode": "enforce", "min_relative_change": 9}
    first = svc.train(recipe, keys=SIGNING_KEYS, promotion=bold)
    assert (first.promoted, first.header["promotion"]["decision"]) == (False, "refused")
    assert repr(first).endswith(f"; not live: {first.artifact}>")
    assert not (recipe.parent / "models/shop.svc").exists()
    assert svc.train(recipe, keys=SIGNING_KEYS).promoted
    assert not svc.train(recipe, keys=SIGNING_KEYS, promotion=bold).promoted
    assert svc.load(first.artifact, keys=SIGNING_KEYS).model_version == first.model_version


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"keys": None}, errors.ConfigError, "no signing keys.*svc keygen"),
        ({"n_trial": 3}, errors.RecipeError, "n_trial"),
        ({"cutoff": 0}, errors.RecipeError, "training.cutoff"),
        ({"cutoff": 5000}, errors.CutoffTooLarge, "5000"),
        ({"source": {"path": "none.csv"}}, errors.DataSourceError, "none.csv"),
        ({"cleansing": {"min_rows": 10**6}}, errors.MinDataViolation, "1000000"),
    ],
)
def test_failures_raise_exceptions(
    recipe: Path, options: dict[str, Any], error: type[errors.SvcError], words: str
) -> None:
    """The class names the kind of failure, and nothing is written."""
    with pytest.raises(error, match=words):
        svc.train(recipe, **{"keys": SIGNING_KEYS, **options})
    assert not (recipe.parent / "models").exists() or not list((recipe.parent / "models").glob("*.svc"))


def test_a_missing_recipe_and_a_held_lock_are_errors(recipe: Path) -> None:
    """A missing recipe and a held lock raise exceptions."""
    with pytest.raises(errors.RecipeError, match="no such file"):
        svc.train(recipe.with_name("none.yaml"), keys=SIGNING_KEYS)
    with (
        run_lock(str(recipe.parent / "models/shop.svc"), timeout_s=0, settings=Settings()),
        pytest.raises(errors.LockContestedError),
    ):
        svc.train(recipe, keys=SIGNING_KEYS)
