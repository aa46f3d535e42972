"""The iceberg source: the rows of one snapshot, by the library pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from svc.errors import DataSourceError, RecipeError
from svc.recipe.filter_tree import parse_row_filter
from svc.training.data.where import fetch_kept

pytestmark = pytest.mark.filterwarnings("ignore")  # of pyiceberg and SQLAlchemy
IDS = ("user_id", "item_id")


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Yield a table of a catalog in SQLite, from which one of its four rows was deleted."""
    with load_catalog("default", **options(tmp_path)) as catalog:
        catalog.create_namespace("shop")
        rows = pa.table({"user_id": ["a", "b", "c"], "item_id": [1, 2, 3], "rating": pa.array([1, 2, 5], pa.int32())})
        made = catalog.create_table("shop.events", schema=rows.schema)
        made.append(rows)
        made.append(rows.slice(2, 1).set_column(0, "user_id", pa.array(["d"])))
        made.delete("user_id == 'a'")
        yield made


def options(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/lake"}


def test_the_current_rows_are_read(make: Any, tmp_path: Path, table: Any) -> None:
    """The table is named by a metadata file, or by its name in a catalog. Deleted rows are left out."""
    file = table.metadata_location
    for given in ({"path": file}, {"table": "shop.events", "catalog": options(tmp_path)}):
        source = make("iceberg", columns=("rating", *IDS), **given)
        frame = source.fetch().astype({"user_id": str}).sort_values("user_id")
        assert list(frame.columns) == ["rating", *IDS]
        assert frame["user_id"].to_list() == ["b", "c", "d"]
        assert frame["item_id"].to_list() == ["2", "3", "3"]
        assert source.fetch_arrow().num_rows == 3
        assert source.probe()[0].endswith(": readable, 3 rows")
        assert len(source.sample(2)) == 2
    first = table.snapshots()[0].snapshot_id
    relative = file.removeprefix(f"file://{tmp_path}/")
    assert len(make("iceberg", path=relative, snapshot=first, columns=IDS).fetch()) == 3


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"rating": {"gte": 1.5}}, ["b", "c", "d"]),
        ({"rating": {"gt": 2}}, ["c", "d"]),
        ({"rating": {"eq": 2}}, ["b"]),
        ({"rating": {"eq": 2.5}}, []),
        ({"rating": {"lt": 1e30}}, ["b", "c", "d"]),
        ({"all": [{"rating": {"lte": 5}}, {"user_id": {"any": ["c", "x"]}}]}, ["c"]),
        ({"not": {"rating": {"gte": 3}}}, ["b"]),
    ],
)
def test_row_filters_are_pushed_down(make: Any, table: Any, where: dict[str, Any], kept: list[str]) -> None:
    """The wanted rows are kept exactly, and all rows count."""
    wanted = parse_row_filter(where)
    columns = tuple(dict.fromkeys((*IDS, *wanted.kinds)))
    rows = fetch_kept(make("iceberg", path=table.metadata_location, columns=columns), wanted)
    assert sorted(rows.frame["user_id"]) == kept
    assert rows.n_dropped == 3 - len(kept)


def test_faults_are_named(make: Any, tmp_path: Path, table: Any) -> None:
    """A missing file, table, snapshot or column, and the folder in place of the file."""
    file, catalog = table.metadata_location, options(tmp_path)
    for given, words in (
        ({"path": "absent.metadata.json"}, "absent.metadata.json does not exist"),
        ({"path": "lake/shop/events"}, r"is a folder; name a metadata file .*its newest, metadata/00003-.*json, or a"),
        ({"path": file, "snapshot": 5}, r"has no snapshot 5; its latest are [0-9]+, [0-9]+, [0-9]+"),
        ({"path": file, "columns": ("user", "item_id")}, "has no column user; did you mean 'user_id'"),
        ({"table": "shop.sales", "catalog": catalog}, "iceberg: NoSuchTableError: .*shop.sales"),
        ({"table": "shop.events", "catalog": {"type": "nothing"}}, "iceberg: ValueError"),
    ):
        with pytest.raises(DataSourceError, match=words):
            make("iceberg", **given).fetch()
    (tmp_path / "a.metadata.json").write_text("{}")
    with pytest.raises(DataSourceError, match="iceberg: "):
        make("iceberg", path="a.metadata.json").fetch()
    for name, value in (("token", "abc"), ("s3.secret-access-key", "abc"), ("uri", "postgresql://u:pw@host/db")):
        with pytest.raises(RecipeError, match=rf"catalog\.{name} looks like a secret, .*PYICEBERG_CATALOG__DEFAULT__"):
            make("iceberg", table="shop.events", catalog={name: value})
    with pytest.raises(RecipeError, match="which http"):
        make("iceberg", path="https://host/a.metadata.json")
    for given in ({}, {"path": file, "table": "shop.events"}):
        with pytest.raises(RecipeError, match="name the table by `path`, its metadata file, or by `table`"):
            make("iceberg", **given)
