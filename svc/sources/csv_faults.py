"""Explains why a csv file cannot be parsed or lacks columns, with the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import TextIO

_DELIMITERS = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8"}
_SHOWN_CHARACTERS = 60
MAX_LINE_CHARACTERS = 1 << 20


def header_hint(names: Sequence[str], delimiter: str) -> str:
    """Suggest the `delimiter` or `encoding` that the header points to.

    The text is empty if it points to none.
    """
    if any("\0" in name for name in names):
        return "; every other byte is zero: the file is UTF-16, set `encoding: utf-16-le` or `utf-16-be`"
    if len(names) > 1:
        return ""
    for other, called in _DELIMITERS.items():
        if other != delimiter and other in names[0]:
            shown = "\\t" if other == "\t" else other
            return f'; {called} stands between the columns: set `delimiter: "{shown}"`'
    return ""


def encoding_hint(start: bytes) -> str:
    """Suggest the encoding that the byte order mark in `start` names."""
    encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    return f"it is {encoding.upper()}: set `encoding: {encoding}`" if encoding else "give `encoding`, such as latin-1"


def find_fault(text: TextIO, delimiter: str, n_columns: int) -> str | None:
    """Describe the first line with too few or too many fields or an unclosed quote.

    None if there is no such line.
    """
    rows = csv.reader(bounded_lines(text), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in rows:
            if row and len(row) != n_columns:
                shown = delimiter.join(row)[:_SHOWN_CHARACTERS]
                fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                return f"line {line} has {fields} where the header has {n_columns}: {shown!r}"
            line = rows.line_num + 1
    except csv.Error as error:
        if "end of data" in str(error):
            return f"line {line} opens a quote that nothing closes"
        if "field limit" in str(error):
            hint = ": it may open a quote that nothing closes" if rows.line_num > line else ""
            return f"line {line} has a value of more than {csv.field_size_limit()} characters{hint}"
        return f"line {line}: {error}"
    return None


def bounded_lines(text: TextIO) -> Iterator[str]:
    """Yield the lines.

    Raises csv.Error for a line of more than MAX_LINE_CHARACTERS, which is not read to its end.
    """
    while line := text.readline(MAX_LINE_CHARACTERS):
        if len(line) == MAX_LINE_CHARACTERS and not line.endswith(("\n", "\r")):
            raise csv.Error(f"the line has more than {MAX_LINE_CHARACTERS} characters")
        yield line
