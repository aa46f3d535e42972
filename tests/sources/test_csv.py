"""Csv files: ids as written, types by content, and every way to be broken."""

from __future__ import annotations

import bz2
import gzip
import hashlib
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from svc.errors import DataSourceError, RecipeError

IDS = ("user_id", "item_id")


def write(folder: Path, data: bytes | str, name: str = "a.csv") -> str:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return name


def test_ids_stay_as_written(make: Any, tmp_path: Path) -> None:
    """Leading zeros, decimals, blanks and quotes are kept; order of first appearance."""
    path = write(tmp_path, 'user_id,item_id\n01,1.0\n,b\n01,NA\n"a\nb",é\n')
    frame = make("csv", path=path, columns=IDS).fetch()
    assert frame["user_id"].cat.categories.to_list() == ["01", "", "a\nb"]
    assert frame["user_id"].cat.codes.to_list() == [0, 1, 0, 2]
    assert frame["item_id"].to_list() == ["1.0", "b", "NA", "é"]


def test_other_columns_are_typed_by_all_their_rows(make: Any, tmp_path: Path) -> None:
    """Whole numbers with gaps stay whole; one word makes a column text; blanks are missing."""
    rows = "".join(f"{k},{k},{k}.5,true,{k}\n" for k in range(3))
    path = write(tmp_path, f"user_id,year,price,new,mixed\n{rows}9,,,,word\n")
    frame = make("csv", path=path, purpose="features").fetch()
    assert str(frame["year"].dtype) == "Int64"
    assert frame["price"].isna().to_list() == [False, False, False, True]
    assert frame["new"].to_list()[:3] == [True, True, True]
    assert frame["mixed"].to_list() == ["0", "1", "2", "word"]
    assert frame["year"].isna().sum() == 1


def test_only_wanted_columns_in_their_order(make: Any, tmp_path: Path) -> None:
    """Others are not even converted."""
    path = write(tmp_path, "x,item_id,user_id\nz,i,u\n")
    assert list(make("csv", path=path, columns=("user_id", "item_id", "user_id")).fetch().columns) == [
        "user_id",
        "item_id",
    ]


def test_pinned_types(make: Any, tmp_path: Path) -> None:
    """`dtype` decides; ids pinned as integers lose their zeros because the recipe says so."""
    path = write(tmp_path, "user_id,zip,t\n007,01234,2024-01-02T03:04:05\n")
    frame = make("csv", path=path, dtype={"user_id": "int", "zip": "str", "t": "datetime"}).fetch()
    assert frame["user_id"].to_list() == ["7"]
    assert frame["zip"].to_list() == ["01234"]
    assert frame["t"][0] == pd.Timestamp("2024-01-02T03:04:05")
    with pytest.raises(DataSourceError, match="has no column absent"):
        make("csv", path=path, dtype={"absent": "str"}).fetch()


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ("user_id;item_id\n1;é\n", {"delimiter": ";"}),
        ("user_id\titem_id\n1\té\n", {"delimiter": "\t"}),
        ("user_id,item_id\n1,é\n".encode("latin-1"), {"encoding": "latin-1"}),
        ("user_id,item_id\n1,é\n".encode("utf-16"), {"encoding": "utf-16"}),
        ("\ufeffuser_id,item_id\r\n1,é\r\n", {}),
        ("# exported\n# today\nuser_id,item_id\n1,é\n", {"header": 2}),
        (gzip.compress("user_id,item_id\n1,é\n".encode(), mtime=0), {"compression": "gzip"}),
        (bz2.compress("user_id,item_id\n1,é\n".encode()), {"compression": "bz2"}),
        (pa.compress("user_id,item_id\n1,é\n".encode(), "zstd", asbytes=True), {"compression": "zstd"}),
    ],
)
def test_dialects(make: Any, tmp_path: Path, data: bytes | str, options: dict[str, Any]) -> None:
    """Delimiters, encodings, line ends, a header row further down, compression."""
    frame = make("csv", path=write(tmp_path, data), columns=IDS, **options).fetch()
    assert frame.astype(str).to_numpy().tolist() == [["1", "é"]]


def test_files_without_a_header(make: Any, tmp_path: Path) -> None:
    """`header: null` names columns 0, 1, ...; forgetting it gives an error that says so."""
    path = write(tmp_path, "1,a\n2,b\n")
    frame = make("csv", path=path, header=None, columns=("0", "1"), text=("0", "1")).fetch()
    assert frame["1"].to_list() == ["a", "b"]
    with pytest.raises(DataSourceError, match=r"has no columns user_id, item_id; it has 1, a; .*header: null"):
        make("csv", path=path, columns=IDS).fetch()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"user_id,item_id\n1,2\n3\n", "Expected 2 columns, got 1"),
        (b"user_id,item_id\n1,2,3\n", "Expected 2 columns, got 3"),
        (b"user_id,user_id\n1,2\n", "two columns called user_id"),
        (b"user_id,item_id\n\xff,2\n", "encoding"),
        (gzip.compress(b"user_id,item_id\n" + b"1,2\n" * 9999, mtime=0)[:-20], "Truncated|cannot be"),
    ],
)
def test_broken_files(make: Any, tmp_path: Path, data: bytes, words: str) -> None:
    """Each says what is wrong and where."""
    compression = "gzip" if data[:2] == b"\x1f\x8b" else "none"
    with pytest.raises(DataSourceError, match=words) as caught:
        make("csv", path=write(tmp_path, data), compression=compression).fetch()
    assert str(tmp_path) in caught.value.message


def test_no_rows_are_no_error(make: Any, tmp_path: Path) -> None:
    """A header alone is an empty table with its columns; training decides what that means."""
    frame = make("csv", path=write(tmp_path, "user_id,item_id\n"), columns=IDS).fetch()
    assert list(frame.columns) == list(IDS)
    assert len(frame) == 0


def test_missing_files_folders_and_digests(make: Any, tmp_path: Path) -> None:
    """The path is in the message; a digest is always verified."""
    for path, words in (("none.csv", "does not exist"), (".", "is a folder"), ("/dev/zero", "no regular file")):
        with pytest.raises(DataSourceError, match=words):
            make("csv", path=path).fetch()
    path = write(tmp_path, "user_id\n1\n")
    digest = hashlib.sha256(b"user_id\n1\n").hexdigest().upper()
    assert len(make("csv", path=path, sha256=digest).fetch()) == 1
    with pytest.raises(DataSourceError, match="not the expected file"):
        make("csv", path=path, sha256="0" * 64).fetch()


def test_progress_counts_rows(make: Any, tmp_path: Path) -> None:
    """The sum of what progress hears is the number of rows."""
    heard: list[int] = []
    path = write(tmp_path, "user_id,item_id\n" + "1,2\n" * 1000)
    make("csv", path=path, progress=heard.append).fetch()
    assert sum(heard) == 1000


def test_wrong_options_name_the_nearest(make: Any) -> None:
    """Options are checked before anything is read."""
    with pytest.raises(RecipeError, match="did you mean `delimiter`"):
        make("csv", path="a.csv", delimeter=";")
    with pytest.raises(RecipeError, match="did you mean 'parquet'"):
        make("parket", path="a")
