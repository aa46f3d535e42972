"""Every whole line is read, of files that are closed and of files that a server still writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from svc.errors import DataSourceError
from svc.experiments.served_log import read_served
from tests.experiments.lines import line, write

LINE = line("u1", "control", ["a", "b"], seed=7)


def test_closed_and_open_files_are_read_up_to_the_half_line(tmp_path: Path) -> None:
    """A folder means its files. A half line at the end of an open file is no line yet."""
    write(tmp_path / "log" / "books.20261201T0900.7.jsonl", [LINE, LINE], end="\n\n")
    write(tmp_path / "log" / "books.20261201T1000.7.jsonl.open", [LINE, line(None, None, [])], end='\n{"time": "20')
    write(tmp_path / "log" / "other.txt", ["no line"])
    table = read_served(str(tmp_path / "log"))
    assert table.num_rows == 4
    assert table["items"].to_pylist() == [["a", "b"]] * 3 + [[]]
    assert table["time"][0].as_py().isoformat() == "2026-12-01T09:30:00+00:00"
    assert read_served(str(tmp_path / "l*" / "*0900*.jsonl")).num_rows == 2


def test_an_open_file_may_be_closed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server renames the file between the search and the reading."""
    closed = write(tmp_path / "a.jsonl", [LINE])
    monkeypatch.setattr("svc.experiments.served_log.glob", lambda pattern: [f"{closed}.open"] * ("open" in pattern))
    assert read_served(str(tmp_path)).num_rows == 1


@pytest.mark.parametrize(
    "damaged",
    [
        '{"time": "20',
        "7",
        "{}",
        "\x00\x00",
        json.dumps({**LINE, "items": ["a", None]}),
        json.dumps({**LINE, "items": [7]}),
        json.dumps({**LINE, "time": "yesterday"}),
        json.dumps({**LINE, "recipe": None}),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, damaged: str) -> None:
    """The message has the file and the number of the first damaged line. Blank lines count as lines."""
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join([json.dumps(LINE), "", json.dumps(LINE), damaged, json.dumps(LINE), damaged]) + "\n")
    with pytest.raises(DataSourceError, match=r"a\.jsonl, line 4: "):
        read_served(str(file))


@pytest.mark.parametrize("null", [" null", "nullify", "\ufeffnull"])
def test_a_line_that_begins_with_null_is_damaged(tmp_path: Path, null: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow alone would end the process if the line is the first of the file or of a later block."""
    good = json.dumps(LINE)
    monkeypatch.setattr("svc.experiments.served_log._BLOCK_BYTES", len(good) + 2)
    for lines in (["", null, good], [good, null, good]):
        (tmp_path / "a.jsonl").write_text("\n".join([*lines, ""]))
        with pytest.raises(DataSourceError, match=r"a\.jsonl, line 2: "):
            read_served(str(tmp_path))


def test_bytes_that_are_no_text_are_a_damaged_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json.dumps(LINE).encode().replace(b'"a"', b'"\xff"'))
    with pytest.raises(DataSourceError, match="line 1: "):
        read_served(str(tmp_path))


def test_no_file_is_named_by_its_pattern(tmp_path: Path) -> None:
    with pytest.raises(DataSourceError, match="no file of the served log matches"):
        read_served(str(tmp_path / "*.jsonl"))
