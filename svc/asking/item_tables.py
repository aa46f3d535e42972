"""Reading of tables of items while serving: item metadata, lists of available items, lists of new items.

The size of a table is bounded. Tables are read through Arrow if possible, because importing pandas takes as much memory
as a small server.
"""

from __future__ import annotations

import ctypes
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import DataSourceError, MetadataError, SvcError
from svc.late_imports import LateModule, if_imported
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import NO_FIELDS, Field, FilterFields, LabelField, NumberField
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.base import SourceContext, TableBounds, build_source

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from svc.recipe.serving_schema import ItemMetadata
    from svc.recipe.source_options import SourceSpec
    from svc.sources import arrow
    from svc.sources.base import DataSource
else:
    arrow = LateModule("svc.sources.arrow")


ROWS_AT_ONCE = 1024
"""Number of rows that are converted to Python values in one call. Such a call holds the GIL."""


@dataclass(frozen=True, slots=True)
class ReadTable:
    """A table of items in memory, from Arrow or pandas. Row i has the item id `texts[codes[i]]`."""

    names: Sequence[str]
    """Names of the columns."""
    codes: NDArray[np.int32]
    """For each row an index of `texts`, or -1 if the row has no id."""
    texts: list[str]
    """The distinct ids."""
    take: Callable[[str, NDArray[np.int64]], list[Any]]
    """Returns the values of a column in the given rows, as plain Python values."""


def read_item_table(source: SourceSpec, context: SourceContext, needed: Sequence[str], shown: str) -> ReadTable:
    """Read a table from a source. Blocks.

    `context` has the columns to read. The table must have the columns `needed`, and the first of them holds the ids.
    `shown` is the name of the table in messages. Raises DataSourceError if the source cannot be read, lacks a needed
    column, or exceeds the bounds of `context`.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's default pool does not return freed memory
    built = build_source(source, context)
    try:
        return _read(built, context, needed, shown)
    except SvcError as error:
        traceback.clear_frames(error.__traceback__)  # the frames of the traceback keep the rows that were read so far
        give_memory_back()
        raise


def give_memory_back() -> None:
    """Return freed memory to the system, which glibc and Arrow would keep for later allocations."""
    if (pyarrow := if_imported("pyarrow")) is not None:
        pyarrow.default_memory_pool().release_unused()
    # Only glibc has this function. musl and macOS do not.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _read(built: DataSource, context: SourceContext, needed: Sequence[str], shown: str) -> ReadTable:
    # Optional for sources of plug-ins, which may know pandas alone.
    fetch_arrow: Callable[[], pa.Table] | None = getattr(built, "fetch_arrow", None)
    if fetch_arrow is not None:
        table = fetch_arrow()
        _require(needed, table.column_names, shown)
        return of_arrow(table, needed[0])
    frame = built.fetch()
    if context.bounds is not None:  # plug-in sources do not check the bounds themselves
        context.bounds.check(len(frame), int(frame.memory_usage().sum()), shown)
    _require(needed, list(frame.columns), shown)
    return _of_frame(frame, needed[0])


def _require(needed: Sequence[str], columns: Sequence[str], shown: str) -> None:
    for name in needed:
        if name not in columns:
            raise DataSourceError(f"{shown} lacks the column {name!r}; it has {', '.join(map(str, columns))}")


def ids_and_features(
    table: ReadTable, id_column: str, names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[Mapping[str, Any], ...]]:
    """Return the ids of a table in the order of its rows, and for each row its values in the columns `names`, by name.

    Raises DataSourceError if an id is missing, blank or repeated. The message names row and column.
    """
    texts, codes = table.texts, table.codes.tolist()
    first_row: dict[int, int] = {}
    for row, code in enumerate(codes, start=1):
        if code < 0 or not texts[code].strip():
            raise DataSourceError(f"the list has no id in data row {row}, column {id_column!r}")
        if first_row.setdefault(code, row) != row:
            raise DataSourceError(
                f"the list has the id {texts[code]!r} in data rows {first_row[code]} and {row}, column {id_column!r}"
            )
    features: list[Mapping[str, Any]] = []
    for start in range(0, len(codes), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(codes)))
        columns = [table.take(name, rows) for name in names]
        features += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return tuple(texts[code] for code in codes), tuple(features)


def of_arrow(table: pa.Table, id_column: str) -> ReadTable:
    """Return an Arrow table as a ReadTable. Its id column must be dictionary-encoded."""
    ids = table.column(id_column).combine_chunks()
    table = table.combine_chunks()  # otherwise each `take` joins all chunks: 15 s instead of 1.2 s for a million items

    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        return [_plain(value) for value in table.column(name).take(arrow.integers(rows)).to_pylist()]

    return ReadTable(table.column_names, arrow.codes(ids.indices), ids.dictionary.to_pylist(), take)


def _of_frame(frame: pandas.DataFrame, id_column: str) -> ReadTable:
    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        values = frame[name].iloc[rows]
        # pandas marks missing values by None, NaN, NaT or NA, depending on the type of the column.
        missing = values.isna().to_list()
        return [
            None if is_missing else _plain(value) for is_missing, value in zip(missing, values.to_list(), strict=True)
        ]

    ids = frame[id_column].cat
    # pandas numbers up to 127 categories by int8.
    codes = ids.codes.to_numpy().astype(np.int32)
    return ReadTable(list(frame.columns), codes, [str(text) for text in ids.categories], take)


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: infinite numbers and NaN become None, times become texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """The metadata of a model's items, or of new items."""

    fields: tuple[str, ...]
    """Names of the fields that answers show."""
    rows: Sequence[tuple[Any, ...] | None]
    """For each item the values of `fields`, or None if the table does not have the item."""


class ItemTables(NamedTuple):
    """The metadata and the filter fields of a model's items.

    `metadata` is None if the recipe declares no metadata fields, or if all of them are denied.
    """

    metadata: MetadataTable | None
    filters: FilterFields
    few: Mapping[str, int] | None = None
    """The counts of `few_items`, or None if the table has enough items or nothing is read from it."""


def few_items(n_found: int, n_items: int) -> Mapping[str, int] | None:
    """Return both counts if fewer than half of the `n_items` items of a model are in a table of metadata, else None."""
    return {"n_found": n_found, "n_items": n_items} if 2 * n_found < n_items else None


def load_metadata(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str], *, n_rows: int = 0
) -> ItemTables:
    """Read the metadata fields and the filter fields of the items `item_ids` from the recipe's table. Blocks.

    Answers show the fields in the recipe's order. If an item has several rows, the last row counts. Fields in
    SVC_METADATA_FIELD_DENY are neither in answers nor available to filters of requests. The bounds of the table's size
    follow from the number of items, or from `n_rows` if it is larger (`TableBounds.for_serving`).

    Raises `MetadataError` if the table cannot be read, exceeds its bounds, lacks its id column, or has a filter value
    of the wrong kind. A missing field raises it too, unless the recipe declares `on_field_missing: null`. Then the
    field has no values, and its name is logged.
    """
    declared = recipe.recipe.item_metadata
    if declared is None:
        return ItemTables(None, NO_FIELDS)
    answered = tuple(name for name in declared.fields if not settings.is_denied(name))
    fields = tuple(dict.fromkeys((*answered, *declared.filter_kinds)))
    if not fields:
        return ItemTables(None, NO_FIELDS)
    # A source fails if it lacks a column that is asked for, so a lenient recipe asks for all columns.
    columns, lenient = (declared.id_column, *fields), declared.on_field_missing == "null"
    context = SourceContext.for_served_table(
        recipe.base_dir,
        settings,
        variables,
        declared.id_column,
        None if lenient else columns,
        bounds=TableBounds.for_serving(max(len(item_ids), n_rows), len(columns)),
    )
    try:
        table = read_item_table(declared.source, context, columns[:1] if lenient else columns, "the table")
    except DataSourceError as error:
        raise MetadataError(f"item metadata: {error.message}") from error
    missing = [name for name in fields if name not in table.names]
    if missing:
        logs.emit(events.METADATA_FIELD_MISSING, name=recipe.recipe.name, fields=missing)
    metadata = MetadataTable(answered, _Rows(table, answered, item_ids)) if answered else None
    hidden = tuple(name for name in declared.filter_kinds if settings.is_denied(name))
    few = few_items(_Rows(table, (), item_ids).n_found, len(item_ids))
    return ItemTables(metadata, _filter_fields(declared, table, item_ids, hidden), few)


def _filter_fields(declared: ItemMetadata, table: ReadTable, item_ids: IdTable, denied: Sequence[str]) -> FilterFields:
    n_items = len(item_ids)
    fields: dict[str, Field] = {}
    for field in declared.filter_fields:
        rows = _Rows(table, (field.name,), item_ids)
        values = (None if row is None else row[0] for row in rows)
        if field.kind == "numerical":
            fields[field.name] = NumberField.read(field.name, values, n_items)
        else:
            fields[field.name] = LabelField.read(field.name, field.kind, field.delimiter, values, n_items)
    return FilterFields(fields, n_items, hidden=denied)


class _Rows(Sequence[tuple[Any, ...] | None]):
    """The values of `fields` for each item of `item_ids`, in this order, or None for an item without a row.

    An iteration converts ROWS_AT_ONCE rows at a time to Python values, so it never holds the GIL for long.
    """

    def __init__(self, table: ReadTable, fields: Sequence[str], item_ids: IdTable) -> None:
        self._table = table
        self._fields = fields
        self._places = np.full(len(item_ids), -1, dtype=np.int64)
        # A row without an id has the code -1, which here indexes the last id, and the next line leaves such rows out. A
        # table without any id has no last one.
        items = item_ids.indices(table.texts)[table.codes] if table.texts else np.empty(0, dtype=np.int32)
        of_model = np.flatnonzero((items >= 0) & (table.codes[: len(items)] >= 0))
        # numpy assigns in order, so of several rows of an item the last one stays.
        self._places[items[of_model]] = of_model

    def __len__(self) -> int:
        return len(self._places)

    @property
    def n_found(self) -> int:
        """Return the number of items with a row."""
        return int(np.count_nonzero(self._places >= 0))

    def __getitem__(self, item: Any) -> Any:
        # Converts the whole table. Who needs single rows often makes a list first.
        return list(self)[item]

    def __iter__(self) -> Iterator[tuple[Any, ...] | None]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            places = self._places[start : start + ROWS_AT_ONCE]
            rows = self._values(places[places >= 0])
            yield from (next(rows) if there else None for there in (places >= 0).tolist())

    def _values(self, rows: NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
        names, empty = self._table.names, [None] * len(rows)
        columns = [self._table.take(name, rows) if name in names else empty for name in self._fields]
        return zip(*columns, strict=True)
