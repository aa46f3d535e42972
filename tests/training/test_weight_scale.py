"""Trainings on weights that are counts: the scale of a search and of a recipe, of histories, requests and refits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc.cli import main
from svc.errors import RecipeError
from svc.model.ranking.query import Interaction
from svc.model.weight_scale import scale_of, scale_weights
from svc.recipe.algorithms import BLEND
from svc.recipe.load import LoadedRecipe
from tests import planned
from tests.training.runs import BY_SCORE, SCHEMA, Log, Make, opened, payload, records_of, run, task_of, training
from tests.training.search.test_blend_search import blend_wins

SCALES = ("none", "log", "rank", "mean")
DAY_S = 86_400


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    """Write plays with a long tail, of listeners of three kinds of artists."""
    rng = np.random.default_rng(5)
    rows = [
        (
            f"u{user}",
            f"i{3 * artist + user % 3}",
            1_600_000_000 + step * DAY_S + user,
            float(np.ceil(rng.lognormal(2, 2))),
        )
        for user in range(90)
        for step, artist in enumerate(rng.choice(20, size=12, replace=False).tolist())
    ]
    path = tmp_path / "plays.csv"
    pd.DataFrame(rows, columns=["user_id", "item_id", "ts", "plays"]).to_csv(path, index=False)
    return path


def recipe(make_recipe: Make, plays: Path, *algorithms: str, scale: str | None = None, **changes: Any) -> LoadedRecipe:
    return make_recipe(
        ratings=plays,
        schema={**SCHEMA, "weight_column": "plays"},
        cleansing={} if scale is None else {"weight_scale": scale},
        training=training(algorithms=list(algorithms or ["CosineKNN"]), **{"recency": 0, **changes}),
    )


def scaled_by_hand(plays: Path, model: Any, scale: str, user: str) -> list[float]:
    """Return the plays of a user on the scale, in the order of the model's columns."""
    table = pd.read_csv(plays)
    own = table[table["user_id"] == user]
    own = own.iloc[np.argsort(model.item_ids.indices(own["item_id"].tolist()))]
    weights = own["plays"].to_numpy(np.float32)
    return scale_weights(
        weights, scale_of(scale, table["plays"].to_numpy(np.float32)), np.array([0, len(own)])
    ).tolist()


def test_each_trial_of_a_search_has_a_scale(
    make_recipe: Make, plays: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default the search chooses. The header and `svc inspect` have the scale of each part of a blend."""
    monkeypatch.setenv("SVC_ENV", "development")
    monkeypatch.setattr(BY_SCORE, blend_wins)
    algorithms = ("IALS", "CosineKNN", "DenseSLIM", "TopPop", "Blend")
    result = run(recipe(make_recipe, plays, *algorithms, n_trials=20))
    model, head = opened(result)
    best = head["tuning"]["best_per_algorithm"]
    assert {trial["params"]["weight_scale"] for name, trial in best.items() if name != BLEND} <= set(SCALES)
    scales = [part["params"]["weight_scale"] for part in head["parts"]]
    assert model.history.weight_scale[0] == scales[0]
    capsys.readouterr()
    assert main.run(["inspect", str(result.artifact), "--dev-allow-unsigned"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "weight_scale" in line)
    assert all(scale in line for scale in scales)


def test_the_first_trials_of_a_family_try_all_scales(make_recipe: Make, plays: Path) -> None:
    """The first guess is combined with each scale. Popularity has no other parameters, so it has four trials."""
    _, head = opened(run(recipe(make_recipe, plays, "TopPop", n_trials=20)))
    assert head["tuning"]["completed"] == len(SCALES)


@pytest.mark.parametrize("scale", SCALES)
def test_histories_and_requests_have_the_scale_of_the_recipe(make_recipe: Make, plays: Path, scale: str) -> None:
    """A request with the plays of a training user has that user's profile."""
    model, head = opened(run(recipe(make_recipe, plays, scale=scale)))
    assert head["best_params"]["weight_scale"] == scale
    row = model.user_ids.index("u7")
    values = model.history.values(row)
    expected = scaled_by_hand(plays, model, scale, "u7")
    np.testing.assert_allclose(np.ones(12) if values is None else values, expected, rtol=1e-6)
    table = pd.read_csv(plays)
    own = table[table["user_id"] == "u7"]
    history = [Interaction(item, count) for item, count in zip(own["item_id"], own["plays"], strict=True)]
    query = planned.recommend(model, user_id=None, user_features=None, limit=5, history=history).query
    weights = np.ones(12) if query.seed_weights is None else query.seed_weights
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    alone = model.rank([planned.known_user(model, row, limit=5)])[0]
    assert model.rank([query])[0].items.tolist() == alone.items.tolist()


def test_raw_weights_train_as_before(make_recipe: Make, plays: Path) -> None:
    """Weights are those of the table, and neither header nor payload names a scale."""
    result = run(recipe(make_recipe, plays, "IALS", scale="raw"))
    model, head = opened(result)
    assert "weight_scale" not in head["best_params"]
    assert model.history.weight_scale is None
    assert b"weight_scale" not in payload(result.artifact)
    table = pd.read_csv(plays)
    assert sorted(model.history.values(model.user_ids.index("u3")).tolist()) == sorted(
        table[table["user_id"] == "u3"]["plays"].tolist()
    )


def test_decay_multiplies_scaled_weights(make_recipe: Make, plays: Path) -> None:
    """The latest day of the table has the full weight on the scale, and the day before half of it."""
    decay = {"half_life": "1d"}
    model, _ = opened(run(recipe(make_recipe, plays, scale="rank", time_decay=decay)))
    table = pd.read_csv(plays)
    own = table[table["user_id"] == "u5"]
    own = own.iloc[np.argsort(model.item_ids.indices(own["item_id"].tolist()))]
    half_lives = (table["ts"].max() - own["ts"].to_numpy()) / DAY_S
    expected = np.array(scaled_by_hand(plays, model, "rank", "u5")) * np.exp2(-half_lives)
    np.testing.assert_allclose(model.history.values(model.user_ids.index("u5")), expected, rtol=0.02)


def test_a_weighted_metric_reads_raw_weights(make_recipe: Make, plays: Path) -> None:
    """Held-out weights are those of the table, whatever the scale of the models."""
    raw, log = (
        task_of(recipe(make_recipe, plays, scale=scale, weighted_metric=True)).holdout for scale in ("raw", "log")
    )
    assert log.evaluators.full.heldout.data.tolist() == raw.evaluators.full.heldout.data.tolist()
    assert raw.evaluators.full.heldout.data.max() > 20


def test_a_refit_keeps_the_scale(make_recipe: Make, plays: Path, log: Log) -> None:
    """A blend is trained again with its scale. Another scale in the recipe needs a search."""
    before = opened(run(recipe(make_recipe, plays, "IALS", "CosineKNN", "Blend", n_trials=8)))
    after = opened(run(recipe(make_recipe, plays, "IALS", "CosineKNN", "Blend", n_trials=8), refit=True))
    assert "reused_from" in after[1]["tuning"]
    assert after[1]["best_params"] == before[1]["best_params"]
    assert after[0].history.weight_scale == before[0].history.weight_scale
    assert not records_of(log, "train_error")
    run(recipe(make_recipe, plays, "IALS", "CosineKNN", "Blend", n_trials=8, scale="raw"), refit=True)
    (refused,) = records_of(log, "train_error")
    assert refused["differences"] == ["cleansing.weight_scale was not given and is 'raw'"]


def test_a_scale_needs_a_weight_column(make_recipe: Make, plays: Path) -> None:
    """Weights of events stay as written, and without weights there is nothing to scale."""
    events = {
        "schema": {**SCHEMA, "event_column": "plays"},
        "cleansing": {"event_weights": {"1": 2}, "weight_scale": "log"},
    }
    with pytest.raises(RecipeError, match="event_weights stay as written"):
        make_recipe(ratings=plays, **events)
    with pytest.raises(RecipeError, match=r"needs schema\.weight_column"):
        make_recipe(ratings=plays, schema=SCHEMA, cleansing={"weight_scale": "search"})


def test_raw_weights_with_a_heavy_tail_cause_one_warning(make_recipe: Make, plays: Path, log: Log) -> None:
    """The text has the figure and the key. Scaled weights need no warning."""
    run(recipe(make_recipe, plays, scale="raw"))
    (warning,) = (record for record in records_of(log, "recipe_warning") if record["code"] == "weights_heavy_tailed")
    table = pd.read_csv(plays)["plays"]
    assert f"{table.quantile(0.99) / table.median():.3g} times the median" in warning["message"]
    assert "cleansing.weight_scale: search" in warning["message"]
    log.clear()
    run(recipe(make_recipe, plays, scale="log"))
    assert not [record for record in records_of(log, "recipe_warning") if record["code"] == "weights_heavy_tailed"]
