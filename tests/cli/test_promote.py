"""`svc promote`: making one version live."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import history, last_error, train


def test_a_promoted_version_is_live_until_the_next_training(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the version that was live before. A training moves the pointer again."""
    train(recipe, "r1")
    train(recipe, "r2")
    newer, older = (version["sha8"] for version in history(recipe, capsys))
    assert main.run(["promote", str(recipe), older]) == 0
    assert capsys.readouterr().out == f"{older} is live (before: {newer}); trainings move the pointer again\n"
    assert main.run(["promote", str(recipe), older[:6].upper()]) == 0
    assert main.run(["promote", str(recipe), "none"]) == 5
    error = last_error(capsys)["error"]
    assert "no version begins with 'none'" in str(error) and f"the newest are {newer}, {older}" in str(error)
    assert [version["sha8"] for version in history(recipe, capsys) if version["live"]] == [older]
    train(recipe, "r3")
    assert [version["live"] for version in history(recipe, capsys)] == [True, False, False]
