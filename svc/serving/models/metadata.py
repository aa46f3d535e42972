"""Item metadata of a recipe, in the order of the model's item columns."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import DataSourceError, MetadataError
from svc.model.filter_fields import Field, FilterFields, LabelField, NumberField
from svc.model.ids import IdTable
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings
from svc.sources.bounds import TableBounds

if TYPE_CHECKING:
    import pandas
    import pyarrow as pa

    from svc.recipe.side_tables import ItemMetadata
    from svc.sources.base import DataSource

ROWS_AT_ONCE = 8192
"""Rows that are converted to Python values at a time."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """`rows` holds, for each item column in order, the values of `fields`, or None for an item that the table lacks."""

    fields: tuple[str, ...]
    rows: Sequence[tuple[Any, ...] | None]


@dataclass(frozen=True, slots=True)
class _Found:
    """A table that was read. Row i is of the item `texts[codes[i]]`; code −1 is a missing id.

    `take` gives the values of a column at some rows as plain Python values.
    """

    names: Sequence[str]
    codes: NDArray[np.int32]
    texts: list[str]
    take: Callable[[str, NDArray[np.int64]], list[Any]]


class ItemTables(NamedTuple):
    """The result of reading a recipe's metadata table; None for a part that the recipe does not declare."""

    metadata: MetadataTable | None
    filters: FilterFields | None


def load_metadata(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str]
) -> ItemTables:
    """The declared fields of every item, and the fields that filters read.

    Fields that `SVC_METADATA_FIELD_DENY` names are not answered, and no request may filter on them. Fields stay in
    the recipe's order. Of several rows for one item the last one counts. Raises `MetadataError` when the table cannot
    be read, or lacks its id column, or lacks a field and the recipe does not admit that, or when a cell of a filter
    field is not of its kind.
    """
    declared = recipe.recipe.item_metadata
    if declared is None:
        return ItemTables(None, None)
    answered = tuple(name for name in declared.fields if name not in settings.metadata_field_deny)
    fields = tuple(dict.fromkeys((*answered, *declared.filter_kinds)))
    if not fields:
        return ItemTables(None, None)
    bounds = TableBounds.for_serving(len(item_ids), 1 + len(fields))
    found = _fetch(declared, fields, bounds, recipe=recipe, settings=settings, variables=variables)
    missing = [name for name in fields if name not in found.names]
    if missing:
        logs.emit(events.METADATA_FIELD_MISSING, name=recipe.recipe.name, fields=missing)
    metadata = MetadataTable(answered, _Rows(found, answered, item_ids)) if answered else None
    if not declared.filter_fields:
        return ItemTables(metadata, None)
    return ItemTables(metadata, _filter_fields(declared, found, item_ids, settings.metadata_field_deny))


def _filter_fields(declared: ItemMetadata, found: _Found, item_ids: IdTable, denied: Sequence[str]) -> FilterFields:
    n_items = len(item_ids)
    fields: dict[str, Field] = {}
    for field in declared.filter_fields:
        rows = _Rows(found, (field.name,), item_ids)
        values = (None if row is None else row[0] for row in rows)
        if field.kind == "numerical":
            fields[field.name] = NumberField.read(field.name, values, n_items)
        else:
            fields[field.name] = LabelField.read(field.name, field.kind, field.delimiter, values, n_items)
    return FilterFields(fields, n_items, hidden=denied)


def _fetch(
    declared: ItemMetadata,
    fields: tuple[str, ...],
    bounds: TableBounds,
    *,
    recipe: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
) -> _Found:
    """The table, with at least the id column. Sources are imported here: they bring pyarrow along, some pandas."""
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # Arrow's own keeps what it had
    from svc.sources.base import SourceContext, build_source

    lenient = declared.on_field_missing == "null"
    context = SourceContext(
        base_dir=recipe.base_dir,
        settings=settings,
        columns=None if lenient else (declared.id_column, *fields),
        text_columns=frozenset({declared.id_column}),
        purpose="metadata",
        variables=variables,
        progress=None,
        bounds=bounds,
    )
    needed = (declared.id_column,) if lenient else (declared.id_column, *fields)
    try:
        return _read(build_source(declared.source, context), needed, declared.id_column, bounds)
    except DataSourceError as error:
        raise MetadataError(f"item metadata: {error.message}") from error


def _read(source: DataSource, needed: Sequence[str], id_column: str, bounds: TableBounds) -> _Found:
    """Through Arrow where the source can: importing pandas takes as much memory as a small server."""
    fetch_arrow: Callable[[], pa.Table] | None = getattr(source, "fetch_arrow", None)
    if fetch_arrow is not None:
        table = fetch_arrow()
        _require(needed, table.column_names)
        return _of_arrow(table, id_column)
    frame = source.fetch()
    bounds.check(len(frame), int(frame.memory_usage().sum()), "the table")  # of a plug-in that does not know them
    _require(needed, list(frame.columns))
    return _of_frame(frame, id_column)


def _require(needed: Sequence[str], there: Sequence[str]) -> None:
    lacking = [name for name in needed if name not in there]
    if lacking:
        raise MetadataError(f"item metadata lacks the column {lacking[0]!r}; it has {', '.join(map(str, there))}")


def _of_arrow(table: pa.Table, id_column: str) -> _Found:
    from svc.sources import arrow

    ids = table.column(id_column).combine_chunks()

    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        return [_plain(value) for value in table.column(name).take(arrow.integers(rows)).to_pylist()]

    return _Found(table.column_names, arrow.codes(ids.indices), ids.dictionary.to_pylist(), take)


def _of_frame(frame: pandas.DataFrame, id_column: str) -> _Found:
    def take(name: str, rows: NDArray[np.int64]) -> list[Any]:
        values = frame[name].iloc[rows]
        missing = values.isna().to_list()
        return [None if gone else _plain(value) for gone, value in zip(missing, values.to_list(), strict=True)]

    ids = frame[id_column].cat
    codes = ids.codes.to_numpy().astype(np.int32)
    return _Found(list(frame.columns), codes, [str(text) for text in ids.categories], take)


class _Rows(Sequence[tuple[Any, ...] | None]):
    """The rows of the model's items, in their order, some of them at a time; rows of other items are left out."""

    def __init__(self, found: _Found, fields: Sequence[str], item_ids: IdTable) -> None:
        self._found = found
        self._fields = fields
        self._places = np.full(len(item_ids), -1, dtype=np.int64)
        items = item_ids.indices(found.texts)[found.codes] if found.texts else np.empty(0, dtype=np.int32)
        known = np.flatnonzero((items >= 0) & (found.codes[: len(items)] >= 0))
        self._places[items[known]] = known

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, item: Any) -> Any:
        return list(self)[item]

    def __iter__(self) -> Iterator[tuple[Any, ...] | None]:
        for start in range(0, len(self), ROWS_AT_ONCE):
            places = self._places[start : start + ROWS_AT_ONCE]
            rows = self._values(places[places >= 0])
            yield from (next(rows) if there else None for there in (places >= 0).tolist())

    def _values(self, rows: NDArray[np.int64]) -> Iterator[tuple[Any, ...]]:
        names, nothing = self._found.names, [None] * len(rows)
        columns = [self._found.take(name, rows) if name in names else nothing for name in self._fields]
        return zip(*columns, strict=True)


def _plain(value: Any) -> Any:
    """The value in a form that JSON has: numbers that are not finite become None, times become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value
