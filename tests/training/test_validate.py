"""The checks of `svc validate`: their findings, and the errors of a training that they predict."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import event

from svc.settings import Settings
from svc.training.validate import validate
from tests.training.runs import Make, training

QUERY = "SELECT user_id, item_id, ts FROM choices ORDER BY ts"


def test_a_query_runs_once(make_recipe: Make, tmp_path: Path) -> None:
    """A query may be expensive, so the probe and the checked rows come from one run."""
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        database.execute("CREATE TABLE choices (user_id TEXT, item_id TEXT, ts INTEGER)")
        database.executemany(
            "INSERT INTO choices VALUES (?, ?, ?)",
            [(user, item, 1_600_000_000) for user in ("u1", "u2") for item in ("i1", "2.0")],
        )
        database.commit()
    recipe = make_recipe(
        source={"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": QUERY},
        training=training(cutoff=2, split={"scheme": "time_user", "heldout_ratio": 0.5}),
    )
    ran = []

    def note(*arguments: object) -> None:
        ran.append(arguments[2])

    event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        variables = {"SVC_RECIPE_DSN": f"sqlite:///{tmp_path / 'rows.db'}"}
        found = [check for check in validate(recipe, Settings(), variables) if check.name == "source"]
    finally:
        event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
    assert ran.count(QUERY) == 1
    details = "\n".join(check.detail for check in found)
    assert all(check.ok for check in found)
    assert "query: runs, has the columns user_id, item_id, ts" in details
    assert "requests must ask for '2.0'" in details


@pytest.mark.parametrize("header", [0, 1, None])
def test_ids_with_decimal_zeros_cause_a_warning(make_recipe: Make, tmp_path: Path, header: int | None) -> None:
    """Many tools write 7.0 for 7 if a column has a blank.

    Ids such as 1.5 and an unclosed quote cause no warning.
    """
    names = "user_id,item_id,ts\n" if header is not None else ""
    rows = 'u1,7.0,1600000000\n,,\nu1.0,8,1600000000\nu2,1.5,1600000000\nu3.0,i,"open'
    (tmp_path / "rows.csv").write_text("a line before\n" * (header or 0) + names + rows, encoding="utf-8")
    user, item, ts = names.strip().split(",") if names else ("0", "1", "2")
    columns = {"user_column": user, "item_column": item, "time_column": ts, "time_unit": "s"}
    recipe = make_recipe(
        source={"type": "csv", "path": str(tmp_path / "rows.csv"), "header": header},
        schema=columns,
        features={
            "item": {
                "source": {"type": "csv", "path": str(tmp_path / "rows.csv"), "header": header},
                "id_column": item,
                "columns": [{"name": user, "kind": "categorical"}],
            }
        },
        training={"algorithms": ["IALS"]},
    )
    found = [check for check in validate(recipe, Settings(), {}) if "floating point" in check.detail]
    assert [check.name for check in found] == ["source", "features.item.source"]
    for check in found:
        assert check.ok
        assert f"id column {item} " in check.detail
        assert "7.0" in check.detail


def test_checks_continue_after_a_failed_one(make_recipe: Make) -> None:
    """The error of an unusable storage is listed beside the findings about the source."""
    recipe = make_recipe(training={"algorithms": ["TopPop"], "storage_path": "postgres://host/db"})
    checks = {check.name: check for check in validate(recipe, Settings(), {})}
    failed = checks["training.storage_path"]
    assert (failed.ok, failed.code, failed.exit_code) == (False, "storage_path_unusable", 8)
    assert checks["algorithms"].ok
    assert checks["source"].ok


def test_future_rows_cause_a_warning_before_a_training(make_recipe: Make, tmp_path: Path) -> None:
    """The warning has an example, also if only a time decay reads the times."""
    ratings = tmp_path / "future.csv"
    ratings.write_text("user_id,item_id,ts\na,x,1600000000\na,y,4070908800\nb,x,1600000000\n", encoding="utf-8")
    training = {"algorithms": ["TopPop"], "split": {"scheme": "random"}, "time_decay": {"half_life": "30d"}}
    recipe = make_recipe(ratings=ratings, training=training)
    details = "\n".join(check.detail for check in validate(recipe, Settings(), {}) if check.name == "source")
    assert "warning: 1 of the first 3 rows" in details
    assert "'ts' holds '4070908800' in data row 2" in details


def test_first_rows_without_a_choice_cause_a_warning(make_recipe: Make, tmp_path: Path) -> None:
    """The reason is named, such as a misspelt event, which a training would report after it has read all rows."""
    ratings = tmp_path / "events.csv"
    ratings.write_text("user_id,item_id,ts,event\na,x,1600000000,Buy\na,y,1600000001,Buy\n", encoding="utf-8")
    schema = {"user_column": "user_id", "item_column": "item_id", "event_column": "event"}
    training = {"algorithms": ["TopPop"], "split": {"scheme": "random"}}
    cleansing = {"event_weights": {"buy": 2}}
    recipe = make_recipe(ratings=ratings, schema=schema, cleansing=cleansing, training=training)
    details = [check.detail for check in validate(recipe, Settings(), {}) if check.name == "source"]
    reason = "because they are dropped: 2 as unlisted_events"
    assert f"warning: none of the first 2 rows is a choice, {reason}" in details
