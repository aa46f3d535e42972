"""The delta source: the rows of one version, by the library deltalake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from svc.errors import ConfigError, DataSourceError
from svc.recipe.filter_tree import parse_row_filter
from svc.sources.table import TableBuilder
from svc.training.data.where import fetch_kept

IDS = ("user_id", "item_id")


def write(folder: Path) -> None:
    """Write a table of four rows and a partition column, and remove one row of it."""
    rows = {"user_id": ["a", "b", "c"], "item_id": [1, 2, 3], "day": [7, 7, 8], "rating": [1.0, 2.5, 5.0]}
    deltalake.write_deltalake(folder, pa.table(rows), partition_by=["day"])
    more = pa.table({"user_id": ["d"], "item_id": [4], "day": [7], "rating": [3.0], "note": ["x"]})
    deltalake.write_deltalake(folder, more, mode="append", schema_mode="merge")
    deltalake.DeltaTable(folder).delete("user_id = 'a'")


def test_the_current_rows_are_read(make: Any, tmp_path: Path) -> None:
    """Removed rows are left out, columns that old files lack are missing, and partitions keep their type."""
    write(tmp_path / "events")
    source = make("delta", path="events", columns=(*IDS, "day", "note"))
    frame = source.fetch().astype({"user_id": str}).sort_values("user_id")
    assert frame["user_id"].to_list() == ["b", "c", "d"]
    assert frame["item_id"].to_list() == ["2", "3", "4"]
    assert frame["day"].to_list() == [7, 8, 7]
    assert frame["note"].isna().to_list() == [True, True, False]
    assert source.fetch_arrow().num_rows == 3
    assert source.probe() == [
        f"{tmp_path}/events, version 2: readable, 3 rows",
        f"{tmp_path}/events, version 2: has the columns user_id, item_id, day, note",
    ]
    assert len(source.sample(2)) == 2
    first = make("delta", path=f"file://{tmp_path}/events", version=0, columns=IDS)
    assert sorted(first.fetch()["user_id"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ({"rating": {"gte": 2.5}}, (["b", "c", "d"], 3)),
        ({"rating": {"gt": 2.5}}, (["c", "d"], 3)),
        ({"all": [{"rating": {"gt": 2.5}}, {"day": {"eq": 8}}]}, (["c"], 1)),
        ({"any": [{"user_id": {"any": ["b"]}}, {"day": {"lt": 8}}]}, (["b", "d"], 3)),
        ({"not": {"rating": {"gte": 2.6}}}, (["b"], 3)),
        ({"note": {"exists": False}}, (["b", "c"], 3)),
        ({"note": {"any": ["x"]}}, (["d"], 1)),
        ({"rating": {"gte": 9}}, ([], 0)),
    ],
)
def test_row_filters_are_pushed_down(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any], rows: tuple[list[str], int]
) -> None:
    """The library returns the second number of rows, which has all wanted rows. All rows count."""
    write(tmp_path / "events")
    n_read: list[int] = []
    add_where = TableBuilder.add_where
    monkeypatch.setattr(
        TableBuilder,
        "add_where",
        lambda self, batch, *filtered: n_read.append(batch.num_rows) or add_where(self, batch, *filtered),
    )
    wanted = parse_row_filter(where)
    columns = tuple(dict.fromkeys((*IDS, *wanted.kinds)))
    kept = fetch_kept(make("delta", path="events", columns=columns), wanted)
    assert (sorted(kept.frame["user_id"]), sum(n_read)) == rows
    assert kept.n_dropped == 3 - len(rows[0])


def test_faults_are_named(make: Any, tmp_path: Path) -> None:
    """A missing table, version or column, a folder without a log, and deletion vectors."""
    write(tmp_path / "events")
    (tmp_path / "plain").mkdir()
    vectors = {"delta.enableDeletionVectors": "true"}
    deltalake.write_deltalake(tmp_path / "vectors", pa.table({"user_id": ["a"]}), configuration=vectors)
    for options, words in (
        ({"path": "absent"}, "absent does not exist"),
        ({"path": "plain"}, "plain holds no folder _delta_log, so it is no Delta table"),
        ({"path": "events", "version": 9}, "delta: DeltaError: .*version 9"),
        ({"path": "events", "columns": ("user", "item_id")}, "events, version 2 has no column user; did you mean"),
        ({"path": "vectors"}, "has deletion vectors, which deltalake does not read: `ALTER TABLE"),
        ({"path": "https://host/events"}, "a Delta table is a folder, which http"),
    ):
        with pytest.raises(DataSourceError, match=words):
            make("delta", **options).fetch()
    next(Path(path) for path in deltalake.DeltaTable(tmp_path / "events").file_uris()).unlink()
    with pytest.raises(DataSourceError, match="delta: FileNotFoundError"):
        make("delta", path="events").fetch()


def test_the_extra_is_named(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library, the error says what to install."""
    write(tmp_path / "events")
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"delta needs an extra: .*\[delta\]"):
        make("delta", path="events").fetch()
