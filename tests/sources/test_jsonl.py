"""The jsonl source: objects in lines, nested fields, lists of events, and the first broken line."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError, RecipeError
from svc.sources import jsonl
from tests.sources.conftest import Page, WebServer

IDS = ("user_id", "item_id")


def write(folder: Path, *rows: Any, name: str = "a.jsonl") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return name


def test_ids_stay_as_written(make: Any, tmp_path: Path) -> None:
    """Numbers become the text of their digits. Texts keep zeros, blanks, and the form of a date."""
    path = write(
        tmp_path, {"user_id": 7, "item_id": "2024-05-31"}, {"item_id": "2024-05-31 00:00", "user_id": 2**53 + 1}
    )
    frame = make("jsonl", path=path, columns=IDS).fetch()
    assert frame["user_id"].to_list() == ["7", "9007199254740993"]
    assert frame["item_id"].to_list() == ["2024-05-31", "2024-05-31 00:00"]
    assert list(frame.columns) == list(IDS)


def test_nested_fields_are_columns_with_dotted_names(make: Any, tmp_path: Path) -> None:
    """A line may lack a field. Then its value is missing, as with null."""
    rows = [{"user": {"id": "u", "at": {"t": "2024-01-01T00:00:00Z"}}, "i": 1, "n": 5}, {"user": None, "i": 2}]
    source = make(
        "jsonl", path=write(tmp_path, *rows), columns=("user.id", "i", "user.at.t", "n"), text=("user.id", "i")
    )
    frame = source.fetch()
    assert frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == [
        ["u", "1", "2024-01-01T00:00:00Z", 5],
        [None, "2", None, None],
    ]
    assert source.fetch_arrow().column_names == ["user.id", "i", "user.at.t", "n"]


def test_each_entry_of_a_list_may_be_a_row(make: Any, tmp_path: Path) -> None:
    """The other fields are repeated. Lines without entries have no rows. A list may hold values instead of objects."""
    rows = [
        {"session": 1, "who": "a", "events": [{"aid": 5, "type": "clicks"}, {"aid": 6, "type": "carts"}]},
        {"session": 2, "who": "b", "events": []},
        {"session": 3, "who": "c"},
        {"session": 4, "who": "a", "events": [{"aid": 5, "type": "orders"}]},
    ]
    options = {"columns": ("session", "events.aid", "events.type", "who"), "text": ("session", "events.aid")}
    frame = make("jsonl", path=write(tmp_path, *rows), explode="events", **options).fetch()
    assert frame.astype(str).to_numpy().tolist() == [
        ["1", "5", "clicks", "a"],
        ["1", "6", "carts", "a"],
        ["4", "5", "orders", "a"],
    ]
    path = write(tmp_path, {"u": "x", "in": {"items": [1, 2]}}, name="b.jsonl")
    frame = make("jsonl", path=path, explode="in.items", columns=("u", "in.items"), text=("u", "in.items")).fetch()
    assert frame["in.items"].to_list() == ["1", "2"]
    with pytest.raises(DataSourceError, match=r"explode: u is no list, but of type string"):
        make("jsonl", path=path, explode="u", columns=("u",)).fetch()
    with pytest.raises(DataSourceError, match=r"has no column events; .*it has u, in.items"):
        make("jsonl", path=path, explode="events", columns=("u",)).fetch()


def test_dtype_sets_the_types_of_columns(make: Any, tmp_path: Path) -> None:
    """As in csv, `int` reads 17850.0 and "17850", and refuses 17850.5 with its row."""
    path = write(tmp_path, {"user_id": 17850.0, "item_id": 1, "t": "2024-01-02"}, {"user_id": None, "item_id": 2})
    frame = make("jsonl", path=path, columns=(*IDS, "t"), dtype={"user_id": "int", "t": "datetime"}).fetch()
    assert frame["user_id"].to_list()[0] == "17850"
    assert frame["t"].to_list() == [pd.Timestamp("2024-01-02"), pd.NaT]
    with pytest.raises(DataSourceError, match=r"the id column user_id holds floating point numbers"):
        make("jsonl", path=path, columns=IDS).fetch()
    path = write(tmp_path, {"user_id": 1, "item_id": 1}, {"user_id": 17850.5, "item_id": 2})
    with pytest.raises(DataSourceError, match=r"a\.jsonl, data row 2: the column user_id holds '17850\.5'"):
        make("jsonl", path=path, columns=IDS, dtype={"user_id": "int"}).fetch()
    with pytest.raises(DataSourceError, match=r"the column item_id cannot be read as datetime"):
        make(
            "jsonl", path=write(tmp_path, {"item_id": "x"}), columns=("item_id",), dtype={"item_id": "datetime"}
        ).fetch()
    with pytest.raises(DataSourceError, match=r"has no column absent; .*it has user_id, item_id"):
        make("jsonl", path=write(tmp_path, GOOD), columns=IDS, dtype={"absent": "str"}).fetch()


GOOD = '{"user_id": "u", "item_id": "i"}'


def test_fields_that_nobody_reads_may_mix_types(make: Any, tmp_path: Path) -> None:
    """Beside a used field of the same object, in a list, or on their own. Mixed types of used fields are refused."""
    rows = ["", {"u": {"id": "a", "tag": 1}, "e": [{"i": 1, "at": "2024-01-01"}], "x": [1]}, ""]
    rows += [{"u": {"id": "b", "tag": {"t": "\ud800"}}, "e": [{"i": 2, "at": 5}, {"i": 3}], "x": {"y": 2}}]
    options = {"columns": ("u.id", "e.i"), "text": ("u.id", "e.i"), "explode": "e"}
    source = make("jsonl", path=write(tmp_path, *rows), **options)
    assert source.fetch().astype(str).to_numpy().tolist() == [["a", "1"], ["b", "2"], ["b", "3"]]
    for added, words in (
        ({"u": {"id": 5}, "x": "z"}, r"line 5: Column\(/u/id\) changed from string to number"),
        ("null", r"line 5: is no JSON object: 'null'"),
        ('""', r"line 5: is no JSON object"),
        ('{"u": {"id": "c", "id": "d"}}', r"line 4: Column\(/u/tag\) changed from number to object"),
    ):
        with pytest.raises(DataSourceError, match=words):
            make("jsonl", path=write(tmp_path, *rows, added), **options).fetch()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            (GOOD, "", '{"user_id": "u" "item_id": "i"}'),
            r"line 3: Expecting ',' delimiter at character 17: '{\"user_id",
        ),
        ((GOOD, "5"), r"line 2: is no JSON object: '5'"),
        ((GOOD, "[1]"), r"line 2: is no JSON object"),
        ((GOOD, '{"user_id": 5, "item_id": "i"}'), r"line 2: Column\(/user_id\) changed from string to number"),
        ((GOOD, '{"user_id": "u", "user_id": "u"}'), r"line 2: Column\(/user_id\) was specified twice"),
        (("null", GOOD), r"line 1: is no JSON object: 'null'"),  # Arrow alone would end the process
        (("nullify", GOOD), r"line 1: Extra data at character 5: 'nullify'"),
        ((GOOD, "\ufeffnull"), r"line 2: Unexpected UTF-8 BOM"),
        (("[", GOOD, "]"), r"line 1: it is a JSON array; write one object in each line, as `jq -c"),
        ((), r"is empty"),
        (("", " "), r"is empty"),
        (('{"user_id": "u"}',), r"has no column item_id; .*it has user_id"),
    ],
)
def test_the_first_broken_line_is_named(make: Any, tmp_path: Path, lines: tuple[str, ...], words: str) -> None:
    """The message has the file and the line, as an editor counts them."""
    for before in (0, 3000):
        if before and "line" not in words:
            continue
        expected = (
            words
            if not before or "line 1" in words
            else words.replace("line 2", "line 3002").replace("line 3:", "line 3003:")
        )
        path = write(tmp_path, *[GOOD] * before, *lines) if "line 1" not in words else write(tmp_path, *lines)
        with pytest.raises(DataSourceError, match=expected) as caught:
            make("jsonl", path=path, columns=IDS).fetch()
        assert "a.jsonl" in caught.value.message


def test_other_files_are_named_for_what_they_are(make: Any, tmp_path: Path) -> None:
    """Compressed and Parquet files, other encodings, and texts that are not UTF-8."""
    packed = gzip.compress(GOOD.encode(), mtime=0)
    for content, words in (
        (packed, "line 1: it is compressed: set `compression: gzip`"),
        (b"PAR1" * 9, "it is a Parquet file: set `type: parquet`"),
        (GOOD.replace('"u"', '"\u00e9"').encode("latin-1"), "line 1: 'utf-8' codec can't decode"),
    ):
        (tmp_path / "a.jsonl").write_bytes(content)
        with pytest.raises(DataSourceError, match=words):
            make("jsonl", path="a.jsonl", columns=IDS).fetch()
    (tmp_path / "a.jsonl.gz").write_bytes(packed[:-20])
    with pytest.raises(DataSourceError, match=r"a\.jsonl\.gz(, line 1|.*cannot be read)"):
        make("jsonl", path="a.jsonl.gz", columns=IDS).fetch()


def test_folders_patterns_partitions_and_compression(make: Any, tmp_path: Path) -> None:
    """As in csv. Files without lines, which some writers leave, add nothing."""
    rows = [{"user_id": f"u{k}", "item_id": k} for k in range(4)]
    write(tmp_path, rows[0], name="lake/day=1/a.jsonl")
    write(tmp_path, rows[1], name="lake/day=2/part-0.json")
    write(tmp_path, name="lake/day=2/part-1.json")
    (tmp_path / "lake/day=2/part-2.ndjson.gz").write_bytes(gzip.compress(json.dumps(rows[2]).encode()))
    with zipfile.ZipFile(tmp_path / "lake/day=2/part-3.jsonl.zip", "w") as archive:
        archive.writestr("a.jsonl", "\ufeff" + json.dumps(rows[3]))
    for path in ("lake", "lake/*/*"):
        frame = make("jsonl", path=path, columns=(*IDS, "day")).fetch()
        assert frame["user_id"].to_list() == ["u0", "u1", "u2", "u3"]
        assert frame["day"].to_list() == ["1", "2", "2", "2"]
    write(tmp_path, {"user_id": "u", "item_id": 1, "day": 3}, name="lake/c.jsonl")
    with pytest.raises(DataSourceError, match="different columns: day in only one"):
        make("jsonl", path="lake", columns=(*IDS, "day")).fetch()


def test_remote_files_are_read(make: Any, web: WebServer, tmp_path: Path) -> None:
    """Of a file over http, `svc validate` reads the beginning, whose last line may be cut."""
    import hashlib

    body = "".join(f'{{"user_id": "u{k}", "item_id": {k}}}\n' for k in range(20_000)).encode()
    web.pages["/a.jsonl"] = Page(body)
    source = make("jsonl", path=f"{web.url}/a.jsonl", sha256=hashlib.sha256(body).hexdigest(), columns=IDS)
    assert len(source.fetch()) == 20_000
    assert source.probe()[1].endswith("has the columns user_id, item_id")
    assert len(source.sample(50)) == 50
    assert 5000 < len(source.sample(50_000)) < 20_000


def test_a_probe_names_the_columns_of_the_first_lines(make: Any, tmp_path: Path) -> None:
    """A field may be absent there and come later, so only the absence of all columns is an error."""
    path = write(tmp_path, {"user_id": 1, "item_id": 2})
    assert (
        make("jsonl", path=path, columns=(*IDS, "ts"))
        .probe()[1]
        .endswith("has the columns user_id, item_id; the first lines have no ts")
    )
    with pytest.raises(DataSourceError, match="has no columns u, i; it has user_id, item_id"):
        make("jsonl", path=path, columns=("u", "i")).probe()
    with pytest.raises(DataSourceError, match="is empty"):
        make("jsonl", path=write(tmp_path), columns=IDS).probe()
    assert make("jsonl", path="a.jsonl", columns=IDS).sample(10) is None
    with pytest.raises(RecipeError, match="did you mean 'jsonl'"):
        make("ndjson", path=path)


VALUES = st.none() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
OBJECTS = st.lists(
    st.fixed_dictionaries({}, optional={"a": st.none() | st.integers(-9, 9), "b": st.text(max_size=12)}), max_size=20
)


@given(rows=OBJECTS, size=st.integers(1, 200))
def test_blocks_of_any_size_give_the_same_rows(tmp_path_factory: Any, rows: list[dict[str, Any]], size: int) -> None:
    """Line ends within blocks, blank lines and texts that look like times make no difference."""
    from svc.recipe.source_options import SourceSpec
    from svc.settings import Settings
    from svc.sources.base import SourceContext, build_source

    folder = tmp_path_factory.mktemp("blocks")
    text = "\n\n".join(json.dumps({"k": "2024-01-01", **row}, ensure_ascii=False) for row in rows) + "\n"
    (folder / "a.jsonl").write_text(text, encoding="utf-8", newline="")
    context = SourceContext(folder, Settings(), ("k", "a", "b"), frozenset({"b", "k"}), "interactions", {}, None)
    seen = {name for row in rows for name in ("k", *row)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "_BLOCK_BYTES", size)
        source: Any = build_source(SourceSpec(type="jsonl", path="a.jsonl"), context)  # type: ignore[call-arg]
        if seen != {"k", "a", "b"}:
            with pytest.raises(DataSourceError):
                source.fetch()
            return
        table = source.fetch_arrow()
    assert table["b"].to_pylist() == [row.get("b") for row in rows]
    assert table["a"].to_pylist() == [row.get("a") for row in rows]
    assert table["k"].to_pylist() == ["2024-01-01"] * len(rows)


def test_a_line_without_end_is_refused(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be in memory whole."""
    monkeypatch.setattr(jsonl, "_LINE_BYTES", 1000)
    monkeypatch.setattr(jsonl, "_BLOCK_BYTES", 100)
    with pytest.raises(DataSourceError, match=r"a\.jsonl, line 2: has more than 1000 bytes"):
        make("jsonl", path=write(tmp_path, GOOD, io.StringIO("x" * 5000).read()), columns=IDS).fetch()
