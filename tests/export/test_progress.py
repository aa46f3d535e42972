"""How far an export is, as its log tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.export.conftest import Artifact, Export


def test_progress_and_end_are_logged(
    artifact: Artifact, recommend: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Rows, rate and time left; the last line says what is in place."""
    monkeypatch.setattr("svc.export.progress.EVERY_S", 0.0)
    assert recommend(artifact("factors"), "--output", tmp_path / "out.csv", "--limit", "10") == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["export_started", *["export_progress"] * 3, "export_done"]
    steps = lines[1:-1]
    assert [step["done"] for step in steps] == [256, 512, 700]
    assert [step["rows"] for step in steps] == [2560, 5120, 7000]
    assert steps[-1]["seconds_left"] == 0
    assert lines[-1]["rows"] == 7000
