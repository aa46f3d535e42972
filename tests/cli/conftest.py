"""Commands run in this process, without settings of the machine."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches these tests; standard error counts as a pipe."""
    for name in ("SVC_LOG_FORMAT", "SVC_LOG_LEVEL", "SVC_ENV", "SVC_SIGNING_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def last_error(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    return dict(json.loads(capsys.readouterr().err.splitlines()[-1]))
