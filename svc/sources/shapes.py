"""Recognize files that are no table of one choice a row: a column for each item, or a list of items in each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FIRST_LINES: Final = 50
"""Number of lines that decide the shape of a file."""
_LEAST_ITEMS, _LEAST_LENGTHS = 5, 3
_READ_IT = "read it with `type: duckdb` and the query"
_MARKS = frozenset({"", "0", "1", "t", "f", "true", "false"})


def shape_hint(lines: Sequence[Sequence[str]], file: str, delimiter: str, ids: Sequence[str]) -> str:
    """Return a hint to read the file by a query of DuckDB, or "" for a table of one choice a row.

    `lines` are the fields of the first lines, with the header. `ids` are the names of the user and the item column.
    """
    filled = [line for line in lines if line]
    lengths = {len(line) for line in filled}
    user, item = (*ids, "user_id", "item_id")[:2] if len(ids) > 1 else ("user_id", "item_id")
    # One line with a comma too many makes two lengths.
    if len(lengths) >= _LEAST_LENGTHS:
        query = (
            f"SELECT row_number() OVER () AS {user}, unnest(string_split(line, '{delimiter}')) AS {item} "
            f"FROM (SELECT unnest(string_split(trim(content), chr(10))) AS line FROM read_text('{file}'))"
        )
        return f"; its lines have {min(lengths)} to {max(lengths)} fields, as lists of items: {_READ_IT} `{query}`"
    header, rows = filled[0] if filled else [], filled[1:]
    cells = {cell.strip().lower() for row in rows for cell in row[1:]}
    if rows and len(header) > _LEAST_ITEMS and cells <= _MARKS:
        query = (
            f'SELECT "{header[0]}" AS {user}, {item} FROM (UNPIVOT \'{file}\' ON COLUMNS(* EXCLUDE "{header[0]}") '
            f"INTO NAME {item} VALUE chosen) WHERE CAST(chosen AS VARCHAR) IN ('1', 't', 'true')"
        )
        return f"; it has a column of 0 and 1 for each item: {_READ_IT} `{query}`"
    return ""
