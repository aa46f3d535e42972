"""The progress of an export in its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from svc import events, logs
from svc.export.progress import LogDisplay
from svc.progress import EVERY_S, State
from svc.settings import Settings
from tests.export.conftest import Artifact, Export


def test_progress_and_end_are_logged(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The events have rows, rate and remaining time, and the last one the written rows."""
    monkeypatch.setattr("svc.export.progress.EVERY_S", 0.0)
    assert recommend(artifact("factors"), "--output", tmp_path / "out.csv", "--limit", "10") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["export_started", *["export_progress"] * 3, "export_done"]
    steps = lines[1:-1]
    assert [step["done"] for step in steps] == [256, 512, 700]
    assert [step["rows"] for step in steps] == [2560, 5120, 7000]
    assert steps[-1]["seconds_left"] == 0
    assert lines[-1]["rows"] == 7000


def test_progress_is_logged_every_s(capsys: Any) -> None:
    """The first line comes after EVERY_S, once a step is done. Unknown values are null."""
    now = [5.0]
    logs.configure(Settings())
    display = LogDisplay(lambda: now[0])
    for now[0], state in (
        (5.0 + EVERY_S, State("", total=4)),
        (4.9 + EVERY_S, State("", done=1, total=4)),
        (5.0 + EVERY_S, State("", done=2, total=4, rows=30, seconds=4.0)),
        (5.0 + EVERY_S, State("", done=3, total=4)),
        (5.0 + 2 * EVERY_S, State("", done=5, total=4)),
    ):
        display.show(state)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    fields = events.EXPORT_PROGRESS.fields
    assert [[line[name] for name in fields] for line in lines] == [[2, 4, 30, 8, 4], [5, 4, 0, 0, None]]
