"""The csv source: ids as written, inferred types, and messages for broken files."""

from __future__ import annotations

import bz2
import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from svc.errors import DataSourceError, RecipeError
from svc.sources.csv import encoding_hint, find_fault, header_hint
from svc.sources.text_files import MAX_LINE_CHARACTERS

IDS = ("user_id", "item_id")


def zipped(members: dict[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


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
        ("user_id::item_id\n1::é\n", {"delimiter": "::"}),
        ("user_id||item_id\r\n1||é".encode("utf-16"), {"delimiter": "||", "encoding": "utf-16"}),
        ("\ufeffuser_id,item_id\r\n1,é\r\n", {}),
        ("exported, from, x\nuser_id,item_id\n1,é\n", {"skip_rows": 1}),
        ("exported\n# today\nuser_id,item_id\n1,é\n", {"skip_rows": 1, "header": 1}),
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
    above = write(tmp_path, "3 ratings\n\n1,a\n2,b\n", "counts.csv")
    frame = make("csv", path=above, header=None, skip_rows=2, columns=("0", "1"), text=("0", "1")).fetch()
    assert frame["0"].to_list() == ["1", "2"]
    with pytest.raises(DataSourceError, match=r"has nothing in line 5, after `skip_rows: 4`"):
        make("csv", path=above, header=None, skip_rows=4, columns=("0", "1"), text=("0", "1")).fetch()
    with pytest.raises(DataSourceError, match=r"it has 0, 1; `header: null` numbers the columns: leave it out if"):
        make("csv", path=path, header=None, columns=IDS).fetch()
    (tmp_path / "cased.csv").write_text("User_Id,Item_Id\n")
    with pytest.raises(DataSourceError, match=r"did you mean 'User_Id', 'Item_Id'\? it has User_Id, Item_Id$"):
        make("csv", path="cased.csv", columns=IDS).fetch()
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


def test_whole_numbers_may_be_written_as_floats(make: Any, tmp_path: Path) -> None:
    """`dtype: int` reads 17850.0, which a blank makes of 17850 in many tools. The error for 17850.5 has its row."""
    path = write(tmp_path, "user_id,item_id,n\n17850.0,1,3.00\n,2,\n 9007199254740993 ,3,NA\n")
    source = make("csv", path=path, columns=("user_id", "n"), text=("user_id",), dtype={"user_id": "int", "n": "int"})
    for frame in (source.fetch(), source.sample(10)):
        assert frame["user_id"].astype(object).where(frame["user_id"].notna(), None).to_list() == [
            "17850",
            None,
            "9007199254740993",
        ]
        assert frame["n"].to_list() == [3, pd.NA, pd.NA]
    path = write(tmp_path, "user_id,item_id\n17850.0,1\n17850.5,2\n")
    with pytest.raises(
        DataSourceError, match=r"a\.csv, data row 2: the column user_id holds '17850\.5', which is no whole"
    ):
        make("csv", path=path, columns=IDS, dtype={"user_id": "int"}).fetch()


def test_delimiters_of_several_characters_may_be_in_quotes(make: Any, tmp_path: Path) -> None:
    """Such a value keeps them. Errors show the delimiter as the recipe writes it."""
    path = write(tmp_path, 'user_id::item_id::title\n1::2::"a::b"\n3::4::c:d\n')
    source = make("csv", path=path, delimiter="::", columns=(*IDS, "title"))
    assert source.fetch()["title"].to_list() == source.sample(2)["title"].to_list() == ["a::b", "c:d"]
    path = write(tmp_path, "user_id::item_id\n1::2\n3::4::5\n")
    with pytest.raises(DataSourceError, match=r"line 3 has 3 fields, but the header has 2: '3::4::5'"):
        make("csv", path=path, delimiter="::", columns=IDS).fetch()
    path = write(tmp_path, "user_id::item_id\n1::\x1f\n")
    with pytest.raises(DataSourceError, match=r"holds the control character '\\x1f'"):
        make("csv", path=path, delimiter="::", columns=IDS).fetch()
    with pytest.raises(DataSourceError, match=r'a double colon separates the columns: set `delimiter: "::"`'):
        make("csv", path=path, columns=IDS).fetch()


def test_faults_below_skipped_lines_have_their_line(make: Any, tmp_path: Path) -> None:
    """The lines above the header may have any form, and count."""
    path = write(tmp_path, "exported, by, us\n\nuser_id,item_id\n1,2\n3\n")
    for options in ({"header": 2}, {"skip_rows": 2}):
        with pytest.raises(DataSourceError, match=r"line 5 has 1 field, but the header has 2: '3'"):
            make("csv", path=path, columns=IDS, **options).fetch()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (zipped({"a.csv": "user_id,item_id\n1,2\n"}), "it is a zip archive: set `compression: zip`"),
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


def test_a_zip_archive_with_one_table_is_read(make: Any, tmp_path: Path) -> None:
    """Texts beside the table, hidden files and those of macOS do not count. Several tables are listed by the error."""
    table = "user_id,item_id\n" + "1,é\n" * 50_000
    beside = {"ml/README.txt": "read me", "ml/.hidden.csv": "x", "__MACOSX/ml/._ratings.csv": "x"}
    path = write(tmp_path, zipped({**beside, "ml/ratings.csv": table}), "a.csv.zip")
    assert len(make("csv", path=path, columns=IDS).fetch()) == 50_000
    assert len(make("csv", path=".", columns=IDS).fetch()) == 50_000
    assert len(make("csv", path=path, columns=IDS).sample(10)) == 10
    assert make("csv", path=path, columns=IDS).probe()[1].endswith("has the columns user_id, item_id")
    path = write(tmp_path, zipped({"u.data": table}), "b.bin")
    assert len(make("csv", path=path, columns=IDS, compression="zip").fetch()) == 50_000
    path = write(tmp_path, zipped({"a.csv": table, "b.csv": table}), "c.zip")
    with pytest.raises(DataSourceError, match=r"c\.zip holds 2 tables, and one is read: a\.csv, b\.csv; unpack it"):
        make("csv", path=path, columns=IDS).fetch()
    with pytest.raises(DataSourceError, match=r"holds 0 tables, and one is read; unpack"):
        make("csv", path=write(tmp_path, zipped({}), "d.zip"), columns=IDS).fetch()


def test_broken_zip_archives_are_refused(make: Any, tmp_path: Path) -> None:
    """A cut archive, damaged data and a password are errors that name the file."""
    whole = zipped({"a.csv": "user_id,item_id\n" + "".join(f"{k},{k * 7919 % 1000}\n" for k in range(10_000))})
    locked = bytearray(whole)
    locked[6] |= 1
    locked[whole.index(b"PK\x01\x02") + 8] |= 1
    damaged = whole[:20_000] + bytes(64) + whole[20_064:]
    for data, words in ((whole[:1000], "zip archive"), (bytes(locked), "password"), (damaged, "cannot be parsed")):
        with pytest.raises(DataSourceError, match=words):
            make("csv", path=write(tmp_path, data, "a.zip"), columns=IDS).fetch()


def test_a_text_with_the_name_of_a_compressed_file_is_read_as_text(make: Any, tmp_path: Path) -> None:
    """Clients of web servers decompress a file and keep its name. A given `compression` is not doubted."""
    for ending in ("gz", "bz2", "zip"):
        path = write(tmp_path, "user_id,item_id\n1,2\n", f"a.csv.{ending}")
        assert len(make("csv", path=path, columns=IDS).fetch()) == 1
    with pytest.raises(DataSourceError, match="cannot be"):
        make("csv", path="a.csv.gz", columns=IDS, compression="gzip").fetch()
