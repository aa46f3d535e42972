"""`svc serve`: what its flags need before anything is served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import last_error


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """An open server in production is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])


def test_a_folder_with_only_yml_files_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not served; the warning ends when they are asked for, or when others are there."""
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    (tmp_path / "books.yml").write_text("name: books", encoding="utf-8")
    for change in (lambda: None, lambda: monkeypatch.setenv("SVC_YML_RECIPES", "1")):
        change()
        assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    told = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(one["event"], one["files"]) for one in told] == [("recipes_end_in_yml", ["books.yml"])]
    assert "SVC_YML_RECIPES=1" in told[0]["way_out"]
