"""`cleansing.where` and `cleansing.hide`, which select the rows of a training from every source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from svc.errors import DataSourceError, RowFilterMismatch, SvcError
from svc.progress import Progress
from svc.recipe.filter_tree import parse_row_filter
from svc.settings import Settings
from svc.training.data.fetch import load
from svc.training.data.where import kept_rows
from svc.training.validate import validate
from tests.training.runs import Log, Make, last, run

FRAME = pd.DataFrame(
    {
        "rating": [5.0, 1.0, np.nan, 4.0, np.inf],
        "text": pd.Series(["a", None, " ", "b", "A"], dtype=object),
        "whole": pd.array([1, 2, None, 4, 5], dtype="Int64"),
        "spelled": ["5", "NA", "", "4.5", "1e3"],
        "truth": [True, False, True, False, True],
        "id": pd.Categorical(["u1", "u2", None, "u1", ""]),
    }
)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"rating": {"gte": 4}}, [0, 3]),
        ({"rating": {"gt": 1, "lt": 5}}, [3]),
        ({"rating": {"lte": 1}}, [1]),
        ({"not": {"rating": {"gte": 4}}}, [1, 2, 4]),
        ({"rating": {"exists": False}}, [2, 4]),
        ({"rating": {"exists": False, "gte": 0}}, []),
        ({"text": {"any": ["a", "b"]}}, [0, 3]),
        ({"text": {"any": [" "]}}, []),
        ({"text": {"exists": True}}, [0, 3, 4]),
        ({"whole": {"eq": 4}}, [3]),
        ({"whole": {"any": ["4", "1"]}}, [0, 3]),
        ({"whole": {"exists": False}}, [2]),
        ({"spelled": {"gte": 5}}, [0, 4]),
        ({"spelled": {"any": ["NA"]}}, [1]),
        ({"truth": {"any": ["true"]}}, [0, 2, 4]),
        ({"id": {"any": ["u1"]}}, [0, 3]),
        ({"id": {"exists": False}}, [2, 4]),
        ({"any": [{"rating": {"eq": 1}}, {"all": [{"text": {"any": ["a"]}}, {"whole": {"lt": 2}}]}]}, [0, 1]),
    ],
)
def test_rows_that_satisfy_the_filter_are_kept(where: dict[str, Any], kept: list[int]) -> None:
    """Kept rows have their order and positions. A missing value satisfies only `exists: false`."""
    found = kept_rows(FRAME, parse_row_filter(where))
    assert found.positions is not None
    assert found.positions.tolist() == kept
    assert (len(found.frame), found.n_dropped) == (len(kept), 5 - len(kept))
    assert found.frame["whole"].isna().sum() == (2 in kept)


@pytest.mark.parametrize(
    ("values", "where", "row", "shown"),
    [
        (["4", "", "bad"], {"c": {"gte": 4}}, 3, "bad"),
        (["4", "1_000"], {"c": {"gte": 4}}, 2, "1_000"),
        ([True, False], {"c": {"eq": 1}}, 1, "True"),
        (pd.to_datetime(["2024-01-01"]), {"c": {"gte": 4}}, 1, "2024-01-01"),
        ([[1], [2]], {"c": {"gte": 4}}, 1, "[1]"),
        ([None, 1.5], {"c": {"any": ["1.5"]}}, 2, "1.5"),
        (["4", "bad"], {"all": [{"d": {"eq": 9}}, {"c": {"gte": 4}}]}, 2, "bad"),
    ],
)
def test_a_value_that_cannot_be_compared_is_named(values: Any, where: dict[str, Any], row: int, shown: str) -> None:
    """The message has column, row and value, even if another condition drops the row."""
    frame = pd.DataFrame({"c": values}).assign(d=0)
    with pytest.raises(RowFilterMismatch) as caught:
        kept_rows(frame, parse_row_filter(where))
    assert caught.value.exit_code == 4
    assert caught.value.fields == {"column": "c", "row": row}
    assert f"'c' holds '{shown}" in caught.value.message
    assert f"data row {row}," in caught.value.message


@pytest.mark.parametrize("index", [["x", "y"], [7, 7], pd.to_datetime(["2026-01-01", "2026-01-02"])])
def test_errors_count_the_rows_of_any_index(index: Any) -> None:
    """A plug-in may return a frame with its own index. An error still numbers the rows from 1."""
    frame = pd.DataFrame({"r": ["3", "bad"]}, index=index)
    with pytest.raises(RowFilterMismatch) as caught:
        kept_rows(frame, parse_row_filter({"r": {"gte": 1}}))
    assert caught.value.fields["row"] == 2


def test_a_source_without_a_required_column_is_an_error() -> None:
    """A plug-in may ignore the columns that the context requires."""
    with pytest.raises(DataSourceError, match=r"cleansing\.where: the table has no column c; it has d"):
        kept_rows(pd.DataFrame({"d": [1]}), parse_row_filter({"c": {"eq": 1}}))


ROWS = pd.DataFrame(
    {
        "user_id": [f"u{i % 7}" for i in range(60)],
        "item_id": [f"i{i % 11}" for i in range(60)],
        "ts": [1_600_000_000 + i for i in range(60)],
        "rating": [i % 5 + 1 for i in range(60)],
        "shop": [f"{i % 3:03}" for i in range(60)],
    }
)
WHERE = {"all": [{"rating": {"gte": 4}}, {"shop": {"any": ["001", "002"]}}]}


def _source(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "csv":
        ROWS.to_csv(folder / "rows.csv", index=False)
        return {"type": "csv", "path": str(folder / "rows.csv")}
    if kind == "parquet":
        ROWS.to_parquet(folder / "rows.parquet")
        return {"type": "parquet", "path": str(folder / "rows.parquet")}
    with closing(sqlite3.connect(folder / "rows.db")) as database:
        ROWS.to_sql("rows", database, index=False)
    return {"type": "sql", "dsn_env": "SVC_RECIPE_DSN", "query": "SELECT * FROM rows ORDER BY ts"}


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_hidden_rows_of_every_source_are_no_choices_and_count(
    kind: str, make_recipe: Make, tmp_path: Path, log: Log
) -> None:
    """`hide` applies before `where`. Its rows are counted as hidden, and add neither users nor items.

    All sources keep the same rows.
    """
    hide = {"rating": {"lt": 3}}
    recipe = make_recipe(source=_source(kind, tmp_path), cleansing={"where": WHERE, "hide": hide, "dedup": "none"})
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{tmp_path / 'rows.db'}"}
    found = load(recipe, Settings(), variables, Progress()).interactions
    low = ROWS["rating"] < 3
    chosen = ROWS[(ROWS["rating"] >= 4) & (ROWS["shop"] != "000")]
    assert [found.user_ids[code] for code in found.users] == chosen["user_id"].tolist()
    assert [found.item_ids[code] for code in found.items] == chosen["item_id"].tolist()
    assert found.hidden is not None
    pairs = zip(found.hidden.users, found.hidden.items, strict=True)
    assert [(found.user_ids[u], found.item_ids[i]) for u, i in pairs] == [
        (row.user_id, row.item_id)
        for row in ROWS[low].itertuples()
        if {row.user_id} <= set(chosen["user_id"]) and {row.item_id} <= set(chosen["item_id"])
    ]
    assert found.dropped == {"where": 60 - int(low.sum()) - len(chosen), "hide": int(low.sum())}
    cleansed = next(record for record in log if record["event"] == "data_cleansed")
    assert (cleansed["dropped_by_where"], cleansed["hidden_by_rule"]) == (found.dropped["where"], int(low.sum()))
    assert (cleansed["n_rows"], cleansed["drop_count"]) == (len(chosen), 60 - len(chosen))
    details = [check.detail for check in validate(recipe, Settings(), variables) if check.name == "source"]
    assert f"cleansing.where keeps {len(chosen)} of the first 60 rows" in details
    assert f"cleansing.hide hides {int(low.sum())} of the first 60 rows" in details


def test_hide_alone_drops_no_rows_and_is_named_in_its_errors() -> None:
    """Without `where`, all other rows are choices. An error names the filter that caused it."""
    found = kept_rows(FRAME, None, parse_row_filter({"rating": {"lt": 4}}))
    assert found.hides is not None
    assert (found.hides.tolist(), found.n_dropped, len(found.frame)) == ([False, True, False, False, False], None, 5)
    with pytest.raises(DataSourceError, match=r"cleansing\.hide: the table has no column stars"):
        kept_rows(FRAME, None, parse_row_filter({"stars": {"lt": 4}}))
    with pytest.raises(RowFilterMismatch, match=r"cleansing\.hide: the column 'text' holds 'a' in data row 1"):
        kept_rows(FRAME, parse_row_filter({"rating": {"gte": 4}}), parse_row_filter({"text": {"lt": 4}}))


@pytest.mark.parametrize("kind", ["csv", "parquet", "sql"])
def test_a_missing_column_of_the_filter_exits_with_3(kind: str, make_recipe: Make, tmp_path: Path) -> None:
    """`svc train` and `svc validate` name the column."""
    recipe = make_recipe(source=_source(kind, tmp_path), cleansing={"where": {"stars": {"gte": 4}}})
    variables = {"SVC_RECIPE_DSN": f"sqlite:///{tmp_path / 'rows.db'}"}
    with pytest.raises(SvcError, match="stars") as caught:
        load(recipe, Settings(), variables, Progress())
    assert caught.value.exit_code == 3
    failed = [check for check in validate(recipe, Settings(), variables) if not check.ok]
    assert [(check.name, check.exit_code) for check in failed] == [("source", 3)]


def test_dropped_rows_are_not_checked_and_others_keep_their_row_number(
    make_recipe: Make, tmp_path: Path, log: Log
) -> None:
    """An invalid time in a dropped row is ignored. In a kept row, the error has its row in the source."""
    ratings = tmp_path / "odd.csv"
    rows = ["x,i1,never,1", "a,i1,1600000000,5", "b,i2,1600000000,5", "a,i2,soon,5"]
    ratings.write_text("user_id,item_id,ts,rating\n" + "\n".join(rows) + "\n", encoding="utf-8")
    recipe = make_recipe(ratings=ratings, cleansing={"where": {"rating": {"gte": 4}}})
    found = load(recipe, Settings(), {}, Progress()).interactions
    assert found.dropped == {"where": 1, "bad_times": 1}
    assert found.user_ids == ["a", "b"]
    assert "data row 4" in found.reasons["bad_times"]


def test_a_filter_without_matching_rows_is_named_in_the_error(make_recipe: Make, log: Log) -> None:
    """The message says that the filter dropped the rows."""
    recipe = make_recipe(cleansing={"where": {"user_id": {"any": ["nobody"]}}})
    assert run(recipe).exit_code == 4
    error = last(log)
    assert error["code"] == "min_data_violation"
    assert "960 dropped by cleansing.where" in error["error"]
    details = [check.detail for check in validate(recipe, Settings(), {}) if check.name == "source"]
    assert any("warning: cleansing.where keeps 0 of the first 960 rows: compare" in text for text in details)
