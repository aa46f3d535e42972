"""The csv source: ids as written, inferred types, and messages for broken files."""

from __future__ import annotations

import bz2
import gzip
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError, RecipeError
from svc.sources.csv import (
    DTYPES,
    MAX_LINE_CHARACTERS,
    by_content,
    encoding_hint,
    find_fault,
    header_hint,
    text_with_gaps,
)

IDS = ("user_id", "item_id")


def write(folder: Path, data: bytes | str, name: str = "a.csv") -> str:
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return name


def test_ids_stay_as_written(make: Any, tmp_path: Path) -> None:
    """Leading zeros, decimals, blanks and quotes are kept, and categories are in order of first appearance."""
    path = write(tmp_path, 'user_id,item_id\n01,1.0\n,b\n01,NA\n"a\nb",é\n')
    frame = make("csv", path=path, columns=IDS).fetch()
    assert frame["user_id"].cat.categories.to_list() == ["01", "", "a\nb"]
    assert frame["user_id"].cat.codes.to_list() == [0, 1, 0, 2]
    assert frame["item_id"].to_list() == ["1.0", "b", "NA", "é"]


def test_other_columns_are_typed_by_all_their_rows(make: Any, tmp_path: Path) -> None:
    """Integers with gaps stay integers, one word makes a column text, and blanks are missing."""
    rows = "".join(f"{k},{k},{k}.5,true,{k}\n" for k in range(3))
    path = write(tmp_path, f"user_id,year,price,new,mixed\n{rows}9,,,,word\n")
    frame = make("csv", path=path, purpose="features").fetch()
    assert str(frame["year"].dtype) == "Int64"
    assert frame["price"].isna().to_list() == [False, False, False, True]
    assert frame["new"].to_list()[:3] == [True, True, True]
    assert frame["mixed"].to_list() == ["0", "1", "2", "word"]
    assert frame["year"].isna().sum() == 1


def test_only_wanted_columns_are_read_in_their_order(make: Any, tmp_path: Path) -> None:
    """Other columns are not converted."""
    path = write(tmp_path, "x,item_id,user_id\nz,i,u\n")
    assert list(make("csv", path=path, columns=("user_id", "item_id", "user_id")).fetch().columns) == [
        "user_id",
        "item_id",
    ]


def test_dtype_sets_the_types_of_columns(make: Any, tmp_path: Path) -> None:
    """An id column with an integer type loses its leading zeros."""
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
def test_csv_dialects_are_read(make: Any, tmp_path: Path, data: bytes | str, options: dict[str, Any]) -> None:
    """Delimiters, encodings, line ends, a later header row and compression are supported."""
    frame = make("csv", path=write(tmp_path, data), columns=IDS, **options).fetch()
    assert frame.astype(str).to_numpy().tolist() == [["1", "é"]]


def test_files_without_a_header_are_read(make: Any, tmp_path: Path) -> None:
    """`header: null` names the columns 0, 1, and so on. Without this option, the error suggests it."""
    path = write(tmp_path, "1,a\n2,b\n")
    frame = make("csv", path=path, header=None, columns=("0", "1"), text=("0", "1")).fetch()
    assert frame["1"].to_list() == ["a", "b"]
    with pytest.raises(DataSourceError, match=r"has no columns user_id, item_id; it has 1, a; .*header: null"):
        make("csv", path=path, columns=IDS).fetch()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\nuser_id,item_id\n1,2\n", "has nothing in row 0: `header` is the row of the column names"),
        (b"user_id,item_id\n1,2\n3\n", "line 3 has 1 field, but the header has 2: '3'"),
        (b"user_id,item_id\n1,2,3\n", "line 2 has 3 fields, but the header has 2: '1,2,3'"),
        (b'user_id,item_id\n1,2\n\n3,"4\n5,6\n', "line 4 opens a quote that nothing closes"),
        (
            b'user_id,item_id\n1,"2\n' + b"3,4\n" * 40_000,
            "line 2 has a value of .* may open a quote",
        ),
        ("user_id,item_id\n1,2\n".encode("utf-16"), "it is UTF-16: set `encoding: utf-16`"),
        (b"user_id,user_id\n1,2\n", "two columns called user_id"),
        (b"user_id,item_id\n\xff,2\n", "encoding"),
        (gzip.compress(b"user_id,item_id\n" + b"1,2\n" * 9999, mtime=0)[:-20], "Truncated|cannot be"),
    ],
)
def test_broken_files_are_refused_with_place_and_reason(make: Any, tmp_path: Path, data: bytes, words: str) -> None:
    """The message names the file, the line and the problem."""
    compression = "gzip" if data[:2] == b"\x1f\x8b" else "none"
    with pytest.raises(DataSourceError, match=words) as caught:
        make("csv", path=write(tmp_path, data), compression=compression).fetch()
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("user_id;item_id\n1;2\n", 'a semicolon separates the columns: set `delimiter: ";"`'),
        ("user_id\titem_id\n1\t2\n", r'a tab separates the columns: set `delimiter: "\t"`'),
        (" user_id , item_id \n1,2\n", "it has ' user_id ', ' item_id '"),
        ("user_id,item_id\n1,2\n".encode("utf-16-le"), "set `encoding: utf-16-le`"),
    ],
)
def test_wrong_delimiters_and_encodings_in_headers_get_hints(
    make: Any, tmp_path: Path, data: bytes | str, words: str
) -> None:
    """The message shows the column names that were read and the option to set."""
    with pytest.raises(DataSourceError) as caught:
        make("csv", path=write(tmp_path, data), columns=IDS).fetch()
    assert words in caught.value.message


def test_a_file_without_rows_is_an_empty_table(make: Any, tmp_path: Path) -> None:
    """The table has its columns, and reading it is no error."""
    frame = make("csv", path=write(tmp_path, "user_id,item_id\n"), columns=IDS).fetch()
    assert list(frame.columns) == list(IDS)
    assert len(frame) == 0


def test_progress_counts_rows(make: Any, tmp_path: Path) -> None:
    """The reported numbers add up to the number of rows."""
    heard: list[int] = []
    path = write(tmp_path, "user_id,item_id\n" + "1,2\n" * 1000)
    make("csv", path=path, progress=heard.append).fetch()
    assert sum(heard) == 1000


def test_unknown_options_get_a_suggestion(make: Any) -> None:
    """Options are checked before anything is read."""
    with pytest.raises(RecipeError, match="did you mean `delimiter`"):
        make("csv", path="a.csv", delimeter=";")
    with pytest.raises(RecipeError, match="did you mean 'parquet'"):
        make("parket", path="a")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a,b\n1,2\n\n3,4\n", None),
        ("a,b\n1,2,3\n", "line 2 has 3 fields, but the header has 2: '1,2,3'"),
        ("a,b\n1\n", "line 2 has 1 field, but the header has 2: '1'"),
        ('a,b\n"1\n2",3\n4\n', "line 4 has 1 field, but the header has 2: '4'"),
        ('a,b\n1,"2\n3,4\n', "line 2 opens a quote that nothing closes"),
        (f"a,b\n1,{'x' * 140_000}\n", "line 2 has a value of more than 131072 characters"),
        (f"a,b\n{'x' * MAX_LINE_CHARACTERS}x\n", f"line 2: the line has more than {MAX_LINE_CHARACTERS} characters"),
    ],
)
def test_the_first_malformed_line_is_named(text: str, fault: str | None) -> None:
    """Lines are counted as in an editor, also after a value of several lines."""
    assert find_fault(io.StringIO(text, newline=""), ",", 2) == fault


def test_a_header_with_one_column_suggests_the_delimiter() -> None:
    """A tab is written as in YAML. A valid header gets no hint."""
    assert 'set `delimiter: ";"`' in header_hint(["user;item"], ",")
    assert 'set `delimiter: "\\t"`' in header_hint(["user\titem"], ",")
    assert header_hint(["user", "item"], ",") == header_hint(["user"], ",") == ""
    assert "UTF-16" in header_hint(["u\0s\0e\0r\0"], ",")


def test_a_byte_order_mark_suggests_the_encoding() -> None:
    """The first bytes of compressed and of Parquet files suggest other options. Else the hint suggests latin-1."""
    assert "utf-16" in encoding_hint("user".encode("utf-16"))
    assert "utf-8" in encoding_hint(b"\xef\xbb\xbfuser")
    assert "latin-1" in encoding_hint("größe".encode("latin-1"))
    assert "`compression: gzip`" in encoding_hint(gzip.compress(b"user"))
    assert "`compression: zstd`" in encoding_hint(pa.compress(b"user", "zstd", asbytes=True))
    assert "`type: parquet`" in encoding_hint(b"PAR1\x15")


def test_an_excel_file_is_named_as_one(make: Any, tmp_path: Path) -> None:
    """The file is recognized by its first bytes, and the error says to save the sheet as CSV."""
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(DataSourceError, match="is an Excel file, which svc does not read: save the sheet as CSV"):
        make("csv", path=str(path), columns=IDS).fetch()


def texts(*values: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.string())])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("1", "2"), [1, 2]),
        (("1", "NA"), [1, None]),
        (("1", "2.5"), [1.0, 2.5]),
        (("True", "false", ""), [True, False, None]),
        (("1", "x", ""), ["1", "x", None]),
        (("NA", "x"), ["NA", "x"]),
        (("", ""), [None, None]),
        (("007", "x"), ["007", "x"]),
        (("0x10", "10"), ["0x10", "10"]),
        (("0XFF", ""), ["0XFF", None]),
    ],
)
def test_all_rows_decide_the_type(values: tuple[str, ...], expected: list[object]) -> None:
    """One value of another kind makes the column text, in which NA and null are words."""
    assert by_content(texts(*values)).to_pylist() == expected


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=10))
def test_integers_keep_every_digit(values: list[int]) -> None:
    """Integers of 64 bits are never read as floats, which have 53 bits."""
    assert by_content(texts(*map(str, values))).to_pylist() == values


def test_dtype_names_map_to_arrow_types() -> None:
    """`str` and `string` mean the same type, and so do `int` and `int64`."""
    assert DTYPES["str"] == DTYPES["string"] == pa.string()
    assert DTYPES["int"] == DTYPES["int64"] == pa.int64()


def test_blanks_in_text_columns_are_missing() -> None:
    """Words such as null stay text, because they may be names."""
    assert text_with_gaps(texts("null", "")).to_pylist() == ["null", None]
