"""`svc status` as people see it, against a small server of the tests' own."""

from __future__ import annotations

import json

import pytest

from svc.cli.main import run
from tests.cli.conftest import DETAILS


def test_status_is_a_row_for_each_recipe(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """State, algorithm, the digits of the artifact's name, and the error; degraded is exit code 5."""
    assert run(["status", url]) == 5
    shown = capsys.readouterr().out
    rows = {line.split()[1]: line for line in shown.splitlines() if line.startswith("│")}
    assert shown.startswith(f"{url}: degraded")
    assert all(word in rows["books"] for word in ("loaded", "IALSRecommender", "0f3a9c1e"))
    assert all(word in rows["films"] for word in ("loaded, last reload failed", "signature mismatch"))
    assert all(word in rows["news"] for word in ("not loaded", "[no] artifact"))
    assert all(word in rows["notes"] for word in ("skipped", "notes.yaml:3: unknown key"))
    assert "\x1b" not in shown


def test_status_for_programs_is_the_document(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is lost or added."""
    assert run(["status", url, "--json"]) == 5
    assert json.loads(capsys.readouterr().out) == DETAILS


def test_a_healthy_server_is_exit_code_0(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A healthy server gives exit code 0, so that a deployment can wait for it."""
    monkeypatch.setitem(DETAILS, "status", "ok")
    assert run(["status", url]) == 0
    assert capsys.readouterr().out.startswith(f"{url}: ok")
