"""Item metadata of a recipe, in the order of the model's item columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc import events, logs
from svc.errors import DataSourceError, MetadataError
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import Field, FilterFields, LabelField, NumberField
from svc.recipe.load import LoadedRecipe
from svc.serving.models.item_tables import ItemTable, read_item_table
from svc.settings import Settings
from svc.sources.base import TableBounds

if TYPE_CHECKING:
    from svc.recipe.serving_schema import ItemMetadata

ROWS_AT_ONCE = 8192
"""Rows that are converted to Python values at a time."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """Item metadata. `rows[i]` has the values of `fields` for item column i, or None if the table lacks the item."""

    fields: tuple[str, ...]
    rows: Sequence[tuple[Any, ...] | None]


class ItemTables(NamedTuple):
    """The two parts of a recipe's metadata table. A part that the recipe does not declare is None."""

    metadata: MetadataTable | None
    filters: FilterFields | None


def load_metadata(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str], *, n_rows: int = 0
) -> ItemTables:
    """Read the metadata fields and the filter fields of all items. Fields keep the recipe's order.

    The table may have about `n_rows` rows, or as many as there are items. If an item has several rows, the last one
    counts. Fields in `SVC_METADATA_FIELD_DENY` are left out of answers and closed to filters of requests. Raises
    `MetadataError` if the table cannot be read, lacks its id column or a field that the recipe requires, or has a
    filter value of the wrong kind.
    """
    declared = recipe.recipe.item_metadata
    if declared is None:
        return ItemTables(None, None)
    answered = tuple(name for name in declared.fields if not settings.is_denied(name))
    fields = tuple(dict.fromkeys((*answered, *declared.filter_kinds)))
    if not fields:
        return ItemTables(None, None)
    bounds = TableBounds.for_serving(max(len(item_ids), n_rows), 1 + len(fields))
    table = _fetch(declared, fields, bounds, recipe=recipe, settings=settings, variables=variables)
    missing = [name for name in fields if name not in table.names]
    if missing:
        logs.emit(events.METADATA_FIELD_MISSING, name=recipe.recipe.name, fields=missing)
    metadata = MetadataTable(answered, _Rows(table, answered, item_ids)) if answered else None
    if not declared.filter_fields:
        return ItemTables(metadata, None)
    hidden = tuple(name for name in declared.filter_kinds if settings.is_denied(name))
    return ItemTables(metadata, _filter_fields(declared, table, item_ids, hidden))


def _filter_fields(declared: ItemMetadata, table: ItemTable, item_ids: IdTable, denied: Sequence[str]) -> FilterFields:
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


def _fetch(
    declared: ItemMetadata,
    fields: tuple[str, ...],
    bounds: TableBounds,
    *,
    recipe: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
) -> ItemTable:
    """Read the table, which has at least the id column. Raises MetadataError."""
    from svc.sources.base import SourceContext  # imports pyarrow, which a server without metadata does not need

    lenient = declared.on_field_missing == "null"
    columns = None if lenient else (declared.id_column, *fields)
    context = SourceContext.for_served_table(
        recipe.base_dir, settings, variables, declared.id_column, columns, bounds=bounds
    )
    needed = (declared.id_column,) if lenient else (declared.id_column, *fields)
    try:
        return read_item_table(declared.source, context, needed, _lacking)
    except DataSourceError as error:
        raise MetadataError(f"item metadata: {error.message}") from error


def _lacking(text: str) -> MetadataError:
    return MetadataError(f"item metadata {text}")


class _Rows(Sequence[tuple[Any, ...] | None]):
    """The rows of the model's items, in the model's order. Converted to Python values ROWS_AT_ONCE at a time."""

    def __init__(self, table: ItemTable, fields: Sequence[str], item_ids: IdTable) -> None:
        self._table = table
        self._fields = fields
        self._places = np.full(len(item_ids), -1, dtype=np.int64)
        items = item_ids.indices(table.texts)[table.codes] if table.texts else np.empty(0, dtype=np.int32)
        of_model = np.flatnonzero((items >= 0) & (table.codes[: len(items)] >= 0))
        self._places[items[of_model]] = of_model

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
        names, empty = self._table.names, [None] * len(rows)
        columns = [self._table.take(name, rows) if name in names else empty for name in self._fields]
        return zip(*columns, strict=True)
