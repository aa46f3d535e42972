"""`svc validate`: its checks and exit codes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from svc.cli import main

VALIDATED = """\
name: books
source: {type: csv, path: rows.csv}
schema: {user_column: u, item_column: i, time_column: t, time_unit: s}
training: {algorithms: [TopPop], cutoff: 2, storage_path: STORAGE, split: {scheme: time_user, heldout_ratio: 0.5}}
output: {path: books.svc}
"""


def test_validate_checks_values_and_prints_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Times in another unit and an unusable storage are detected, with the exit code that a training would have."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(VALIDATED.replace("STORAGE", "postgres://host/db"))
    (tmp_path / "rows.csv").write_text("u,i,t\na,x,1735689600000\nb,y,1735689600001\n")
    assert main.run(["validate", str(recipe)]) == 8
    shown = capsys.readouterr().out
    assert "(code storage_path_unusable, exit code 8)" in shown
    assert "2 of the first 2 rows would be dropped" in shown and "set schema.time_unit: ms?" in shown
    recipe.write_text(VALIDATED.replace("STORAGE", "''"))
    assert main.run(["validate", str(recipe)]) == 4
    (tmp_path / "rows.csv").write_text("u,i,t\na,x,1735689600\na,y,1735689601\n")
    assert main.run(["validate", str(recipe)]) == 0


@pytest.fixture(params=["parquet", "sql"])
def validated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Return a function from rows of user, item and time, and a unit, to the exit code of `svc validate`."""
    described = "{type: parquet, path: rows.parquet}"
    if request.param == "sql":
        monkeypatch.setenv("SVC_RECIPE_DSN", f"sqlite:///{tmp_path}/rows.db")
        described = "{type: sql, dsn_env: SVC_RECIPE_DSN, query: 'SELECT u, i, t FROM choices ORDER BY rowid'}"
    recipe = tmp_path / "recipe.yaml"
    text = VALIDATED.replace("STORAGE", "''").replace("{type: csv, path: rows.csv}", described)

    def run(rows: list[tuple[Any, ...]], unit: str = "s") -> int:
        recipe.write_text(text.replace("time_unit: s", f"time_unit: {unit}"))
        frame = pd.DataFrame(rows, columns=["u", "i", "t"])
        frame.to_parquet(tmp_path / "rows.parquet")
        with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
            frame.to_sql("choices", connection, if_exists="replace", index=False)
        return main.run(["validate", str(recipe)])

    return run


GOOD = [(f"u{k}", f"i{k}", 1_735_689_600 + k) for k in range(1000)]


@pytest.mark.parametrize(
    ("rows", "unit", "expected"),
    [
        (GOOD, "s", (0, None)),
        ([(u, i, t * 1000) for u, i, t in GOOD], "s", (4, "1000 of the first 1000 rows would be dropped")),
        ([(u, i, t * 1000) for u, i, t in GOOD], "s", (4, "set schema.time_unit: ms?")),
        (GOOD, "ms", (0, "1735689600 is far from today when it counts ms (set schema.time_unit: s?)")),
        ([(u, i, "soon") for u, i, _ in GOOD], "s", (4, "the time column 't' holds 'soon' in data row 1")),
        ([(None, i, t) for _, i, t in GOOD], "s", (4, "the id column 'u' is blank in 1000 rows")),
        ([*GOOD[:900], *((u, " ", t) for u, _, t in GOOD[:100])], "s", (0, "the id column 'i' is blank in 100 rows")),
        (
            [(float(k), i, t) for k, (_, i, t) in enumerate(GOOD)],
            "s",
            (3, "the id column u holds floating point numbers"),
        ),
        ([(u, f"{k}.0", t) for k, (u, _, t) in enumerate(GOOD)], "s", (0, "requests must ask for '0.0'")),
        ([*GOOD, *((None, None, None) for _ in range(1000))], "s", (0, None)),
    ],
)
def test_validate_checks_the_first_rows_of_tables_and_queries(
    capsys: pytest.CaptureFixture[str], validated: Any, rows: Any, unit: str, expected: tuple[int, str | None]
) -> None:
    """Warnings are the same as for csv files, and the exit code is that of a training. Later rows are not read."""
    code, words = expected
    assert validated(rows, unit) == code
    shown = capsys.readouterr().out
    assert words in shown if words else "warning" not in shown
    assert shown.count("source:") == shown.count("ok      source:") + (code != 0)


def test_a_failing_source_is_reported_once(capsys: pytest.CaptureFixture[str], validated: Any, tmp_path: Path) -> None:
    """The sample does not repeat the failure of the probe."""
    assert validated(GOOD) == 0
    (tmp_path / "rows.parquet").write_text("none")
    (tmp_path / "rows.db").unlink()
    capsys.readouterr()
    assert main.run(["validate", str(tmp_path / "recipe.yaml")]) == 3
    assert capsys.readouterr().out.count("FAILED") == 1
