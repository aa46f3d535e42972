"""A whole training: its events, its artifact, its failures, its interrupts."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc import events
from svc.artifact.keys import SigningKeys, development_keys, parse_signing_keys
from svc.artifact.lock import run_lock
from svc.artifact.store import read_verified
from svc.errors import SignatureMismatch
from svc.model import codec
from svc.model.query import Encoded, Query
from svc.model.rehearsal import rehearse
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training.progress import NullProgress
from svc.training.run import TrainOptions, TrainResult, train
from svc.training.trials import TrialRecord

Make = Callable[..., LoadedRecipe]
ORDER = [
    "training_started", "fetching_data", "data_fetched", "data_cleansed", "splitting_data", "split_done",
    "search_started", "search_done", "training_final_model", "final_model_trained", "artifact_written", "train_done",
]  # fmt: skip


def run(loaded: LoadedRecipe, settings: Settings | None = None, **options: Any) -> TrainResult:
    chosen = TrainOptions(run_id="r1", dev_unsigned=True, **options)
    return train(loaded, chosen, settings or Settings(), NullProgress())


def small_training(**changes: Any) -> dict[str, Any]:
    base = {
        "algorithms": ["TopPop", "CosineKNN"],
        "n_trials": 3,
        "cutoff": 5,
        "split": {"scheme": "time_user", "heldout_ratio": 0.3},
    }
    return {**base, **changes}


def last(log: list[dict[str, Any]]) -> dict[str, Any]:
    return log[-1]


def test_a_run_emits_every_event_in_order_with_its_fields(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """All events of the specification, each with the fields of its declaration."""
    assert run(make_recipe()).exit_code == 0
    names = [record["event"] for record in log]
    assert [name for name in names if name in ORDER] == ORDER
    for record in log:
        assert set(events.EVENTS[record["event"]].fields) <= set(record), record["event"]


def test_the_artifact_says_what_was_trained_and_answers(make_recipe: Make) -> None:
    """Header and payload belong together; the history holds the held-out items too."""
    result = run(make_recipe())
    assert result.artifact is not None
    _, parsed = read_verified(result.artifact, development_keys(), Settings())
    head = parsed.header
    assert head["algorithms"] == ["IALSRecommender", "TopPopRecommender", "CosineKNNRecommender"]
    assert (head["metric"], head["cutoff"], head["recipe_name"], head["run_id"]) == ("ndcg", 5, "small", "r1")
    assert head["tuning"]["completed"] + head["tuning"]["pruned"] == 5
    assert set(head["tuning"]["best_per_algorithm"]) == set(head["algorithms"])
    assert head["data_stats"]["n_interactions"] == 80 * 12
    assert head["data_stats"]["n_heldout_interactions"] == 80 * 3
    assert head["evaluation"]["ndcg"] == head["best_score"]
    assert "features" not in head
    model = codec.decode(parsed.payload)
    model.ready()
    assert (model.n_users, model.n_items) == (80, 40)
    ranking = model.rank([Query(limit=40, user=0)])[0]
    assert len(ranking.items) <= 40 - 12


def test_a_training_signs_as_it_is_told(make_recipe: Make) -> None:
    """With Ed25519 a holder of the public half alone can check the artifact; nothing else of it changes."""
    key = f"k1:{'11' * 32}"
    settings = Settings(signing_keys=key, artifact_signature="ed25519")
    result = train(make_recipe(), TrainOptions(run_id="r1"), settings, NullProgress())
    assert result.artifact is not None
    public = SigningKeys((), (("k1", parse_signing_keys(key).public_of("k1") or b""),))
    _, parsed = read_verified(result.artifact, public, Settings())
    assert (parsed.format_version, parsed.header["format_version"]) == (2, 2)
    assert parsed.header["fingerprint"] == public.public_fingerprints()[0]["fingerprint"]
    with pytest.raises(SignatureMismatch):
        read_verified(result.artifact, parse_signing_keys(f"k1:{'12' * 32}"), Settings())


def test_a_recipe_too_long_for_the_header_leaves_out_where_its_data_came_from(
    make_recipe: Make, make_ratings: Callable[..., Path], tmp_path: Path
) -> None:
    """A recipe may be longer than a header; what describes the model is kept whole."""
    ratings, database = make_ratings("long"), tmp_path / "ratings.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        pd.read_csv(ratings).to_sql("ratings", connection, index=False)
    query = "SELECT * FROM ratings" + " " * 60_000
    source = {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": query}
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{database}"}
    result = run(make_recipe(source=source, training=small_training()), variables=variables)
    assert result.artifact is not None
    _, parsed = read_verified(result.artifact, development_keys(), Settings())
    assert set(parsed.header["recipe"]) == {"name", "schema", "training", "output"}


def test_two_runs_in_fresh_processes_agree(make_recipe: Make, tmp_path: Path) -> None:
    """Other hash seeds, same recipe, data and seed: the same payload, parameters and score, byte for byte."""
    make_recipe()
    script = (
        "import sys, hashlib, json\n"
        "from pathlib import Path\n"
        "from svc.artifact.keys import development_keys\n"
        "from svc.artifact.store import read_verified\n"
        "from svc.recipe.load import load_recipe\n"
        "from svc.settings import Settings\n"
        "from svc.training.progress import NullProgress\n"
        "from svc.training.run import TrainOptions, train\n"
        "loaded = load_recipe(Path(sys.argv[1]), {}, settings=Settings())\n"
        "made = train(loaded, TrainOptions(run_id='r', dev_unsigned=True), Settings(), NullProgress())\n"
        "_, parsed = read_verified(made.artifact, development_keys(), Settings())\n"
        "head = parsed.header\n"
        "digest = hashlib.sha256(parsed.payload).hexdigest()\n"
        "print(json.dumps([head['best_class'], head['best_params'], head['best_score'], digest]))\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "small.yaml")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()[-1]
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]


def test_too_little_data_ends_with_4_and_all_counts(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """`train_error` is the last record and carries counts and thresholds."""
    result = run(make_recipe(cleansing={"min_users": 1000}))
    error = last(log)
    assert (result.exit_code, error["event"], error["code"]) == (4, "train_error", "min_data_violation")
    assert (error["n_rows"], error["n_users"], error["n_items"], error["min_users"]) == (960, 80, 40, 1000)
    assert {"error", "name", "run_id", "exit_code", "trained_at", "kid"} <= set(error)


def test_the_named_ratio_cures_a_zero_score(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The message names the smallest heldout_ratio that works, and a run with it works."""
    split = {"scheme": "time_user", "heldout_ratio": 0.01}
    assert run(make_recipe(training=small_training(split=split))).exit_code == 4
    error = last(log)
    assert error["code"] == "zero_score"
    ratio = float(next(word for word in error["error"].replace(";", " ").split() if word.startswith("0.08")))
    split["heldout_ratio"] = ratio
    assert run(make_recipe(training=small_training(split=split))).exit_code == 0


def test_the_header_says_how_sure_the_scores_are(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Intervals, users scored of how many, the lead over the next algorithm, other cutoffs, and test users."""
    split = {"scheme": "leave_one_out", "test_user_ratio": 0.5, "test": 0.25}
    training = small_training(algorithms=["CosineKNN", "TopPop"], split=split)
    result = run(make_recipe(training=training))
    assert result.artifact is not None
    head = read_verified(result.artifact, development_keys(), Settings())[1].header
    found = head["evaluation"]
    assert (found["n_scored_users"], found["n_users"], found["confidence"]) == (30, 80, 0.95)
    for name, best in head["tuning"]["best_per_algorithm"].items():
        low, high = best["interval"]
        assert low <= best["score"] <= high, name
    assert found["interval"] == head["tuning"]["best_per_algorithm"][head["best_class"]]["interval"]
    names = list(head["tuning"]["best_per_algorithm"])
    scores = [best["score"] for best in head["tuning"]["best_per_algorithm"].values()]
    assert found["lead"]["over"] == names[1]
    assert found["lead"]["change"] == pytest.approx(scores[0] - scores[1], abs=1e-9)
    assert found["lead"]["more_than_chance"] == (found["lead"]["interval"][0] > 0)
    assert list(found["cutoffs"]) == ["5", "10", "20"]
    assert found["cutoffs"]["5"]["ndcg"] == pytest.approx(head["best_score"], abs=1e-9)
    assert found["cutoffs"]["20"]["recall"] >= found["cutoffs"]["5"]["recall"]
    assert found["test"]["n_scored_users"] == 10
    assert found["test"]["interval"][0] <= found["test"]["ndcg"] <= found["test"]["interval"][1]
    assert [record["event"] for record in log].count("winner_measured") == 1


def test_scores_of_users_that_another_process_kept_are_measured_again(make_recipe: Make) -> None:
    """A resumed search has no scores of single users; the best are trained once more and agree."""
    loaded = make_recipe(training=small_training(storage_path="s.db"))
    heads = []
    for _ in range(2):
        result = run(loaded)
        assert result.artifact is not None
        heads.append(read_verified(result.artifact, development_keys(), Settings())[1].header)
    assert heads[0]["evaluation"] == heads[1]["evaluation"]


def test_ids_that_nobody_can_ask_for_are_warned_of(
    make_recipe: Make, make_ratings: Callable[..., Path], log: list[dict[str, Any]]
) -> None:
    """Longer ones than requests may hold, and whole numbers that a tool made floating point."""
    ratings = make_ratings("odd.csv")
    text = ratings.read_text(encoding="utf-8").replace("u1,", "u" * 257 + ",").replace(",i3,", ",3.0,")
    ratings.write_text(text, encoding="utf-8")
    assert run(make_recipe(ratings=ratings, training=small_training())).exit_code == 0
    warned = [(e["side"], e["reason"], e["count"], e["example"]) for e in log if e["event"] == "ids_hardly_meant"]
    assert warned == [("user", "too_long", 1, "u" * 40), ("item", "floating_point", 1, "3.0")]


def test_a_cutoff_above_the_number_of_items_is_refused(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Before any training, with the number of items; exactly all items is fine."""
    assert run(make_recipe(training=small_training(cutoff=41))).exit_code == 4
    assert last(log)["code"] == "cutoff_too_large"
    assert "40 items" in last(log)["error"]
    assert run(make_recipe(training=small_training(cutoff=40))).exit_code == 0


def test_an_unexpected_error_is_internal(
    make_recipe: Make, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect ends like a failed training, and says where it was."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("svc.training.prepare.split", broken)
    assert run(make_recipe()).exit_code == 4
    assert (last(log)["event"], last(log)["code"]) == ("train_error", "internal_error")
    assert last(log)["error"] == "ZeroDivisionError: surprise"


def test_missing_keys_are_noticed_before_data_is_read(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Exit 8, and no fetching."""
    options = TrainOptions(run_id="r1")
    assert train(make_recipe(), options, Settings(), NullProgress()).exit_code == 8
    assert "fetching_data" not in [record["event"] for record in log]


@pytest.mark.parametrize(
    ("training", "code"),
    [({"storage_path": "postgres://db/x"}, "storage_path_unusable"), ({"storage_path": "no/such/x.db"}, None)],
)
def test_unusable_storage_is_noticed_before_data_is_read(
    training: dict[str, Any], code: str | None, make_recipe: Make, log: list[dict[str, Any]]
) -> None:
    """Exit 8 with its code, and no fetching."""
    assert run(make_recipe(training=small_training(**training))).exit_code == 8
    assert last(log)["code"] == (code or "storage_path_unusable")
    assert "fetching_data" not in [record["event"] for record in log]


def test_bprfm_without_its_extra_is_noticed_before_data_is_read(
    make_recipe: Make, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(make_recipe(training=small_training(algorithms=["bprfm"]))).exit_code == 8
    assert "svc-recommender[bprfm]" in last(log)["error"]
    assert "fetching_data" not in [record["event"] for record in log]


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [({}, 0), ({"fail_on_busy": True}, 6), ({"lock_timeout": 0.05}, 6), ({"no_lock": True}, 0)],
)
def test_a_held_lock(options: dict[str, Any], exit_code: int, make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Skipped with 0, refused with 6, waited for in vain with 6, or not looked at."""
    loaded = make_recipe(training=small_training())
    output = str(loaded.base_dir / "out/small.svc")
    with run_lock(output, timeout_s=0, settings=Settings()):
        result = run(loaded, **options)
    assert result.exit_code == exit_code
    skipped = any(record["event"] == "recipe_lock_contended_skipping" for record in log)
    assert skipped == (not options)
    assert (result.artifact is not None) == ("no_lock" in options)


def test_an_interrupt_says_what_was_kept(
    make_recipe: Make, log: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is the signal's; no lock, no temporary file, no artifact stays."""

    class Signalled(KeyboardInterrupt):
        exit_code = 143

    def interrupt(*_: object, **__: object) -> None:
        raise Signalled

    monkeypatch.setattr("svc.training.run._Run._final_model", interrupt)
    loaded = make_recipe(training=small_training())
    assert run(loaded).exit_code == 143
    assert last(log)["event"] == "train_interrupted"
    assert "nothing was written" in last(log)["kept"]
    assert list((loaded.base_dir / "out").iterdir()) == []


def test_a_file_that_no_server_here_would_take_is_warned_of(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The artifact is written all the same."""
    result = run(make_recipe(training=small_training()), Settings(max_payload_bytes=1000))
    warning = next(record for record in log if record["event"] == "artifact_payload_exceeds_serve_cap")
    assert result.exit_code == 0
    assert warning["setting"] == "SVC_MAX_PAYLOAD_BYTES"


def test_search_only_ends_without_an_artifact_and_a_run_takes_it_up(
    make_recipe: Make, log: list[dict[str, Any]]
) -> None:
    """The second process finds the budget used and trains nothing but the winner."""
    loaded = make_recipe(training=small_training(storage_path="s.db"))
    assert run(loaded, search_only=True) == TrainResult(0)
    assert last(log)["event"] == "search_only_done"
    log.clear()
    assert run(loaded).artifact is not None
    assert not [record for record in log if record["event"] == "trial_done"]


def test_a_study_of_other_data_is_not_continued(
    make_recipe: Make, make_ratings: Callable[..., Path], log: list[dict[str, Any]]
) -> None:
    """Its scores could not be compared; the way out is another run id."""
    assert run(make_recipe(training=small_training(storage_path="s.db"))).exit_code == 0
    other = make_ratings("other.csv", seed=9)
    assert run(make_recipe(ratings=other, training=small_training(storage_path="s.db"))).exit_code == 4
    assert "--run-id" in last(log)["error"]


def test_features_are_searched_encoded_and_measured(make_recipe: Make, items_csv: Path) -> None:
    """The header names dimension and columns; cold items are measured beside popularity."""
    features = {
        "item": {
            "source": {"type": "csv", "path": str(items_csv)},
            "id_column": "item_id",
            "columns": [{"name": "group", "kind": "categorical"}, {"name": "size", "kind": "numerical"}],
        }
    }
    training = small_training(algorithms=["IALS"], n_trials=3)
    result = run(make_recipe(training=training, features=features))
    assert result.artifact is not None
    _, parsed = read_verified(result.artifact, development_keys(), Settings())
    head = parsed.header
    assert head["features"] == {
        "version": 1,
        "active": True,
        "item": {"dimension": 4, "columns": ["group", "size"]},
    }
    assert "lambda_item_feature" in head["best_params"]
    cold = head["evaluation"]["cold_start"]["item"]
    assert (cold["n_draws"], cold["n_held"]) == (10, 40)
    assert {"model", "popularity", "random"} <= set(cold)
    model = codec.decode(parsed.payload)
    model.check_features(head)
    model.ready()
    rehearse(model)


def item_features(table: Path) -> dict[str, Any]:
    columns = [{"name": "group", "kind": "categorical"}, {"name": "size", "kind": "numerical"}]
    return {"item": {"source": {"type": "csv", "path": str(table)}, "id_column": "item_id", "columns": columns}}


def test_features_answer_cold_starts_whoever_wins(
    make_recipe: Make, items_csv: Path, monkeypatch: pytest.MonkeyPatch, log: list[dict[str, Any]], tmp_path: Path
) -> None:
    """The winner answers for known users as it does alone; the best feature-aware trial for features and seeds."""
    monkeypatch.setattr("svc.training.trials.by_score", last_first)
    plain = run(make_recipe(training=small_training(algorithms=["TopPop", "CosineKNN"], n_trials=3)))
    alone, _ = loaded(plain)
    training = small_training(algorithms=["TopPop", "IALS", "CosineKNN"], n_trials=5)
    report = tmp_path / "report.html" if importlib.util.find_spec("matplotlib") else None
    result = run(make_recipe(training=training, features=item_features(items_csv)), report=report)
    model, head = loaded(result)
    assert head["best_class"] == "CosineKNNRecommender"
    assert head["features"]["active"] is True
    assert [(part["class"], part["answers"]) for part in head["parts"]] == [
        ("CosineKNNRecommender", "known users"),
        ("IALSRecommender", "features and seeds"),
    ]
    assert all(part["bytes"] > 0 for part in head["parts"])
    assert "cold_start" in head["evaluation"]
    assert next(record for record in log if record["event"] == "cold_start_part_trained")["score"] is not None
    model.check_features(head)
    rehearse(model)
    assert isinstance(model.scorer_of(Query(limit=5, user=3)), type(alone.scorer))
    described, _ = model.features.item.encode({"group": "odd", "size": 7})
    seeds = np.array([1, 4], dtype=np.int32)
    queries = [Query(limit=5, user=3), Query(limit=5, seed_features=(Encoded.of(described),)), Query(5, seeds=seeds)]
    known, cold, related = model.rank(queries)
    assert (known.items == alone.rank(queries[:1])[0].items).all()
    assert known.scores.tobytes() == alone.rank(queries[:1])[0].scores.tobytes()
    for query, ranking in zip(queries[1:], (cold, related), strict=True):
        (expected,) = model.cold.rank([query], model.history)
        assert ranking.scores.tobytes() == expected.scores.tobytes()
    if report is not None:
        assert "features and seeds" in report.read_text(encoding="utf-8")


def test_features_without_a_complete_trial_of_theirs_are_said_to_be_inactive(
    make_recipe: Make, items_csv: Path, monkeypatch: pytest.MonkeyPatch, log: list[dict[str, Any]]
) -> None:
    """A warning, not silence, and a header that agrees with the payload."""
    monkeypatch.setattr("svc.training.final.FEATURE_AWARE", "Nobody")
    training = small_training(algorithms=["TopPop", "IALS"], n_trials=2)
    monkeypatch.setattr("svc.training.trials.by_score", lambda trials: sorted(trials, key=lambda one: one.number))
    model, head = loaded(run(make_recipe(training=training, features=item_features(items_csv))))
    assert head["best_class"] == "TopPopRecommender"
    assert head["features"]["active"] is False
    assert "parts" not in head
    assert "features_inactive" in [record["event"] for record in log]
    model.check_features(head)


def last_first(trials: list[TrialRecord]) -> list[TrialRecord]:
    """As if CosineKNN had won."""
    return sorted(trials, key=lambda trial: (trial.algorithm != "CosineKNNRecommender", trial.number))


def loaded(result: TrainResult) -> tuple[Any, dict[str, Any]]:
    """The model of a training, ready, and its header."""
    assert result.artifact is not None
    _, parsed = read_verified(result.artifact, development_keys(), Settings())
    model = codec.decode(parsed.payload)
    model.ready()
    return model, dict(parsed.header)


def test_the_report_is_one_page_without_network(make_recipe: Make, tmp_path: Path) -> None:
    """Everything is inline: plots, style; no script, no address to load from."""
    pytest.importorskip("matplotlib")
    target = tmp_path / "report.html"
    assert run(make_recipe(), report=target).exit_code == 0
    page = target.read_text(encoding="utf-8")
    assert page.count("<svg") == 3
    assert "TopPopRecommender" in page
    assert "<script" not in page
    assert 'src="http' not in page
    assert 'href="http' not in page


def test_a_report_that_cannot_be_written_is_noticed_first(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """Not after an hour of training."""
    pytest.importorskip("matplotlib")
    assert run(make_recipe(), report=Path("/nowhere/report.html")).exit_code == 8
    assert "fetching_data" not in [record["event"] for record in log]
