"""The duckdb source: one SELECT over local files and databases, which neither writes nor reaches the network."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import ConfigError, DataSourceError, RecipeError, SourceTooLarge
from svc.settings import Settings

IDS = ("user_id", "item_id")
SELECT = "SELECT user_id, item_id FROM 'sales.csv'"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a table as csv and Parquet and into a database, and work in another folder."""
    (tmp_path / "sales.csv").write_text("user_id,item_id,n\nu1,007,1\nu1,008,2\nu2,007,3\n")
    pq.write_table(pa.table({"item_id": ["007", "008"], "price": [1.5, None]}), tmp_path / "items.parquet")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        database.execute("CREATE TABLE sales AS SELECT 'u' || k AS user_id, k AS item_id FROM range(5) t(k)")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def test_a_query_joins_files_of_the_recipes_folder(make: Any) -> None:
    """Parameters are bound by name, and types are those of the query."""
    query = (
        "SELECT s.user_id, s.item_id, price, sum(n) AS n, date '2024-05-31' AS day FROM read_csv('sales.csv', "
        "all_varchar = false, types = {'item_id': 'VARCHAR'}) s JOIN 'items.parquet' USING (item_id) "
        "WHERE user_id = $user GROUP BY ALL ORDER BY item_id"
    )
    source = make("duckdb", query=query, query_parameters={"user": "u1"}, columns=(*IDS, "n", "price", "day"))
    frame = source.fetch()
    assert frame["item_id"].to_list() == ["007", "008"]
    assert frame["n"].to_list() == [1, 2]
    assert frame["price"].isna().to_list() == [False, True]
    assert frame["day"].to_list() == [pd.Timestamp("2024-05-31")] * 2
    assert source.fetch_arrow()["item_id"].to_pylist() == ["007", "008"]
    lines = source.probe_and_sample(1)
    assert next(lines) == "query: runs, has the columns user_id, item_id, n, price, day"
    with pytest.raises(StopIteration) as ended:
        next(lines)
    assert len(ended.value.value) == 1


def test_a_database_is_opened_to_read(make: Any, tmp_path: Path) -> None:
    """Its path is relative to the recipe. Another process may read it at the same time. Nothing is written."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    source = make("duckdb", database="shop.duckdb", query="FROM sales ORDER BY item_id", columns=IDS)
    assert source.fetch()["item_id"].to_list() == ["0", "1", "2", "3", "4"]
    other = make("duckdb", query="FROM read_duckdb('shop.duckdb', table_name = 'sales')", columns=IDS)
    assert len(other.fetch()) == 5
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    with pytest.raises(DataSourceError, match=r"none\.duckdb does not exist"):
        make("duckdb", database="none.duckdb", query="FROM sales").fetch()
    with pytest.raises(DataSourceError, match="duckdb: "):
        make("duckdb", database="sales.csv", query="FROM sales").fetch()
    with pytest.raises(RecipeError, match="database"):
        make("duckdb", database="s3://bucket/shop.duckdb", query="FROM sales")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT 1; SELECT 2", "must be one SELECT, and is SELECT, SELECT"),
        ("-- nothing", "must be one SELECT, and is empty"),
        ("COPY (SELECT 1) TO 'out.csv'", "must be one SELECT, and is COPY"),
        ("ATTACH 'other.duckdb'", "must be one SELECT, and is ATTACH"),
        ("INSTALL httpfs", "must be one SELECT, and is LOAD"),
        ("SET threads = 1", "must be one SELECT, and is SET"),
        ("PRAGMA version", "must be one SELECT, and is PRAGMA"),
        ("CREATE TABLE t AS SELECT 1", "must be one SELECT, and is CREATE"),
        ("INSERT INTO sales VALUES (1) RETURNING 1", "must be one SELECT, and is INSERT"),
        ("SELECT * FROM query('COPY (SELECT 1) TO ''out.csv''')", "Expected a single SELECT"),
        ("SELEC 1", "duckdb: Parser Error"),
        ("SELECT user_id FROM absent", "duckdb: Catalog Error: Table with name absent does not exist"),
        ("FROM 'absent.csv'", "absent.csv"),
        ("FROM 'https://localhost:9/a.csv'", "httpfs"),
        ("FROM 's3://bucket/a.parquet'", "httpfs"),
        ("FROM frame", "Table with name frame does not exist"),
        ("SELECT $a, $b", r"query_parameters has no 'a' for `\$a`"),
        ("SELECT 1 AS x", "the query's result has no columns user_id, item_id; it has x"),
        ("SELECT error('gone') AS user_id, 1 AS item_id", "gone"),
    ],
)
def test_other_queries_are_refused(make: Any, tmp_path: Path, query: str, words: str) -> None:
    """DuckDB's parser decides, before anything runs. Faults of a query are named by DuckDB's own message."""
    frame = pd.DataFrame({"user_id": ["u"], "item_id": ["i"]})
    assert len(frame) == 1
    with pytest.raises(DataSourceError, match=words):
        make("duckdb", query=query, columns=IDS).fetch()
    assert not list((tmp_path / "work").iterdir())


def test_functions_of_a_query_change_nothing(make: Any, tmp_path: Path) -> None:
    """Some functions configure DuckDB. The configuration is locked, and no file is written."""
    before = sorted(tmp_path.rglob("*"))
    log = f"SELECT * FROM enable_logging(storage = 'file', storage_path = '{tmp_path}/log')"
    for query in (log, "SELECT * FROM force_checkpoint()", "SELECT set_config('threads', '1')"):
        try:
            make("duckdb", query=query, columns=None).fetch()
        except DataSourceError:
            continue
    assert sorted(tmp_path.rglob("*")) == before


def test_parameters_that_the_query_lacks_are_named(make: Any) -> None:
    """A misspelt name would be bound to nothing."""
    with pytest.raises(DataSourceError, match=r"query: has no `\$user`; write `\$name` for a parameter"):
        make("duckdb", query=SELECT, query_parameters={"user": 1}).fetch()


def test_a_file_of_the_working_folder_is_never_read_in_place(make: Any, tmp_path: Path) -> None:
    """DuckDB prefers it to the file in the recipe's folder, so the query must name the file in full."""
    (tmp_path / "work" / "sales.csv").write_text("user_id,item_id\nother,1\n")
    for options in ({"query": SELECT}, {"query": "FROM read_csv($file)", "query_parameters": {"file": "sales.csv"}}):
        with pytest.raises(DataSourceError, match=rf"'sales\.csv' is also a file .*: write {tmp_path}/sales\.csv"):
            make("duckdb", columns=IDS, **options).fetch()
    assert len(make("duckdb", query=f"FROM '{tmp_path}/sales.csv'", columns=IDS).fetch()) == 3


def test_ids_and_rows_are_checked_as_those_of_other_queries(make: Any) -> None:
    """Floats are refused as ids, and SVC_MAX_SQL_ROWS bounds the rows."""
    with pytest.raises(DataSourceError, match="the id column user_id holds floating point numbers"):
        make("duckdb", query="SELECT 1.5::DOUBLE AS user_id, 1 AS item_id", columns=IDS).fetch()
    with pytest.raises(SourceTooLarge, match="more than 2 rows: SVC_MAX_SQL_ROWS"):
        make("duckdb", query=SELECT, columns=IDS, settings=Settings(max_sql_rows=2)).fetch()
    ids = make("duckdb", query="SELECT 5::HUGEINT AS user_id, 'a'::ENUM('a') AS item_id, time '08:30' AS t").fetch()
    assert ids.to_numpy().tolist() == [["5", "a", datetime.time(8, 30)]]


def test_the_extra_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, the error says what to install."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"duckdb needs an extra: .*\[duckdb\]"):
        make("duckdb", query=SELECT).fetch()


def test_a_comma_in_the_folder_is_refused(tmp_path: Path) -> None:
    """DuckDB would search in two other folders."""
    from svc.recipe.source_options import SourceSpec
    from svc.sources.base import SourceContext, build_source

    context = SourceContext(tmp_path / "a,b", Settings(), IDS, frozenset(IDS), "interactions", {}, None)
    with pytest.raises(DataSourceError, match="a,b: DuckDB takes a comma"):
        build_source(SourceSpec(type="duckdb", query=SELECT), context).fetch()  # type: ignore[call-arg]
