"""The Parquet source: ids, types, columns and samples."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import DataSourceError


def write(folder: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=3)
    return "a.parquet"


def test_integer_ids_become_their_digits(make: Any, tmp_path: Path) -> None:
    """1 becomes '1', never '1.0', also beside a null. Dictionaries are read as their values."""
    items = pa.array(["b", "a", "b", None]).dictionary_encode()
    frame = make("parquet", path=write(tmp_path, user_id=pa.array([1, None, 3, 1]), item_id=items)).fetch()
    assert frame["user_id"].cat.categories.to_list() == ["1", "3"]
    assert frame["user_id"].cat.codes.to_list() == [0, -1, 1, 0]
    assert frame["item_id"].cat.categories.to_list() == ["b", "a"]


def test_text_ids_are_in_order_of_first_appearance(make: Any, tmp_path: Path) -> None:
    """Neither the order of a file's dictionary nor its unused texts have an effect."""
    indices = pa.array([3, None, 1, 3, 0, 1, 2, 3], pa.int32())
    items = pa.DictionaryArray.from_arrays(indices, ["a", "b", "c", "d", "never"])
    users = [f"u{k}" for k in (5, 5, 1, 1, 9, 0, 5, 9)]
    frame = make("parquet", path=write(tmp_path, user_id=users, item_id=items)).fetch()
    assert frame["item_id"].cat.categories.to_list() == ["d", "b", "a", "c"]
    assert frame["item_id"].astype(object).where(frame["item_id"].notna(), None).to_list() == items.to_pylist()
    assert frame["user_id"].cat.categories.to_list() == ["u5", "u1", "u9", "u0"]
    assert frame["user_id"].to_list() == users


@pytest.mark.parametrize("waiting_bytes", [1, 5000, 1 << 30])
def test_dictionaries_and_plain_text_give_the_same_ids(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waiting_bytes: int
) -> None:
    """A Parquet file with dictionaries and a csv file give the same categories, for any number of batches."""
    monkeypatch.setattr("svc.sources.table._WAITING_BYTES", waiting_bytes)
    monkeypatch.setattr("svc.sources.parquet._BATCH_ROWS", 100)
    ids = [f"i{k * k % 331}" for k in range(2000)]
    pq.write_table(pa.table({"user_id": ids, "item_id": ids[::-1]}), tmp_path / "a.parquet", row_group_size=300)
    (tmp_path / "a.csv").write_text(
        "user_id,item_id\n" + "".join(f"{u},{i}\n" for u, i in zip(ids, ids[::-1], strict=True))
    )
    pd.testing.assert_frame_equal(make("parquet", path="a.parquet").fetch(), make("csv", path="a.csv").fetch())


def test_floating_point_ids_are_refused(make: Any, tmp_path: Path) -> None:
    """The message says how to keep ids integers."""
    with pytest.raises(DataSourceError, match=r"user_id holds floating point.*integers or text"):
        make("parquet", path=write(tmp_path, user_id=[1.0, 2.0])).fetch()


def test_other_columns_have_natural_types(make: Any, tmp_path: Path) -> None:
    """Integers with gaps stay integers, times are timestamps, lists are arrays, and decimals are the nearest floats."""
    times = pa.array([0, 1], pa.timestamp("ms"))
    prices = pa.array([Decimal("0.35"), Decimal("0.70")], pa.decimal128(10, 2))
    path = write(tmp_path, user_id=["u", "v"], year=pa.array([1999, None]), t=times, tags=[["a"], []], price=prices)
    frame = make("parquet", path=path).fetch()
    assert list(frame["price"]) == [0.35, 0.7]
    assert str(frame["year"].dtype) == "Int64"
    assert frame["t"][1] == pd.Timestamp("1970-01-01T00:00:00.001")
    assert list(frame["tags"][0]) == ["a"]


def test_only_wanted_columns_are_read(make: Any, tmp_path: Path) -> None:
    """A missing column, and a file that is no Parquet file, are errors."""
    path = write(tmp_path, x=[1], user_id=["u"], item_id=["i"])
    source = make("parquet", path=path, columns=("item_id", "user_id"))
    assert list(source.fetch().columns) == ["item_id", "user_id"]
    assert any("1 rows" in line for line in source.probe())
    with pytest.raises(DataSourceError, match="has no column absent; it has x, user_id, item_id"):
        make("parquet", path=path, columns=("absent",)).probe()
    (tmp_path / "b.parquet").write_text("no parquet at all")
    with pytest.raises(DataSourceError, match="not a readable Parquet file"):
        make("parquet", path="b.parquet").fetch()


def spoil(path: Path, *, from_group: int, share: float = 1.0) -> None:
    """Overwrite the last `share` of each column's pages, from one row group on, without the footer."""
    footer, data = pq.read_metadata(path), bytearray(path.read_bytes())
    for group in range(from_group, footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            starts = (column.dictionary_page_offset, column.data_page_offset)
            begin, length = min(start for start in starts if start), column.total_compressed_size
            end = begin + length
            data[end - int(length * share) : end] = b"\xff" * int(length * share)
    path.write_bytes(data)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("spoilt", [(700, 2, 1.0), (200_000, 0, 0.5)])
def test_a_sample_reads_no_further_than_its_rows(
    make: Any, tmp_path: Path, spoilt: tuple[int, int, float], many: bool
) -> None:
    """A sample reads no later row groups, no later pages of a large one, and only the first file of a folder."""
    n, (group_rows, from_group, share) = 200_000, spoilt
    (tmp_path / "day=1").mkdir()
    table = pa.table({"user_id": [f"u{k}" for k in range(n)], "item_id": range(n), "ts": range(n)})
    path = tmp_path / "day=1" / "a.parquet"
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False, compression=None)
    spoil(path, from_group=from_group, share=share)
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "a.parquet").write_text("no parquet at all")
    name = "day=*" if many else "day=1/a.parquet"
    frame = make("parquet", path=name, columns=("ts", "item_id", "user_id")).sample(1000)
    assert frame["ts"].to_list() == list(range(1000))
    assert frame["user_id"].to_list() == [f"u{k}" for k in range(1000)]
    assert list(frame.columns) == ["ts", "item_id", "user_id"]
    with pytest.raises(DataSourceError):
        make("parquet", path=name).fetch()


def test_a_sample_of_a_short_file_has_all_rows(make: Any, tmp_path: Path) -> None:
    """The sample equals the result of `fetch`. Ids that `fetch` refuses are refused."""
    source = make("parquet", path=write(tmp_path, user_id=[1, None, 3, 1], item_id=["b", "a", "b", None]))
    pd.testing.assert_frame_equal(source.sample(1000), source.fetch())
    assert len(source.sample(2)) == 2
    with pytest.raises(DataSourceError, match="floating point"):
        make("parquet", path=write(tmp_path, user_id=[1.0])).sample(1)
