"""`svc rollback`: making an earlier version live, with a hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import history, train


def test_a_hold_keeps_the_version_through_trainings_until_promote(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three trainings leave the pointer and log it. `promote` then makes one of them live."""
    for run in range(3):
        assert train(recipe, f"r{run}") == 0
    found = history(recipe, capsys)
    assert [version["live"] for version in found] == [True, False, False]
    assert found[0].keys() == {
        *("sha8", "trained_at", "best_class", "best_score", "rank_ms", "decision", "live", "held")
    }
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
