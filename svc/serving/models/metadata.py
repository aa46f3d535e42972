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
from svc.sources.bounds import TableBounds

if TYPE_CHECKING:
    from svc.recipe.side_tables import ItemMetadata

ROWS_AT_ONCE = 8192
"""Rows that are converted to Python values at a time."""


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """`rows` holds, for each item column in order, the values of `fields`, or None for an item that the table lacks."""

    fields: tuple[str, ...]
    rows: Sequence[tuple[Any, ...] | None]


class ItemTables(NamedTuple):
    """The result of reading a recipe's metadata table; None for a part that the recipe does not declare."""

    metadata: MetadataTable | None
    filters: FilterFields | None


def load_metadata(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str], *, n_rows: int = 0
) -> ItemTables:
    """The declared fields of every item, and the fields that filters read, out of a table of about `n_rows` or of
    as many rows as there are items.

    Fields that `SVC_METADATA_FIELD_DENY` names are not answered, and no request may filter on them. Fields stay in
    the recipe's order. Of several rows for one item the last one counts. Raises `MetadataError` when the table cannot
    be read, or lacks its id column, or lacks a field and the recipe does not admit that, or when a cell of a filter
    field is not of its kind.
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
    """The table, with at least the id column. Sources are imported here: they bring pyarrow along, some pandas."""
    from svc.sources.base import SourceContext

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
    """The rows of the model's items, in their order, some of them at a time; rows of other items are left out."""

    def __init__(self, table: ItemTable, fields: Sequence[str], item_ids: IdTable) -> None:
        self._found = table
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
        names, nothing = self._found.names, [None] * len(rows)
        columns = [self._found.take(name, rows) if name in names else nothing for name in self._fields]
        return zip(*columns, strict=True)
