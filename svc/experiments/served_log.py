"""Read the lines that servers wrote about the pages they sent."""

from __future__ import annotations

from bisect import bisect_left
from glob import glob
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pa_json

from svc.asking.experiment import OPEN
from svc.errors import DataSourceError
from svc.names import NULL_LINE

_TEXTS = ("recipe", "request_id", "experiment", "arm", "unit")
_SCHEMA = pa.schema(
    {
        "time": pa.timestamp("ms", "UTC"),
        "items": pa.list_(pa.string()),
        "shadow": pa.bool_(),
        **dict.fromkeys(_TEXTS, pa.string()),
    }
)
_REQUIRED = ("time", "recipe", "items")
_BLOCK_BYTES = 16 << 20
"""Arrow reads no line longer than this."""


def read_served(pattern: str) -> pa.Table:
    """Return one row for each line of the files that `pattern` names. A folder means all its files.

    Raises DataSourceError if there is no file, and for a damaged line, with its file and its number.
    """
    pattern = str(Path(pattern) / "*.jsonl") if Path(pattern).is_dir() else pattern
    # A file that is closed between the two searches is found twice, but never missed.
    names = [*glob(pattern + OPEN), *glob(pattern)]  # noqa: PTH207 - Path.glob takes no absolute patterns
    files = {name.removesuffix(OPEN): Path(name) for name in names}
    if not files:
        raise DataSourceError(f"no file of the served log matches {pattern}")
    return pa.concat_tables([_read(files[name]) for name in sorted(files)])


def _read(path: Path) -> pa.Table:
    is_open = path.name.endswith(OPEN)
    if is_open and not path.exists():  # the server has closed the file meanwhile
        return _read(path.with_suffix(""))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataSourceError(f"{path} cannot be read: {error.strerror}") from None
    # A server may be writing the last line of an open file.
    table = _parse(content[: content.rfind(b"\n") + 1] if is_open else content)
    if table is None:
        lines = content.split(b"\n")
        # Beginnings are damaged from the first damaged line on, so a bisection finds it.
        counts = range(1, len(lines))
        number = bisect_left(counts, True, key=lambda count: _parse(b"\n".join(lines[:count])) is None) + 1
        raise DataSourceError(f"{path}, line {number}: is no whole line of a served log; remove it to go on")
    return table


def _parse(content: bytes) -> pa.Table | None:
    """Return a row for each line that is not blank, or None if any line is damaged."""
    if not content or content.isspace():
        return _SCHEMA.empty_table()
    if NULL_LINE.search(b"\n" + content):
        return None
    options = pa_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    try:
        table = pa_json.read_json(pa.BufferReader(content), pa_json.ReadOptions(block_size=_BLOCK_BYTES), options)
        table.validate(full=True)
    except pa.ArrowInvalid:
        return None
    is_whole = not any(table[name].null_count for name in _REQUIRED)
    return table if is_whole and not table["items"].combine_chunks().flatten().null_count else None
