"""`svc serve`: what its flags need before anything is served."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import last_error


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """An open server in production is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])


def test_a_misspelt_variable_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log names the one that was probably meant."""
    monkeypatch.setenv("SVC_SIGNING_KEY", "k1:00")
    monkeypatch.setattr("svc.serving.run.serve", lambda *_: 0)
    assert main.run(["serve", "--recipes", str(tmp_path)]) == 0
    told = next(line for line in "".join(capsys.readouterr()).splitlines() if "variable_unknown" in line)
    assert "SVC_SIGNING_KEYS" in told and "warning" in told
