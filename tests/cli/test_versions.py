"""`svc history`, `svc promote` and `svc rollback` with real trainings."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys, public_entry
from svc.cli import main
from tests.cli.conftest import KEY, history, last_error, train


@pytest.fixture
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recipe with two versions, which the first test makes for all."""
    made, out = tmp_path_factory.getbasetemp() / "two versions", recipe.parent / "out"
    if made.exists():
        shutil.copytree(made, out)
    else:
        assert [train(recipe, run) for run in ("r1", "r2")] == [0, 0]
        shutil.copytree(out, made)
    return recipe


def test_impossible_requests_end_with_5_8_or_2(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 5 without an earlier version, for an unknown version and for a version of another recipe.

    It is 8 without a signing key, and 2 for a recipe without versions.
    """
    monkeypatch.setenv("SVC_ARTIFACT_SIGNATURE", "ed25519")
    train(recipe, "r1")
    pointer = (recipe.parent / "out/books.svc").read_text()
    assert main.run(["rollback", str(recipe)]) == 5
    assert main.run(["rollback", str(recipe), "--to", "00000000"]) == 5
    assert main.run(["promote", str(recipe), "nothex"]) == 5
    sha8, text = pointer.split(".")[-2], recipe.read_text()
    recipe.write_text(text.replace("name: books", "name: films"))
    assert main.run(["promote", str(recipe), sha8]) == 5
    recipe.write_text(text)
    assert train(recipe, "r2") == 0
    files = {path: path.read_bytes() for path in recipe.parent.rglob("books*")}
    monkeypatch.delenv("SVC_SIGNING_KEYS")
    assert main.run(["rollback", str(recipe)]) == 8
    monkeypatch.setenv("SVC_VERIFY_KEYS", public_entry(*parse_signing_keys(KEY).active))
    assert main.run(["history", str(recipe)]) == 0
    for command in (["promote", str(recipe), sha8], ["rollback", str(recipe)]):
        assert main.run(command) == 8
    assert {path: path.read_bytes() for path in recipe.parent.rglob("books*")} == files
    monkeypatch.setenv("SVC_SIGNING_KEYS", KEY)
    text = recipe.read_text().replace(", versioning: append_sha, keep: 4", "")
    recipe.write_text(text, encoding="utf-8")
    assert main.run(["history", str(recipe)]) == 2


def test_a_recipe_without_keep_and_promotion_writes_no_log_before_a_rollback(recipe: Path) -> None:
    """After the first rollback the trainings of such a recipe write lines too."""
    recipe.write_text(recipe.read_text().replace(", keep: 4", ""), encoding="utf-8")
    out = recipe.parent / "out"
    for run in range(2):
        assert train(recipe, f"r{run}") == 0
    assert {path.suffix for path in out.iterdir()} <= {".svc", ".lock"}
    assert main.run(["rollback", str(recipe)]) == 0
    assert train(recipe, "r2") == 0
    assert len((out / "books.svc.log.jsonl").read_text().splitlines()) == 2


@pytest.mark.integration
def test_commands_killed_at_random_moments_leave_a_valid_store(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pointer names an existing version, and every line of the log is whole and signed."""
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


def test_verify_names_a_changed_line_and_ends_with_5(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the number of the changed line."""
    train(recipe, "r1")
    log = recipe.parent / "out/books.svc.log.jsonl"
    log.write_text(log.read_text().replace("TopPop", "Cosine"), encoding="utf-8")
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--verify"]) == 5
    assert "line 1: it was changed" in capsys.readouterr().out


def test_verify_prints_the_number_of_valid_lines(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0, and --json prints one object."""
    capsys.readouterr()
    assert main.run(["history", str(trained), "--verify"]) == 0
    assert capsys.readouterr().out == "2 lines, all signed and in order\n"
    assert main.run(["history", str(trained), "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lines": 2, "problems": []}


def test_the_table_marks_the_live_version(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has one row for each version, newest first."""
    found = history(trained, capsys)
    assert main.run(["history", str(trained)]) == 0
    output = capsys.readouterr().out
    title, table = output[: output.index("version ")], output.splitlines()
    assert "".join(title.split()) == str(trained.parent / "out/books.svc")
    rows = [line for line in table if "TopPop" in line]
    assert [version["sha8"] in row for version, row in zip(found, rows, strict=True)] == [True, True]
    assert ["live" in row for row in rows] == [True, False]
    assert max(len(row.rstrip()) for row in rows) < 80


def test_the_table_names_the_searched_version_of_a_refit(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The column exists only if a version is a refit. Without versions, the command that writes the first is named."""
    assert main.run(["history", str(recipe)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.endswith(f"There is no version yet: svc train {recipe} writes the first one.")
    train(recipe, "r1")
    capsys.readouterr()
    assert main.run(["history", str(recipe)]) == 0
    assert "refit" not in capsys.readouterr().out
    assert main.run(["train", str(recipe), "--quiet", "--refit"]) == 0
    refitted, searched = history(recipe, capsys)
    assert refitted["reused_from"] == {"sha8": searched["sha8"], "searched_at": searched["trained_at"]}
    assert main.run(["history", str(recipe)]) == 0
    output = capsys.readouterr().out
    assert "refit" in output
    assert max(map(len, output.splitlines())) <= 80
    assert [line.split()[0] for line in output.splitlines() if "TopPop" in line] == [refitted["sha8"], searched["sha8"]]
    assert (output.count(searched["sha8"]), output.count(refitted["sha8"])) == (2, 1)


def test_decisions_are_in_the_table_and_in_json(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training with a refused model ends with 9."""
    rules = "promotion: {mode: enforce, min_relative_change: %s}\n"
    plain = recipe.read_text(encoding="utf-8")
    for change, exit_code in (("0", 0), ("0.1", 9)):
        recipe.write_text(plain + rules % change, encoding="utf-8")
        assert main.run(["train", str(recipe), "--quiet"]) == exit_code
    found = history(recipe, capsys)
    assert [(version["decision"], version["live"]) for version in found] == [("refused", False), ("promoted", True)]
    assert main.run(["history", str(recipe)]) == 0
    lines = capsys.readouterr().out.splitlines()
    refused, promoted = (next(line for line in lines if version["sha8"] in line) for version in found)
    assert "refused" in refused and "live" not in refused
    assert "promoted" in promoted and "live" in promoted


def test_a_promoted_version_is_live_until_the_next_training(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the version that was live before. A training moves the pointer again."""
    recipe = trained
    newer, older = (version["sha8"] for version in history(recipe, capsys))
    assert main.run(["promote", str(recipe), older]) == 0
    assert capsys.readouterr().out == f"{older} is live (before: {newer}); trainings move the pointer again\n"
    assert main.run(["promote", str(recipe), older[:6].upper()]) == 0
    assert main.run(["promote", str(recipe), "none"]) == 5
    error = last_error(capsys)["error"]
    assert "no version begins with 'none'" in str(error) and f"newest of all versions: {newer}, {older}" in str(error)
    assert [version["sha8"] for version in history(recipe, capsys) if version["live"]] == [older]
    train(recipe, "r3")
    assert [version["live"] for version in history(recipe, capsys)] == [True, False, False]


def test_a_hold_keeps_the_version_through_trainings_until_promote(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two trainings do not move the pointer, and log that it is held.

    `promote` then makes one of their versions live.
    """
    recipe = trained
    found = history(recipe, capsys)
    assert [version["live"] for version in found] == [True, False]
    assert found[0].keys() == {
        *("sha8", "trained_at", "best_class", "best_score", "rank_ms", "decision", "live", "held")
    }
    assert main.run(["rollback", str(recipe), "--hold"]) == 0
    assert f"{found[1]['sha8']} is live (before: {found[0]['sha8']}); held" in capsys.readouterr().out
    for run in range(2):
        assert train(recipe, f"h{run}") == 0
        records = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert (records[-1]["event"], records[-1]["promoted"]) == ("train_done", False)
        assert "promotion_held" in {record["event"] for record in records}
    held = history(recipe, capsys)
    assert [version["sha8"] for version in held if version["held"]] == [found[1]["sha8"]]
    assert main.run(["history", str(recipe)]) == 0
    assert re.search(
        r"^version +trained at .* TopPop .* live, held$", capsys.readouterr().out, re.MULTILINE | re.DOTALL
    )
    assert main.run(["promote", str(recipe), held[0]["sha8"]]) == 0
    assert (recipe.parent / "out/books.svc").read_text() == f"books.{held[0]['sha8']}.svc\n"
    assert main.run(["history", str(recipe), "--verify"]) == 0
    assert main.run(["history", str(recipe)]) == 0
    table = capsys.readouterr().out
    assert held[0]["sha8"] in table
    assert f"{held[0]['rank_ms']:.3g}" in table
