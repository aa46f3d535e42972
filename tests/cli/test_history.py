"""`svc history`: the list of versions, and the check of their log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import history, train


def test_verify_names_a_changed_line_and_ends_with_5(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the number of the changed line."""
    train(recipe, "r1")
    log = recipe.parent / "out/books.svc.log.jsonl"
    log.write_text(log.read_text().replace("TopPop", "Cosine"), encoding="utf-8")
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--verify"]) == 5
    assert "line 1: it was changed" in capsys.readouterr().out


def test_verify_prints_the_number_of_valid_lines(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 0, and --json prints one object.

    Without versions, the output names the command that writes the first.
    """
    assert main.run(["history", str(recipe)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert output.endswith(f"No version is there yet: svc train {recipe} writes the first one.")
    train(recipe, "r1")
    train(recipe, "r2")
    capsys.readouterr()
    assert main.run(["history", str(recipe), "--verify"]) == 0
    assert capsys.readouterr().out == "2 lines, all signed and in order\n"
    assert main.run(["history", str(recipe), "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lines": 2, "problems": []}


def test_the_table_marks_the_live_version(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table has one row for each version, newest first."""
    train(recipe, "r1")
    train(recipe, "r2")
    found = history(recipe, capsys)
    assert main.run(["history", str(recipe)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "TopPop" in line]
    assert [version["sha8"] in row for version, row in zip(found, rows, strict=True)] == [True, True]
    assert ["live" in row for row in rows] == [True, False]
    assert max(len(row.rstrip()) for row in rows) < 80


def test_the_table_names_the_searched_version_of_a_refit(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The column exists only if a version is a refit."""
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


def test_decisions_are_in_the_table_in_json_and_in_metrics(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training with a refused model ends with 9, and the metrics file counts the same decisions."""
    rules, metrics = "promotion: {mode: enforce, min_relative_change: %s}\n", tmp_path / "books.prom"
    plain = recipe.read_text(encoding="utf-8")
    for change, exit_code in (("0", 0), ("0.1", 9)):
        recipe.write_text(plain + rules % change, encoding="utf-8")
        assert main.run(["train", str(recipe), "--quiet", "--metrics-file", str(metrics)]) == exit_code
    found = history(recipe, capsys)
    assert [(version["decision"], version["live"]) for version in found] == [("refused", False), ("promoted", True)]
    assert main.run(["history", str(recipe)]) == 0
    lines = capsys.readouterr().out.splitlines()
    refused, promoted = (next(line for line in lines if version["sha8"] in line) for version in found)
    assert "refused" in refused and "live" not in refused
    assert "promoted" in promoted and "live" in promoted
    counted = metrics.read_text(encoding="utf-8")
    for decision in ("promoted", "refused"):
        assert f'svc_promotion_total{{recipe="books",decision="{decision}"}} 1.000' in counted
