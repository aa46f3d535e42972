"""Publication of an artifact: serial, expiry, digests of the inputs, and the rehearsal."""

from __future__ import annotations

import hashlib
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from svc.artifact import layout, replay, version_log
from svc.artifact.keys import SigningKeys, parse_signing_keys
from svc.artifact.lock import run_lock
from svc.artifact.store import open_store, read_verified
from svc.errors import RecipeError
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.training import final_model
from svc.training.outcome import TrainingOutcome
from svc.training.publishing.publication import MAX_INPUTS, Inputs, fresh_fields, needs_serial, next_serial
from svc.training.run import TrainOptions, train
from tests.training.runs import OUTPUT, SCHEMA, Log, Make, features_of, last, run, training


def test_an_artifact_above_the_size_limit_of_servers_causes_a_warning(make_recipe: Make, log: Log) -> None:
    """The artifact is written all the same."""
    result = run(make_recipe(training=training()), Settings(max_payload_bytes=1000))
    warning = next(record for record in log if record["event"] == "artifact_payload_exceeds_serve_cap")
    assert result.exit_code == 0
    assert warning["setting"] == "SVC_MAX_PAYLOAD_BYTES"


def _weighted(path: Path, weights: list[float]) -> Path:
    """Return thirty users with six items each. The first rows have these weights, all others 1."""
    rng = np.random.default_rng(6)
    rows = [(user, item) for user in range(30) for item in rng.choice(12, size=6, replace=False)]
    rows.insert(1, rows[0])  # the first pair comes twice
    lines = ["user_id,item_id,ts,w"]
    for place, (user, item) in enumerate(rows):
        weight = weights[place] if place < len(weights) else 1
        lines.append(f"u{user},i{item},{1_600_000_000 + place * 86_400},{weight}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def recipe(
    make_recipe: Make, tmp_path: Path, weights: list[float], dedup: str = "sum", scale: str = "search", **more: Any
) -> LoadedRecipe:
    return make_recipe(
        ratings=_weighted(tmp_path / "weights.csv", weights),
        schema={**SCHEMA, "weight_column": "w"},
        cleansing={"dedup": dedup, "weight_scale": scale},
        training=training(**more),
        output=OUTPUT,
    )


@pytest.mark.parametrize("dedup", ["sum", "none"])
def test_weights_beyond_single_precision_end_a_training_with_their_values(
    make_recipe: Make, tmp_path: Path, log: Log, dedup: str
) -> None:
    """The exit code is 4, and the message says what to change. The earlier artifact and its pointer stay."""
    assert run(recipe(make_recipe, tmp_path, [1, 1])).exit_code == 0
    before = _files(tmp_path / "out")
    assert run(recipe(make_recipe, tmp_path, [3e38, 3e38], dedup)).exit_code == 4
    assert last(log)["code"] == "weight_out_of_range"
    assert "schema.weight_column" in last(log)["error"]
    assert _files(tmp_path / "out") == before


def test_a_half_life_that_decays_a_weight_to_zero_fails_its_trials(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """Trials with other half-lives continue. If all trials fail, the exit code is 4, and the log has the reason."""
    bad = recipe(make_recipe, tmp_path, [1e-43, 1e-43], "max", "raw", time_decay={"half_life": "12h"})
    assert run(bad).exit_code == 4
    (failed,) = [record for record in log if record["event"] == "trial_failed"]
    assert "a weight after training.time_decay is " in failed["error"]


def test_a_model_that_a_server_would_refuse_is_not_written(
    make_recipe: Make, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The artifact is rehearsed as in a server. One item without a finite score is enough to fail."""
    loaded = recipe(make_recipe, tmp_path, [1])
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


KEY, OTHER = f"k1:{'11' * 32}", f"k2:{'22' * 32}"
KEYS = parse_signing_keys(f"{KEY},{OTHER}")
QUICK = training("TopPop")


def signed(loaded: LoadedRecipe, keys: SigningKeys, **header: Any) -> None:
    """Write an artifact with this header to the output."""
    kid, key = keys.active

    def write(out: Any) -> layout.Written:
        return layout.write(out, kid=kid, key=key, header=header, payload=[b"x"])

    open_store(loaded.output_uri, Settings()).publish(write, "always_overwrite")


def test_a_held_lock_of_the_versions_fails_a_finished_training(
    make_recipe: Make, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is an error, not the skip that a held lock of the training would give."""
    monkeypatch.setattr("svc.artifact.versions._LOCK_TIMEOUT_S", 0.0)
    loaded = make_recipe(training=training(), output={**OUTPUT, "keep": 3})
    log_path = loaded.base_dir / "out/small.svc.log.jsonl"
    with run_lock(str(log_path), timeout_s=0, settings=Settings()):
        assert run(loaded) == TrainingOutcome(5)
    assert last(log)["code"] == "artifact_write_error"
    assert f"the trained model is not written: another run or command holds the lock {log_path}" in last(log)["error"]
    assert _files(log_path.parent) == {}


def test_artifacts_have_a_serial_only_if_a_setting_needs_one(make_recipe: Make) -> None:
    """Without such a setting, a header has no field for serial and expiry."""
    loaded, settings = make_recipe(), Settings(signing_keys=KEY)
    assert fresh_fields(loaded, settings, KEYS, "2026-11-22T00:00:00+00:00", Inputs(loaded.base_dir)) == {}
    assert not needs_serial(loaded, settings)


@pytest.mark.parametrize(
    ("settings", "output", "fields"),
    [
        ({"artifact_signature": "ed25519"}, {}, {"serial", "inputs"}),
        ({"state_dir": "state"}, {}, {"serial", "inputs"}),
        ({}, {"expires_after": "30d"}, {"serial", "inputs", "expires_at"}),
    ],
)
def test_ed25519_a_state_directory_and_an_expiry_each_add_a_serial(
    make_recipe: Make, settings: dict[str, Any], output: dict[str, Any], fields: set[str]
) -> None:
    """An expiry also adds its time."""
    loaded = make_recipe(output={"path": "out/small.svc", **output})
    chosen = Settings(signing_keys=KEY, **settings)
    found = fresh_fields(loaded, chosen, KEYS, "2026-11-22T01:02:03+00:00", Inputs(loaded.base_dir))
    assert set(found) == fields
    assert replay.serial_of(found) is not None
    if "expires_at" in fields:
        assert replay.expires_at(found) == datetime.fromisoformat("2026-12-22T01:02:03+00:00")


def test_a_serial_is_higher_even_if_the_clock_was_set_back(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The serial follows the clock, or else the highest earlier serial."""
    loaded, settings = make_recipe(), Settings()
    assert abs(next_serial(loaded, settings, KEYS) - time.time() * 1000) < 60_000
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert next_serial(loaded, settings, KEYS) == 1
    signed(loaded, KEYS, serial=41)
    assert next_serial(loaded, settings, KEYS) == 42
    signed(loaded, KEYS)
    assert next_serial(loaded, settings, KEYS) == 1


def test_serials_signed_by_another_key_do_not_count(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaked key could otherwise use up the serials of its successor. Unverified artifacts do not count either."""
    monkeypatch.setattr(time, "time_ns", lambda: 7_000_000)
    loaded, settings = make_recipe(), Settings()
    signed(loaded, parse_signing_keys(OTHER), serial=replay.MAX_SERIAL)
    assert next_serial(loaded, settings, KEYS) == 7
    signed(loaded, parse_signing_keys(f"k1:{'33' * 32}"), serial=replay.MAX_SERIAL)
    assert next_serial(loaded, settings, KEYS) == 7
    signed(loaded, KEYS, serial=replay.MAX_SERIAL)
    assert next_serial(loaded, settings, KEYS) == replay.MAX_SERIAL


def test_serials_of_rolled_back_versions_count(make_recipe: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have seen these serials and refuse lower ones."""
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    loaded, settings = make_recipe(), Settings()
    signed(loaded, KEYS, serial=3)
    log = b""
    for keys, from_serial, signature in (
        (KEYS, 9, "ed25519"),
        (parse_signing_keys(f"k1:{'00' * 32}"), 99, "hmac"),
        (parse_signing_keys(f"k2:{'22' * 32}"), 99, "hmac"),
    ):
        at = f"2026-11-22T00:00:00.{from_serial:06}+00:00"
        move = version_log.Line(
            at, "rollback", "abababab", None, "abababab", False, sha256="ab" * 32, from_serial=from_serial
        )
        log = version_log.append_line(log, version_log.VersionLog(), move, keys, signature)
    Path(f"{loaded.output_uri}.log.jsonl").write_bytes(log)
    assert next_serial(loaded, settings, KEYS) == 10


def test_a_training_signs_serial_and_expiry(make_recipe: Make) -> None:
    """A second training has a higher serial. An expiry does not change the recipe hash."""
    loaded = make_recipe(training=QUICK, output={"path": "out/small.svc", "expires_after": "36h"})
    serials = []
    for _ in range(2):
        result = train(loaded, TrainOptions(run_id="r1"), Settings(signing_keys=KEY), Progress())
        assert result.artifact is not None
        header = read_verified(result.artifact, KEYS, Settings())[1].header
        serials.append(header["serial"])
        lasts = datetime.fromisoformat(header["expires_at"]) - datetime.fromisoformat(header["trained_at"])
        assert abs(lasts.total_seconds() - 36 * 3600) < 2
    assert serials[0] < serials[1]
    assert loaded.recipe_hash == make_recipe(training=QUICK).recipe_hash


def test_a_training_signs_the_digests_of_its_inputs(make_recipe: Make, items_csv: Path, tmp_path: Path) -> None:
    """Each file has its path relative to the recipe's folder, and the digest of `sha256sum`."""
    loaded = make_recipe(
        training=QUICK | {"algorithms": ["IALS", "TopPop"], "n_trials": 2}, features=features_of(Path("items.csv"))
    )
    settings = Settings(signing_keys=KEY, artifact_signature="ed25519")
    result = train(loaded, TrainOptions(run_id="r1"), settings, Progress())
    assert result.artifact is not None
    header = read_verified(result.artifact, KEYS, Settings())[1].header
    assert header["inputs"] == [
        {"name": name, "sha256": hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}
        for name in ("ratings.csv", "items.csv")
    ]


def test_many_files_are_combined_into_one_digest(tmp_path: Path) -> None:
    """The digest is over the output of `sha256sum`, because a header has at most 64 KiB."""
    inputs = Inputs(tmp_path)
    for number in range(MAX_INPUTS):
        inputs.record(str(tmp_path / f"{number}.csv"), f"{number:064x}")
    assert len(inputs.list_files()) == MAX_INPUTS
    assert inputs.list_files()[7] == {"name": "7.csv", "sha256": f"{7:064x}"}
    inputs.record("s3://bucket/more.csv", "f" * 64)
    lines = (
        "".join(f"{number:064x}  {number}.csv\n" for number in range(MAX_INPUTS))
        + f"{'f' * 64}  s3://bucket/more.csv\n"
    )
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert inputs.list_files() == [{"name": "65 files, as sha256sum lists them", "sha256": digest}]


@pytest.mark.parametrize(
    ("text", "seconds"), [("1min", 60), ("36h", 129_600), ("30d", 2_592_000), ("2w", 1_209_600), ("1y", 31_557_600)]
)
def test_a_duration_is_a_whole_number_and_a_unit(make_recipe: Make, text: str, seconds: int) -> None:
    """Units range from minutes to years."""
    assert make_recipe(output={"path": "a.svc", "expires_after": text}).recipe.output.expires_after_s == seconds


@pytest.mark.parametrize("text", ["", "0d", "-1d", "1.5d", "30", "d", "1 d", "1month", "1d\n", "99999999d", 30, True])
def test_an_invalid_duration_names_its_field(make_recipe: Make, text: Any) -> None:
    """Fractions, zero, blanks and unknown units are invalid."""
    with pytest.raises(RecipeError, match="expires_after"):
        make_recipe(output={"path": "a.svc", "expires_after": text})
