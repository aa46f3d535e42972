"""`svc promote`: one version is live, and a hold ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import history, last_error, train


def test_a_promoted_version_is_live_until_the_next_training(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what was live before; promoting the live one again changes nothing; a training moves the pointer on."""
    train(recipe, "r1")
    train(recipe, "r2")
    newer, older = (version["sha8"] for version in history(recipe, capsys))
    assert main.run(["promote", str(recipe), older]) == 0
    assert capsys.readouterr().out == f"{older} is live (before: {newer}); trainings move the pointer again\n"
    assert main.run(["promote", str(recipe), older[:6].upper()]) == 0
    assert main.run(["promote", str(recipe), "none"]) == 5
    said = last_error(capsys)["error"]
    assert "no version begins with 'none'" in str(said) and f"the newest are {newer}, {older}" in str(said)
    assert [version["sha8"] for version in history(recipe, capsys) if version["live"]] == [older]
    train(recipe, "r3")
    assert [version["live"] for version in history(recipe, capsys)] == [True, False, False]
