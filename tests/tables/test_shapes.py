"""Files that are no table of one choice a row. The error has a query that reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tables.tables import both_accept, both_refuse, choices, recommended, tried, write_csv

NUMBERED = {"user_column": "0", "item_column": "1"}


def query_in(error: str) -> dict[str, Any]:
    return {"type": "duckdb", "query": error.split("the query `")[1].split("`", maxsplit=1)[0]}


def test_a_wide_table_of_0_and_1_is_read_by_the_query_that_is_named(tmp_path: Path) -> None:
    """Each column is an item. The model has the choices, not the columns of zeros."""
    chosen = set(choices())
    items = [f"i{number}" for number in range(12)]
    rows = [(f"u{u}", *(int((f"u{u}", item) in chosen) for item in items)) for u in range(24)]
    write_csv(tmp_path / "rows.csv", rows, ",".join(["user", *items]))
    error = both_refuse(tried(tmp_path))
    assert "it has a column of 0 and 1 for each item" in error
    model = both_accept(tried(tmp_path, source=query_in(error)))
    assert model.header["data_stats"]["n_rows"] == 120
    assert recommended(model, "u1")


@pytest.mark.parametrize("options", [{}, {"header": None}])
def test_a_list_of_items_in_each_line_is_read_by_the_query_that_is_named(tmp_path: Path, options: Any) -> None:
    """Each line is a basket. The number of the line is the user."""
    baskets = [tuple(item for user, item in choices() if user == f"u{u}")[: 2 + u % 4] for u in range(24)]
    (tmp_path / "rows.csv").write_text("\n".join(map(",".join, baskets)), encoding="utf-8")
    schema = {"schema": NUMBERED} if options else {}
    error = both_refuse(tried(tmp_path, source={"type": "csv", "path": "rows.csv", **options}, **schema))
    assert "its lines have 2 to 5 fields, as lists of items" in error
    assert "header: null" not in error
    query = query_in(error)
    if not options:
        model = both_accept(tried(tmp_path, source=query))
        assert model.header["data_stats"]["n_rows"] == sum(map(len, baskets))
        assert (model.n_users, model.n_items) == (24, 12)


def test_a_table_with_a_misspelt_column_is_neither(tmp_path: Path) -> None:
    """The usual error names the columns of the table."""
    write_csv(tmp_path / "rows.csv", choices(), "user_id,item")
    error = both_refuse(tried(tmp_path))
    assert "has no column item_id" in error
    assert "duckdb" not in error
