"""`svc history`, `svc promote` and `svc rollback`, around real trainings."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svc.cli import main

KEY = "a:" + "11" * 32


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Books over a small table, in versions."""
    for name in ("SVC_ENV", "SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_VERIFY_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    monkeypatch.setenv("COLUMNS", "200")
    rows = [f"u{user},i{item}" for user in range(30) for item in range(20) if (user + item) % 3]
    (tmp_path / "books.csv").write_text("user,item\n" + "\n".join(rows) + "\n", encoding="utf-8")
    path = tmp_path / "books.yaml"
    path.write_text(
        """
name: books
source: {type: csv, path: books.csv}
schema: {user_column: user, item_column: item}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
output: {path: out/books.svc, versioning: append_sha, keep: 4}
""",
        encoding="utf-8",
    )
    return path


def history(recipe: Path, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--json"]) == 0
    return list(json.loads(capsys.readouterr().out)["versions"])


def train(recipe: Path, run_id: str) -> int:
    return main.run(["train", str(recipe), "--quiet", "--run-id", run_id])


def test_back_with_a_hold_and_forward_again(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next three trainings leave the pointer alone and say so; `promote` makes one of them live."""
    for run in range(3):
        assert train(recipe, f"r{run}") == 0
    found = history(recipe, capsys)
    assert [version["live"] for version in found] == [True, False, False]
    assert found[0].keys() == {"sha8", "trained_at", "best_class", "best_score", "decision", "live", "held"}
    assert main.run(["rollback", str(recipe), "--hold"]) == 0
    assert f"{found[1]['sha8']} is live (before: {found[0]['sha8']}); held" in capsys.readouterr().out
    for run in range(3):
        assert train(recipe, f"h{run}") == 0
        records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert (records[-1]["event"], records[-1]["promoted"]) == ("train_done", False)
        assert "promotion_held" in {record["event"] for record in records}
    held = history(recipe, capsys)
    assert [version["sha8"] for version in held if version["held"]] == [found[1]["sha8"]]
    assert main.run(["promote", str(recipe), held[0]["sha8"]]) == 0
    assert (recipe.parent / "out/books.svc").read_text() == f"books.{held[0]['sha8']}.svc\n"
    assert main.run(["history", str(recipe), "--verify"]) == 0
    assert main.run(["history", str(recipe)]) == 0
    assert held[0]["sha8"] in capsys.readouterr().out


def test_a_changed_log_is_told_and_fails(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 5, and the line."""
    train(recipe, "r1")
    log = recipe.parent / "out/books.svc.log.jsonl"
    log.write_text(log.read_text().replace("TopPop", "Cosine"), encoding="utf-8")
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--verify"]) == 5
    assert "line 1: it was changed" in capsys.readouterr().out


def test_what_cannot_be_done_says_why(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing to go back to, no such version: 5. No keys: 8. A recipe without versions: 2."""
    train(recipe, "r1")
    pointer = (recipe.parent / "out/books.svc").read_text()
    assert main.run(["rollback", str(recipe)]) == 5
    assert main.run(["rollback", str(recipe), "--to", "00000000"]) == 5
    assert main.run(["promote", str(recipe), "nothex"]) == 5
    assert (recipe.parent / "out/books.svc").read_text() == pointer
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    assert main.run(["rollback", str(recipe)]) == 8
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    text = recipe.read_text().replace(", versioning: append_sha, keep: 4", "")
    recipe.write_text(text, encoding="utf-8")
    assert main.run(["history", str(recipe)]) == 2


def test_a_plain_recipe_writes_no_log_until_there_is_one(recipe: Path) -> None:
    """Without `keep` and `promotion` a training writes what it always wrote; after a rollback the log goes on."""
    recipe.write_text(recipe.read_text().replace(", keep: 4", ""), encoding="utf-8")
    out = recipe.parent / "out"
    for run in range(2):
        assert train(recipe, f"r{run}") == 0
    assert {path.suffix for path in out.iterdir()} <= {".svc", ".lock"}
    assert main.run(["rollback", str(recipe)]) == 0
    assert train(recipe, "r2") == 0
    assert len((out / "books.svc.log.jsonl").read_text().splitlines()) == 2


@pytest.mark.integration
def test_commands_killed_at_random_moments_leave_everything_whole(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pointer names a version that is there, and every line of the log is whole and signed."""
    for run in range(4):
        assert train(recipe, f"r{run}") == 0
    versions = [version["sha8"] for version in history(recipe, capsys)]
    moments, folder = random.Random(7), recipe.parent / "out"
    script = "import sys; from svc.cli.main import run; sys.exit(run(sys.argv[1:]))"
    for turn in range(40):
        target = versions[turn % len(versions)]
        command = ["promote", str(recipe), target] if turn % 2 else ["rollback", str(recipe), "--to", target, "--hold"]
        process = subprocess.Popen([sys.executable, "-c", script, *command], stdout=subprocess.PIPE, env=os.environ)
        time.sleep(moments.uniform(0.2, 0.8))
        process.kill()
        process.communicate()
        name = (folder / "books.svc").read_text()
        assert name.endswith(".svc\n")
        assert (folder / name.strip()).is_file()
    assert main.run(["promote", str(recipe), versions[0]]) == 0
    assert main.run(["history", str(recipe), "--verify"]) == 0
