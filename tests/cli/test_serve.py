"""`svc serve`: what its flags need before anything is served."""

from __future__ import annotations

import pytest

from svc.cli import main
from tests.cli.conftest import last_error


def test_serving_without_auth_needs_a_development_environment(capsys: pytest.CaptureFixture[str]) -> None:
    """An open server in production is a mistake."""
    assert main.run(["serve", "--recipes", ".", "--insecure-no-auth"]) == 8
    assert "SVC_ENV" in str(last_error(capsys)["error"])
