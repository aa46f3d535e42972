"""`svc report`: its requirements."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli import main
from tests.cli.conftest import last_error
from tests.serving.artifacts import SIGNING_KEYS, popularity_model, write_artifact


def test_artifacts_are_verified_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 5 for a missing artifact, a wrong key or a header without a training.

    It is 8 without keys. No page is written.
    """
    path, page = tmp_path / "a.svc", tmp_path / "page.html"
    command = ["report", str(path), "--output", str(page)]
    assert main.run(command) == 5
    write_artifact(path, popularity_model())
    assert main.run(command) == 8
    monkeypatch.setenv("SVC_SIGNING_KEYS", SIGNING_KEYS)
    capsys.readouterr()
    assert main.run(command) == 5
    assert "there is nothing to report" in str(last_error(capsys)["error"])
    monkeypatch.setenv("SVC_SIGNING_KEYS", "k1:" + "33" * 32)
    assert main.run(command) == 5
    assert not page.exists()
