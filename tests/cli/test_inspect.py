"""`svc inspect`: its output, and its safety on hostile headers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import svc
from svc.artifact import layout
from svc.artifact.keys import development_keys
from svc.cli import main
from svc.errors import ConfigError
from tests.cli.conftest import last_error
from tests.serving.artifacts import SIGNING_KEYS, header, popularity_model, write_artifact


@pytest.fixture
def inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return a function from flags and fields of a header to the lines that `svc inspect` prints."""
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)

    def run(*flags: str, **fields: Any) -> list[str]:
        write_artifact(tmp_path / "a.svc", popularity_model(), head=header(**fields))
        assert main.run(["inspect", str(tmp_path / "a.svc"), *flags]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_inspect_needs_no_confirmation_for_unsigned_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`svc inspect` decodes no payload. Trainings and servers, which decode, do need the confirmation."""
    monkeypatch.setenv("SVC_ENV", "development")
    kid, key = development_keys().active
    with (tmp_path / "a.svc").open("wb") as out:
        layout.write(out, kid=kid, key=key, header={}, payload=[b"x"])
    assert main.run(["inspect", str(tmp_path / "a.svc"), "--dev-allow-unsigned"]) == 0
    assert "kid: dev" in capsys.readouterr().out
    assert main.run(["serve", "--recipes", str(tmp_path), "--dev-allow-unsigned"]) == 8


def test_inspect_without_keys_is_a_configuration_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without a key no artifact can be verified."""
    (tmp_path / "a.svc").touch()
    assert main.run(["inspect", str(tmp_path / "a.svc")]) == 8
    assert "SVC_SIGNING_KEYS" in str(last_error(capsys)["error"])


def test_keys_of_the_current_folder_are_used_and_others_suggested(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key file that came with an artifact proves nothing, so the error only suggests it."""
    shop, elsewhere = tmp_path / "shop", tmp_path / "elsewhere"
    elsewhere.mkdir()
    artifact = shop / "artifacts" / "a.svc"
    artifact.parent.mkdir(parents=True)
    write_artifact(artifact, popularity_model())
    os.close(os.open(shop / "keys.env", os.O_WRONLY | os.O_CREAT, 0o600))
    (shop / "keys.env").write_text(f"SVC_SIGNING_KEYS={SIGNING_KEYS}\n", encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    assert main.run(["inspect", str(artifact)]) == 8
    assert f"set SVC_ENV_FILE={shop / 'keys.env'}" in str(last_error(capsys)["error"])
    with pytest.raises(ConfigError, match="set SVC_ENV_FILE="):
        svc.load(artifact)
    monkeypatch.chdir(artifact.parent)
    assert main.run(["inspect", "a.svc"]) == 0
    assert svc.load("a.svc").header["best_class"]


def test_inspect_escapes_a_hostile_header(inspected: Callable[..., list[str]]) -> None:
    """Text in a header can neither control the terminal nor add lines to the output."""
    for flags, expected in (
        (["--all"], r"best_class: \x1b]0;owned\x07\u202eNNK"),
        ([], r"algorithm: \x1b]0;owned\x07\u202eNNK"),
    ):
        lines = inspected(*flags, best_class="\x1b]0;owned\x07\u202eNNK", metric="ndcg\nkid: trusted")
        assert all(line.isprintable() for line in lines)
        assert [line for line in lines if line.startswith("kid: ")] == ["kid: k1"]
        assert any(line.startswith(expected) for line in lines)


def test_inspect_all_lists_the_parts_of_a_model(inspected: Callable[..., list[str]]) -> None:
    """Each field of a part is one line with the part's index."""
    parts = [
        {"class": "CosineKNNRecommender", "answers": "known users", "bytes": 2_000},
        {"class": "IALSRecommender", "answers": "features and seeds", "bytes": 3_000},
    ]
    lines = inspected("--all", parts=parts)
    for place, part in enumerate(parts):
        assert [line for line in lines if line.startswith(f"parts.{place}.")] == [
            f"parts.{place}.{name}: {value}" for name, value in part.items()
        ]


def test_inspect_prints_the_provenance_of_a_verified_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest is computed from the file, not read from its header.

    An artifact that fails verification has no statement.
    """
    path = tmp_path / "a.svc"
    head = header(recipe_hash="0123456789ab", model_version="sha256:0", artifact="another")
    sha256 = write_artifact(path, popularity_model(), head=head)
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    assert main.run(["inspect", str(path), "--provenance"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["subject"] == [{"name": "a.svc", "digest": {"sha256": sha256}}]
    assert found["predicate"]["buildDefinition"]["externalParameters"] == {"recipe_hash": "0123456789ab"}
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert main.run(["inspect", str(path), "--provenance"]) == 5
    assert capsys.readouterr().out == ""


def test_inspect_prints_a_summary_of_thirteen_lines(inspected: Callable[..., list[str]]) -> None:
    """The summary has score, interval, popularity, data and keys.

    Headers with fields of other types are printed too.
    """
    lines = inspected(
        metric="ndcg",
        cutoff=20,
        best_score=0.1142129,
        rank_ms=0.1234,
        evaluation={"interval": [0.10833, 0.11973]},
        tuning={"completed": 12, "best_per_algorithm": {"TopPopRecommender": {"score": 0.0847}}},
        features={
            "user": {"columns": ["country"]},
            "item": {"columns": ["genre", "title"], "texts": [{"column": "title", "words": 1200}, "x"]},
        },
        data_stats={"n_rows": 87024, "n_users": 4000, "n_items": 1000},
    )
    assert len(lines) == 13
    assert "score: ndcg@20 0.11421 (0.10833 to 0.11973)" in lines
    assert "features: user (country), item (genre, title; 1,200 words of title)" in lines
    assert lines[7].endswith(", the best of 12 trials")
    assert {"popularity: 0.0847", "rank_ms: 0.1234", "data: 87,024 rows, 4,000 users, 1,000 items"} <= set(lines)
    assert len(inspected(evaluation=[1], tuning={"best_per_algorithm": 3}, data_stats="x", features=[])) == 13
    refitted = inspected(tuning={"completed": 1, "reused_from": {"sha8": "0a1b2c3d"}})
    assert refitted[7].endswith(", with the parameters of 0a1b2c3d")


def test_inspect_prints_the_gain_and_features_of_the_ranker(inspected: Callable[..., list[str]]) -> None:
    """Values of unexpected types in the header cause no error."""
    gain = {"value": 0.0548, "low": 0.048, "high": 0.0616}
    for ranker, line in (
        (
            {"ships": True, "gain": gain, "groups": {"scores": 0.4, "popularity": 1.2}},
            "used, gain 0.0548 (0.048 to 0.0616), by popularity 1.2, scores 0.4",
        ),
        ({"ships": False, "gain": gain}, "not used, gain 0.0548 (0.048 to 0.0616)"),
        ({"ships": 3, "gain": [1], "groups": {"scores": "x"}}, "not used, gain - (- to -), by scores x"),
    ):
        assert f"ranker: {line}" in inspected(ranker=ranker)


def test_inspect_prints_the_recency_of_the_model(inspected: Callable[..., list[str]]) -> None:
    """A value of an unexpected type causes no error."""
    for value in (0.5, "x"):
        assert f"recency: {value}" in inspected(recency=value)
