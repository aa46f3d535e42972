"""`svc train --refit`: reused parameters, refusals, and reasons to search instead."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from svc.artifact.keys import development_keys
from svc.artifact.lock import run_lock
from svc.artifact.versions import Versions
from svc.errors import RefitRefused
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training import refit
from svc.training.judging.incumbent import Incumbent
from tests.recipe.loading import load
from tests.training.runs import (
    BY_SCORE,
    ENFORCE,
    OUTPUT,
    Log,
    Make,
    features_of,
    header,
    live,
    payload,
    records_of,
    run,
    training,
    write_tastes,
)

EVERYTHING = {
    "algorithms": ["IALS", "CosineKNN", "Blend"],
    "n_trials": 3,
    "cutoff": 5,
    "split": {"scheme": "time_user", "heldout_ratio": 0.3},
    "time_decay": {"half_life": ["5d", "none"]},
    "recency": 0.5,
}
WHAT_IS_TAKEN = ("best_class", "best_params", "recency")


def parameters(head: Any) -> list[Any]:
    """Return all results of a search that are in the header."""
    parts = [{**part, "bytes": None, "score": None} for part in head.get("parts", ())]
    return [head.get(name) for name in WHAT_IS_TAKEN] + [parts]


def test_a_refit_reuses_every_parameter_on_other_data(
    make_recipe: Make, tmp_path: Path, log: Log, items_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class, parameters, epochs, half-life, recency, weights and features are reused. Two refits are equal."""
    monkeypatch.setattr(BY_SCORE, lambda trials: sorted(trials, key=lambda trial: not trial.parts))
    blocks = {"output": OUTPUT, "training": EVERYTHING, "features": features_of(items_csv)}
    table = tmp_path / "tastes.csv"
    searched = run(make_recipe(ratings=write_tastes(table, last=slice(0, 10)), **blocks))
    assert searched.artifact is not None
    log.clear()
    loaded = make_recipe(ratings=write_tastes(table), **blocks)
    first, second = run(loaded, refit=True), run(loaded, refit=True)
    before, after = header(searched.artifact), header(first.artifact)
    assert parameters(after) == parameters(before)
    assert (before["best_class"], before["recency"]) == ("BlendRecommender", 0.5)
    assert after["data_stats"]["n_rows"] > before["data_stats"]["n_rows"]
    counts = {"n_trials": 1, "completed": 1, "pruned": 0, "failed": 0, "n_orphaned": 0, "workers": 1}
    assert counts.items() <= after["tuning"].items()
    (best,) = after["tuning"]["best_per_algorithm"].values()
    assert best["score"] == after["best_score"] == after["evaluation"]["ndcg"]
    assert best["seconds"] == after["tuning"]["seconds"] > 0
    assert "recency" not in after["evaluation"]
    origin = {"sha8": searched.artifact.split(".")[-2], "searched_at": before["trained_at"]}
    assert after["tuning"]["reused_from"] == header(second.artifact)["tuning"]["reused_from"] == origin
    assert payload(first.artifact) == payload(second.artifact) != payload(searched.artifact)
    assert [record["reason"] for record in records_of(log, "refit_started")] == [None, None]
    assert not records_of(log, "search_started")
    versions = Versions(loaded.output_uri, development_keys(), Settings()).history()
    assert [version.reused_from for version in versions if version.sha8 != origin["sha8"]] == [origin] * (
        len(versions) - 1
    )
    assert [version.reused_from for version in versions if version.sha8 == origin["sha8"]] == [None]


@pytest.fixture
def searched(make_recipe: Make, tmp_path: Path, log: Log) -> LoadedRecipe:
    """Return a recipe with a live model."""
    write_tastes(tmp_path / "tastes.csv")
    loaded = make_recipe(ratings=tmp_path / "tastes.csv", output=OUTPUT, training=training())
    assert run(loaded).exit_code == 0
    log.clear()
    return loaded


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"training": training(seed=7)}, "training.seed was not given and is 7"),
    ({"training": training(cutoff=6)}, "training.cutoff was 5 and is 6"),
    ({"training": training("TopPop")}, "training.algorithms was ['CosineKNNRecommender'] and is"),
    ({"cleansing": {"dedup": "max"}}, "cleansing.dedup was not given and is 'max'"),
    ({"training": training(recency="off")}, "training.recency was not given and is 'off'"),
]


def test_a_refit_of_a_changed_recipe_is_refused_with_the_differences(
    searched: LoadedRecipe, make_recipe: Make, log: Log
) -> None:
    before = live(searched)
    for blocks, difference in CHANGED:
        other = make_recipe(
            ratings=searched.base_dir / "tastes.csv", **{"output": OUTPUT, "training": training(), **blocks}
        )
        assert run(other, refit=True).exit_code == 2
        assert log[-1]["code"] == "refit_refused"
        assert difference in log[-1]["error"]
        assert live(other) == before


MAY_DIFFER = {
    "training": {
        "n_trials": [1, 9],
        "parallelism": [None, 1, 2],
        "storage_path": [None, "trials.db"],
        "timeout_seconds": [None, 60],
        "per_trial_timeout_seconds": [None, 30.5],
        "max_search_age": [None, "7d"],
    },
    "cleansing": {"max_change": [None, {"n_rows": 0.5}]},
    "promotion": {"mode": ["off", "report"], "confidence": [0.9, 0.95]},
}
"""Fields that may change between a search and a refit, as listed in the guide of schedules."""
ALL_KEYS: dict[str, Any] = {
    "schema": {"user_column": "u", "item_column": "i", "time_column": "t", "time_unit": "s", "event_column": "e"},
    "cleansing": {
        "where": {"all": [{"r": {"gte": 4, "lte": 9.5}}, {"shop": {"any": ["a", "b"]}}]},
        "hide": {"r": {"lt": 4}},
        "event_weights": {"view": 1, "no": "exclude"},
        "dedup": "sum",
        "min_rows": 2,
    },
    "features": {
        "item": {
            "source": {"type": "csv", "path": "items.csv"},
            "id_column": "i",
            "columns": [{"name": "group", "kind": "categorical", "min_frequency": 2}],
        }
    },
    "training": {
        "algorithms": ["IALS", "CosineKNN", "Blend"],
        "per_algorithm_trials": {"IALS": 3},
        "search_space": {"IALS": {"n_components": [100, 200], "alpha0": [0.1, 1]}, "CosineKNN": {"top_k": [50, 100]}},
        "split": {"scheme": "time_global", "heldout_ratio": 0.2, "test": 0.1},
        "time_decay": {"half_life": ["5d", "none"]},
        "recency": 0.5,
        "seed": 3,
    },
}


def edited(kept: Sequence[str], random: Random) -> dict[str, Any]:
    """Return a recipe with some blocks of ALL_KEYS and new random values for MAY_DIFFER."""
    blocks = {name: dict(ALL_KEYS[name]) for name in ("schema", "training", *kept)}
    for name, keys in MAY_DIFFER.items():
        drawn = {key: random.choice(values) for key, values in keys.items()}
        blocks[name] = {**blocks.get(name, {}), **{key: value for key, value in drawn.items() if value is not None}}
    return blocks


@pytest.mark.parametrize("seed", range(6))
def test_edits_outside_the_search_do_not_prevent_a_refit(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edits set every key that may differ to a random value. Another seed of the search is refused."""
    random = Random(seed)
    kept = [name for name in ("cleansing", "features") if seed % 3 or random.random() < 0.5]
    if "cleansing" not in kept:
        monkeypatch.setitem(ALL_KEYS, "schema", {**ALL_KEYS["schema"], "event_column": None})
    searched, now = (load(tmp_path, edited(kept, random)) for _ in range(2))
    head = json.loads(json.dumps({"recipe": searched.unexpanded, "recipe_hash": searched.recipe_hash}))
    head |= {"trained_at": datetime.now(UTC).isoformat(), "evaluation": {"chosen_among": {"stretch": 1.5}}}
    incumbent = Incumbent(head, "0" * 64, memoryview(b""))
    monkeypatch.setattr(refit, "read_incumbent", lambda *_: incumbent)
    found = refit.find_reusable(now, development_keys(), Settings())
    assert not isinstance(found, str)
    assert found[1].stretch == 1.5
    blocks = edited(kept, random)
    blocks["training"]["seed"] = 4
    with pytest.raises(RefitRefused, match=r"training\.seed was 3 and is 4"):
        refit.find_reusable(load(tmp_path, blocks), development_keys(), Settings())


def test_refits_inherit_the_interval_correction_of_their_search(make_recipe: Make, tmp_path: Path) -> None:
    """A refit of a refit has the same correction in its header and its intervals.

    Each refit has a higher serial, so that servers that remember the highest one accept it.
    """
    table = write_tastes(tmp_path / "tastes.csv")
    loaded = make_recipe(ratings=table, output={**OUTPUT, "expires_after": "30d"}, training=training(n_trials=4))
    heads = [header(run(loaded, refit=refit).artifact) for refit in (False, True, True)]
    serials, found = [head["serial"] for head in heads], [head["evaluation"] for head in heads]
    assert serials == sorted(set(serials))
    stretches = [evaluation["chosen_among"]["stretch"] for evaluation in found]
    assert stretches[0] > 1
    assert stretches[1:] == pytest.approx([stretches[0]] * 2)
    assert found[1]["chosen_among"]["trials"] == 1
    assert found[1]["interval"] == found[2]["interval"] == pytest.approx(found[0]["interval"], abs=0.02)


def test_a_chain_of_refits_is_as_old_as_its_search(
    searched: LoadedRecipe, make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second refit names the version of the search. If that version is too old, the search is repeated."""
    origin = live(searched)
    bounded = make_recipe(
        ratings=searched.base_dir / "tastes.csv", output=OUTPUT, training=training(max_search_age="7d")
    )
    origins = [header(run(bounded, refit=True).artifact)["tuning"]["reused_from"] for _ in range(2)]
    assert origins[0] == origins[1]
    assert origins[0]["sha8"] == origin

    class EightDaysLater(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(days=8)

    log.clear()
    monkeypatch.setattr(refit, "datetime", EightDaysLater)
    assert "reused_from" not in header(run(bounded, refit=True).artifact)["tuning"]
    (started,) = records_of(log, "refit_started")
    assert started["reused_from"] is None
    assert started["reason"].endswith("is older than training.max_search_age, 7d")
    assert records_of(log, "search_started")


def test_the_final_model_starts_from_the_live_vectors_unless_cold_is_set(
    make_recipe: Make, tmp_path: Path, log: Log
) -> None:
    """The same live model gives the same bytes, another one different bytes.

    The measured model starts from random vectors.
    """
    table = tmp_path / "tastes.csv"
    space = {"IALS": {"n_components": [4, 4], "alpha0": [0.1, 0.1]}}
    blocks = {"output": OUTPUT, "training": training("IALS", search_space=space)}
    loaded = make_recipe(ratings=write_tastes(table, last=slice(0, 10)), **blocks)
    assert run(loaded).exit_code == 0
    searched = live(loaded)
    assert searched is not None
    write_tastes(table)
    versions, artifacts = Versions(loaded.output_uri, development_keys(), Settings()), []
    for cold in (False, False, True):
        if live(loaded) != searched:
            versions.rollback(searched, hold=False)
        artifacts.append(run(loaded, refit=True, cold=cold).artifact)
    warm, again, cold_one = artifacts
    follower = run(loaded, refit=True).artifact
    assert [header(one)["tuning"].get("vectors_from") for one in (warm, cold_one)] == [searched, None]
    assert [record["vectors_from"] for record in records_of(log, "refit_started")][:3] == [searched, searched, None]
    assert payload(warm) == payload(again) != payload(cold_one)
    assert payload(follower) not in (payload(warm), payload(cold_one))
    assert header(warm)["best_score"] == header(cold_one)["best_score"]
    assert header(warm)["best_params"] == header(cold_one)["best_params"]


def test_a_refit_without_a_live_model_searches_and_logs_an_event(make_recipe: Make, log: Log) -> None:
    assert run(make_recipe(training=training()), refit=True).exit_code == 0
    assert records_of(log, "refit_started")[0]["reason"] == "there is no live model that can be verified"
    assert records_of(log, "search_started")


@pytest.mark.parametrize(
    ("options", "changes", "code"),
    [
        ({"refit": True, "search_only": True}, {}, "usage_error"),
        ({"cold": True}, {}, "usage_error"),
        ({"refit": True}, {"storage_path": "trials.db"}, "refit_refused"),
    ],
    ids=["search only", "cold without refit", "shared search"],
)
def test_a_refit_of_a_shared_search_and_flags_that_exclude_each_other_are_refused(
    options: dict[str, Any], changes: dict[str, Any], code: str, make_recipe: Make, log: Log
) -> None:
    assert run(make_recipe(training=training(**changes)), **options).exit_code == 2
    assert log[-1]["code"] == code


def test_gate_hold_lock_and_data_bounds_apply_to_a_refit(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """The gate, a hold, the lock and the bounds of data changes work as in a training with a search."""
    table, blocks = tmp_path / "tastes.csv", {"output": OUTPUT, "training": training(), "promotion": ENFORCE}
    searched = run(make_recipe(ratings=write_tastes(table), **blocks))
    loaded = make_recipe(ratings=write_tastes(table), **blocks)
    run(loaded, refit=True)
    decided = records_of(log, "promotion_decided")[-1]
    assert decided["decision"] == "promoted"
    against = decided["against"]
    assert [(one["name"], one["change"] == 0.0) for one in against] == [("incumbent", True), ("TopPop", False)]

    before = live(loaded)
    bold = make_recipe(ratings=table, **{**blocks, "promotion": {**ENFORCE, "min_relative_change": 0.1}})
    assert (run(bold, refit=True).exit_code, live(bold)) == (9, before)
    assert records_of(log, "promotion_decided")[-1]["decision"] == "refused"

    with run_lock(loaded.output_uri, timeout_s=0, settings=Settings()):
        assert run(loaded, refit=True, fail_on_busy=True).exit_code == 6

    assert searched.artifact is not None
    sha8 = searched.artifact.split(".")[-2]
    Versions(loaded.output_uri, development_keys(), Settings()).rollback(sha8, hold=True)
    assert run(loaded, refit=True).exit_code == 0
    assert records_of(log, "promotion_held")
    assert live(loaded) == sha8

    write_tastes(table, n_users=30)
    bounded = make_recipe(ratings=table, **blocks, cleansing={"max_change": {"n_rows": 0.2}})
    assert run(bounded, refit=True).exit_code == 4
    assert log[-1]["code"] == "data_changed_too_much"
    run(make_recipe(ratings=table, **blocks), refit=True)
    assert records_of(log, "promotion_decided")[-1]["decision"] == "refused"
    assert live(loaded) == sha8


@pytest.mark.usefixtures("without_drawing")
def test_a_refit_reuses_the_cold_start_model(make_recipe: Make, tmp_path: Path, items_csv: Path) -> None:
    """The winner has no features, so iALS with features answers cold starts.

    The refit has the same parameters of iALS. Only a report measures cold starts and new items, also after a refit.
    """
    trials = {"algorithms": ["IALS", "CosineKNN"], "per_algorithm_trials": {"IALS": 1, "CosineKNN": 2}}
    space = {"IALS": {"n_components": [4, 4], "alpha0": [3, 3]}}
    blocks = {"training": training(**trials, search_space=space), "features": features_of(items_csv), "output": OUTPUT}
    blocks["serving"] = {"new_items": {"source": {"type": "csv", "path": "new.csv"}}}
    loaded = make_recipe(ratings=write_tastes(tmp_path / "tastes.csv"), **blocks)
    searched = header(run(loaded).artifact)
    refitted = header(run(loaded, refit=True, report=tmp_path / "page.html").artifact)
    parts = [[{**part, "bytes": None} for part in head["parts"]] for head in (searched, refitted)]
    assert [part["answers"] for part in parts[0]] == ["known users", "features and seeds"]
    assert parts[1][1] == parts[0][1]
    assert refitted["features"]["active"]
    assert {"cold_start", "new_items"}.isdisjoint(searched["evaluation"])
    assert refitted["evaluation"]["cold_start"]["item"]["n_draws"] == 10
    assert {"recall", "known_change", "share", "popularity_recall"} <= set(refitted["evaluation"]["new_items"])
