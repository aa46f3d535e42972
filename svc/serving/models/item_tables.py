"""Tables with one row for each item, which the server reads within bounds, and without pandas if possible."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import DataSourceError, SvcError

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from svc.recipe.source_options import SourceSpec
    from svc.sources.base import DataSource, SourceContext


ROWS_AT_ONCE = 1024
"""Rows converted to Python values in one call, which holds the GIL."""


@dataclass(frozen=True, slots=True)
class ItemTable:
    """A table that was read.

    Row i belongs to the item `texts[codes[i]]`. Code −1 is a missing id. `take` returns a column's values of some rows
    as plain Python values.
    """

    names: Sequence[str]
    codes: NDArray[np.int32]
    texts: list[str]
    take: Callable[[str, NDArray[np.int64]], list[Any]]


def read_item_table(
    source: SourceSpec,
    context: SourceContext,
    needed: Sequence[str],
    lacking: Callable[[str], SvcError],
    *,
    shown: str = "the table",
) -> ItemTable:
    """Read the columns `needed` of the table of `source`. The first of them holds the ids. Blocks.

    Reads through Arrow if the source can, because importing pandas takes as much memory as a small server. Raises
    DataSourceError, also if the table exceeds the bounds of `context`, and `lacking(text)` if it lacks a needed column.
    Messages call the table `shown`.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own pool keeps freed memory
    from svc.sources.base import build_source

    built = build_source(source, context)
    try:
        return _read(built, context, needed, lacking, shown)
    except SvcError as error:
        traceback.clear_frames(error.__traceback__)  # frees the rows read so far, which the frames hold
        give_memory_back()
        raise


def give_memory_back() -> None:
    """Return freed memory to the system, because glibc and Arrow keep it for later allocations."""
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read(
    built: DataSource, context: SourceContext, needed: Sequence[str], lacking: Callable[[str], SvcError], shown: str
) -> ItemTable:
    fetch_arrow: Callable[[], pa.Table] | None = getattr(built, "fetch_arrow", None)
    if fetch_arrow is not None:
        table = fetch_arrow()
        _require(needed, table.column_names, lacking)
        return of_arrow(table, needed[0])
    frame = built.fetch()
    if context.bounds is not None:  # plug-in sources do not check the bounds themselves
        context.bounds.check(len(frame), int(frame.memory_usage().sum()), shown)
    _require(needed, list(frame.columns), lacking)
    return _of_frame(frame, needed[0])


def ids_and_features(
    table: ItemTable, id_column: str, names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Mapping[str, Any], ...]]:
    """Return the ids of a list in the order of its rows, and each item's values of the columns `names`.

    Raises DataSourceError with row and column if an id is missing or repeated.
    """
    ids = _ids(table.texts, table.codes.tolist(), id_column)
    return ids, _rows(table.take, names, len(ids))


def _require(needed: Sequence[str], columns: Sequence[str], lacking: Callable[[str], SvcError]) -> None:
    for name in needed:
        if name not in columns:
            raise lacking(f"lacks the column {name!r}; it has {', '.join(map(str, columns))}")


def of_arrow(table: pa.Table, id_column: str) -> ItemTable:
    """Return the item table of an Arrow table with dictionary-encoded ids."""
    from svc.sources import arrow

    ids = table.column(id_column).combine_chunks()

    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        return [_plain(value) for value in table.column(name).take(arrow.integers(rows)).to_pylist()]

    return ItemTable(table.column_names, arrow.codes(ids.indices), ids.dictionary.to_pylist(), take)


def _of_frame(frame: pandas.DataFrame, id_column: str) -> ItemTable:
    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        values = frame[name].iloc[rows]
        missing = values.isna().to_list()
        return [
            None if is_missing else _plain(value) for is_missing, value in zip(missing, values.to_list(), strict=True)
        ]

    ids = frame[id_column].cat
    codes = ids.codes.to_numpy().astype(np.int32)
    return ItemTable(list(frame.columns), codes, [str(text) for text in ids.categories], take)


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it: infinite numbers and NaN become None, times become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value


def _ids(texts: Sequence[str], codes: Sequence[int], column: str) -> tuple[str, ...]:
    """Return the ids in the order of the rows. Raises DataSourceError if an id is missing or repeated."""
    first_row: dict[int, int] = {}
    for row, code in enumerate(codes, start=1):
        if code < 0 or not texts[code].strip():
            raise DataSourceError(f"the list has no id in data row {row}, column {column!r}")
        if first_row.setdefault(code, row) != row:
            raise DataSourceError(
                f"the list has the id {texts[code]!r} in data rows {first_row[code]} and {row}, column {column!r}"
            )
    return tuple(texts[code] for code in codes)


def _rows(take: Callable[[str, Any], list[Any]], names: Sequence[str], n_rows: int) -> tuple[Mapping[str, Any], ...]:
    """Return the features of each row by column."""
    rows: list[Mapping[str, Any]] = []
    for start in range(0, n_rows, ROWS_AT_ONCE):
        some = np.arange(start, min(start + ROWS_AT_ONCE, n_rows))
        columns = [take(name, some) for name in names]
        rows += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return tuple(rows)
