"""A whole training: its events, its artifact, its failures and its interrupts."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from svc import events
from svc.artifact.keys import SigningKeys, fingerprints, parse_signing_keys
from svc.artifact.lock import run_lock
from svc.artifact.store import read_verified
from svc.errors import SignatureMismatch
from svc.model.load_model import rehearse
from svc.model.ranking.query import Query
from svc.progress import Progress, State
from svc.settings import Settings
from svc.training import final_model
from svc.training.judging import measurements
from svc.training.outcome import TrainingOutcome
from svc.training.run import TrainOptions, train
from tests.training.runs import (
    Log,
    Make,
    features_of,
    header,
    last,
    opened,
    payload,
    records_of,
    run,
    small_training,
    training,
)

ORDER = [
    "training_started", "fetching_data", "data_fetched", "data_cleansed", "splitting_data", "split_done",
    "search_started", "search_done", "training_final_model", "final_model_trained", "artifact_written", "train_done",
]  # fmt: skip


class Whole(NamedTuple):
    """A training, its log, and for each model that was measured whether it was freed before the final training."""

    result: TrainingOutcome
    log: Log
    freed: list[bool]


@pytest.fixture(scope="module")
def whole(make_shared_recipe: Make) -> Whole:
    measured: list[weakref.ref[Any]] = []
    freed: list[bool] = []
    measure, train_last = measurements.measure_winner, final_model.train_final

    def watched(*arguments: Any) -> Any:
        found = measure(*arguments)
        measured.append(weakref.ref(found.winner.model))
        return found

    def last_of_all(*arguments: Any, **options: Any) -> Any:
        gc.collect()
        freed.extend(model() is None for model in measured)
        return train_last(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, structlog.testing.capture_logs() as records:
        patch.setattr(measurements, "measure_winner", watched)
        patch.setattr(final_model, "train_final", last_of_all)
        return Whole(run(make_shared_recipe()), records, freed)


def test_a_run_emits_every_event_in_order_with_its_fields(whole: Whole) -> None:
    """The events are all those of the specification, with the declared fields."""
    assert whole.result.exit_code == 0
    names = [record["event"] for record in whole.log]
    assert [name for name in names if name in ORDER] == ORDER
    (written,) = records_of(whole.log, "artifact_written")
    assert (written["versioning"], written["kid"]) == ("always_overwrite", "dev")
    assert Path(written["artifact"]).stat().st_size == written["artifact_bytes"] > written["payload_bytes"] > 0
    assert "too_slow" not in records_of(whole.log, "search_done")[0]
    for record in whole.log:
        assert set(events.EVENTS[record["event"]].fields) <= set(record), record["event"]


def test_the_artifact_describes_its_training_and_answers_requests(whole: Whole) -> None:
    """Header and payload agree. The histories include the held-out items."""
    model, head = opened(whole.result)
    assert head["algorithms"] == ["IALSRecommender", "TopPopRecommender", "CosineKNNRecommender"]
    assert (head["metric"], head["cutoff"], head["recipe_name"], head["run_id"]) == ("ndcg", 5, "small", "r1")
    assert head["tuning"]["completed"] + head["tuning"]["pruned"] == 5
    assert set(head["tuning"]["best_per_algorithm"]) == set(head["algorithms"])
    assert head["data_stats"]["n_interactions"] == 80 * 12
    assert head["data_stats"]["n_heldout_interactions"] == 80 * 3
    assert head["evaluation"]["ndcg"] == head["best_score"]
    assert "features" not in head
    assert "dropped_by_where" not in {**head["data_stats"], **records_of(whole.log, "data_cleansed")[0]}
    assert (model.n_users, model.n_items) == (80, 40)
    ranking = model.rank([Query(limit=40, user=0)])[0]
    assert len(ranking.items) == 40 - 12


def test_each_trial_has_its_ranking_time(whole: Whole) -> None:
    """The log has the ranking times of all trials, and the header those of complete trials.

    The header also has the times of the best trial of each algorithm.
    """
    tuning = header(whole.result.artifact)["tuning"]
    done = records_of(whole.log, "trial_done")
    assert len(done) == tuning["completed"] + tuning["pruned"]
    assert all(record["rank_ms"] > 0 for record in done)
    assert len(tuning["trials"]["rank_ms"]) == tuning["completed"]
    assert all(best["rank_ms"] in tuning["trials"]["rank_ms"] for best in tuning["best_per_algorithm"].values())


def test_the_measured_model_is_freed_before_the_final_training(whole: Whole) -> None:
    """Two models at once would double the memory of a training on large data."""
    assert whole.freed == [True]


def test_a_ranking_time_above_the_limit_for_all_trials_ends_the_training_with_advice(
    make_recipe: Make, log: Log
) -> None:
    """The training writes no artifact, and the error names `training.max_rank_ms`."""
    result = run(make_recipe(training=small_training(max_rank_ms=1e-6)))
    assert (result.exit_code, result.artifact) == (4, None)
    assert last(log)["code"] == "training_error"
    assert "training.max_rank_ms" in last(log)["error"]


class Phases(list[str]):
    """A display that keeps the name of each phase."""

    def show(self, state: State) -> None:
        if state.phase not in self:
            self.append(state.phase)

    def close(self) -> None: ...


def test_a_training_and_a_refit_tell_their_phases(make_recipe: Make) -> None:
    ends = ["measuring the winner", "training the final model", "writing the artifact"]
    settings = Settings(signing_keys=f"k1:{'11' * 32}")
    for refit, phases in ((False, ["splitting", "searching", *ends]), (True, ["splitting", *ends])):
        seen = Phases()
        train(make_recipe(), TrainOptions(run_id="r1", refit=refit), settings, Progress(seen))
        assert seen == ["reading data", "cleansing", *phases]


def test_a_training_signs_by_the_configured_algorithm(make_recipe: Make) -> None:
    """With Ed25519, the public key is enough to verify the artifact. The rest does not change."""
    key = f"k1:{'11' * 32}"
    settings = Settings(signing_keys=key, artifact_signature="ed25519")
    result = train(make_recipe(), TrainOptions(run_id="r1"), settings, Progress())
    assert result.artifact is not None
    public = SigningKeys({}, {"k1": parse_signing_keys(key).public_of("k1") or b""})
    _, parsed = read_verified(result.artifact, public, Settings())
    assert (parsed.format_version, parsed.header["format_version"]) == (2, 2)
    assert parsed.header["fingerprint"] == fingerprints(public.public)[0]["fingerprint"]
    with pytest.raises(SignatureMismatch):
        read_verified(result.artifact, parse_signing_keys(f"k1:{'12' * 32}"), Settings())


def test_hidden_rows_of_unknown_items_do_not_change_the_payload(make_recipe: Make, make_ratings: Any) -> None:
    """An item is unknown if no user chose it and it has no features. A user with hidden rows alone is remembered."""
    late = 1_700_000_000
    ratings, hide = make_ratings("all.csv"), {"hide": {"ts": {"gte": late}}}

    def trained(cleansing: dict[str, Any]) -> bytes:
        return payload(run(make_recipe(ratings=ratings, cleansing=cleansing, training=training())).artifact)

    plain, rows = trained({}), ratings.read_text()
    ratings.write_text(f"{rows}u0,nobody's,{late}\n")
    assert trained(hide) == plain
    assert b"stranger" not in plain
    ratings.write_text(f"{rows}stranger,i0,{late}\n")
    assert b"stranger" in trained(hide)
    ratings.write_text(f"{rows}u0,i1,{late}\n")
    assert trained(hide) != plain


def test_an_unexpected_error_is_internal(make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect ends the training like a failure, with its stack frames."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("svc.training.judging.task.split", broken)
    assert run(make_recipe()).exit_code == 4
    assert (last(log)["event"], last(log)["code"]) == ("train_error", "internal_error")
    assert last(log)["error"] == "ZeroDivisionError: surprise"
    assert __file__ in last(log)["traceback"][-1], "the frame that raised it"
    assert len(last(log)["traceback"]) == 4


def test_missing_keys_are_noticed_before_data_is_read(make_recipe: Make, log: Log) -> None:
    """The exit code is 8, and nothing is fetched."""
    options = TrainOptions(run_id="r1")
    assert train(make_recipe(), options, Settings(), Progress()).exit_code == 8
    assert not records_of(log, "fetching_data")


@pytest.mark.parametrize("path", ["postgres://db/x", "no/such/x.db"])
def test_unusable_storage_is_noticed_before_data_is_read(path: str, make_recipe: Make, log: Log) -> None:
    """The exit code is 8 with the error's code, and nothing is fetched."""
    assert run(make_recipe(training=training(storage_path=path))).exit_code == 8
    assert last(log)["code"] == "storage_path_unusable"
    assert not records_of(log, "fetching_data")


def test_bprfm_without_its_extra_is_noticed_before_data_is_read(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the extra."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(make_recipe(training=small_training(algorithms=["bprfm"]))).exit_code == 8
    assert "'.[bprfm]'" in last(log)["error"]
    assert not records_of(log, "fetching_data")


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [({}, 0), ({"fail_on_busy": True}, 6), ({"lock_timeout": 0.05}, 6), ({"no_lock": True}, 0)],
)
def test_a_held_lock_skips_refuses_or_waits_by_the_flags(
    options: dict[str, Any], exit_code: int, make_recipe: Make, log: Log
) -> None:
    """The exit code is 0 for a skip, and 6 for a refusal or a timeout. --no-lock ignores the lock."""
    loaded = make_recipe(training=small_training())
    output = str(loaded.base_dir / "out/small.svc")
    with run_lock(output, timeout_s=0, settings=Settings()):
        result = run(loaded, **options)
    assert result.exit_code == exit_code
    skipped = any(record["event"] == "recipe_lock_contended_skipping" for record in log)
    assert skipped == (not options)
    assert (result.artifact is not None) == ("no_lock" in options)
    assert any(record["event"] == "fetching_data" for record in log) == ("no_lock" in options)


def test_an_interrupt_removes_lock_and_temporary_files(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of the signal. No artifact remains."""

    class Signalled(KeyboardInterrupt):
        exit_code = 143

    def interrupt(*_: object, **__: object) -> None:
        raise Signalled

    monkeypatch.setattr(final_model, "train_final", interrupt)
    loaded = make_recipe(training=small_training())
    assert run(loaded).exit_code == 143
    assert last(log)["event"] == "train_interrupted"
    assert "nothing was written" in last(log)["kept"]
    assert list((loaded.base_dir / "out").iterdir()) == []


def test_search_only_writes_no_artifact_and_a_later_run_reuses_its_trials(make_recipe: Make, log: Log) -> None:
    """The later process finds the budget used, and trains only the winner."""
    loaded = make_recipe(training=small_training(storage_path="s.db"))
    assert run(loaded, search_only=True) == TrainingOutcome(0)
    done = last(log)
    assert (done["event"], done["run_id"], done["exit_code"]) == ("search_only_done", "r1", 0)
    assert done["n_completed"] == len([record for record in log if record["event"] == "trial_done"])
    log.clear()
    assert run(loaded).artifact is not None
    assert not [record for record in log if record["event"] == "trial_done"]


@pytest.mark.usefixtures("without_drawing")
def test_features_are_searched_encoded_and_measured(make_recipe: Make, items_csv: Path, tmp_path: Path) -> None:
    """The header has dimensions, columns and the number of words. Only the payload has the words themselves."""
    columns = {"name": "group", "kind": "text", "max_words": 2}, {"name": "size", "kind": "numerical"}
    result = run(
        make_recipe(training=training("IALS"), features=features_of(items_csv, *columns)), report=tmp_path / "page.html"
    )
    model, head = opened(result)
    texts = [{"column": "group", "words": 2, "max_words": 2}]
    item = {"dimension": 4, "columns": ["group", "size"], "texts": texts}
    assert head["features"] == {"version": 1, "active": True, "item": item}
    assert "lambda_item_feature" in head["best_params"]
    cold = head["evaluation"]["cold_start"]["item"]
    assert (cold["n_draws"], cold["n_held"]) == (10, 40)
    assert {"model", "popularity", "random"} <= set(cold)
    rehearse(model)
    assert len(model.features.item.encoders[0].vocabulary.all()) == 2


def test_an_error_after_the_artifact_names_it(
    make_recipe: Make, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails because it cannot write its report. The error names the artifact, because the model is live."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("svc.training.report.page.replace_file", full)
    loaded = make_recipe(training=training(), promotion={"mode": "report"})
    target = tmp_path / "report.html"
    written = str(loaded.base_dir / "out/small.svc")
    assert run(loaded, report=target) == TrainingOutcome(5, written)
    in_place = f"the new artifact {written} is in place"
    told = re.escape(f"the report {target} cannot be written: No space left on device (")
    assert re.fullmatch(told + f"[0-9,]+ bytes are free in .+[)]; {re.escape(in_place)}", last(log)["error"])


def test_a_report_that_cannot_be_written_is_noticed_first(make_recipe: Make, log: Log) -> None:
    """The check comes before the training, which may take an hour."""
    assert run(make_recipe(), report=Path("/nowhere/report.html")).exit_code == 8
    assert "cannot be written" in last(log)["error"]
    assert not records_of(log, "fetching_data")
