"""Lines of a served log, and the recipe of their experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from svc.asking.experiment import unit_digest
from svc.recipe.schema import Recipe

SALT = "2026-12"
START = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)


def content(weights: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return a recipe as it is written. By default it has two arms of equal weights."""
    arms = [{"name": name, "weight": weight} for name, weight in (weights or {"control": 1, "next": 1}).items()]
    return {
        "name": "books",
        "source": {"type": "csv", "path": "a.csv"},
        "schema": {"user_column": "user", "item_column": "item"},
        "output": {"path": "a.svc"},
        "serving": {
            "experiment": {"name": "ranking-2", "salt": SALT, "arms": arms},
            "served_log": {"path": "served"},
        },
    }


def recipe(weights: Mapping[str, int] | None = None) -> Recipe:
    return Recipe.model_validate(content(weights))


def at(minutes: float) -> str:
    """Return a time as servers write it."""
    return (START + timedelta(minutes=minutes)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def line(unit: str | None, arm: str | None, items: Iterable[str], minutes: float = 0, **more: object) -> dict[str, Any]:
    return {
        "time": at(minutes),
        "request_id": f"{unit}-{minutes}",
        "recipe": "books",
        "verb": "recommend",
        "experiment": "ranking-2",
        "arm": arm,
        "model_version": "3f9a1c07",
        "unit": None if unit is None else unit_digest(SALT, unit),
        "items": [*items],
        **more,
    }


def write(file: Path, lines: Iterable[object], end: str = "\n") -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(json.dumps(entry) for entry in lines) + end, encoding="utf-8")
    return file


def make_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a recipe's path, beside a log of 40 pages and a table of events. The folder becomes the current one."""
    monkeypatch.setenv("SVC_LOG_FORMAT", "json")
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    lines = [line(f"u{n}", ["control", "next"][n % 2], ["a", "b"]) for n in range(40)]
    lines.append(line("u1", "next", ["b", "c"], shadow=True))
    write(tmp_path / "served" / "books.20261201T0900.7.jsonl", lines)
    rows = [f"u{n},b,{at(n)},2.5" for n in range(40) if n % 8 in (0, 1, 3)]
    (tmp_path / "events.csv").write_text("\n".join(["unit,item,time,value", *rows, rows[0], "x,b,2026-12-02,1"]) + "\n")
    path = tmp_path / "books.yaml"
    path.write_text(json.dumps(content()))
    return path
