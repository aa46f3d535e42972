"""Item metadata of a recipe, lined up with the item columns of its model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svc import events, logs
from svc.errors import DataSourceError, MetadataError
from svc.model.ids import IdTable
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings

if TYPE_CHECKING:
    import pandas

    from svc.recipe.schema import ItemMetadata


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """`rows[i]` holds the values of `fields` for item column i, or None for an item that the table lacks."""

    fields: tuple[str, ...]
    rows: Sequence[tuple[Any, ...] | None]


def load_metadata(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str]
) -> MetadataTable | None:
    """The declared fields of every item, without those that `SVC_METADATA_FIELD_DENY` names; None when none are left.

    Fields stay in the recipe's order. Of several rows for one item the last one counts. Raises `MetadataError` when
    the table cannot be read, or lacks its id column, or lacks a field and the recipe does not admit that.
    """
    declared = recipe.recipe.item_metadata
    if declared is None:
        return None
    fields = tuple(name for name in declared.fields if name not in settings.metadata_field_deny)
    if not fields:
        return None
    frame = _fetch(declared, fields, recipe, settings, variables)
    missing = [name for name in fields if name not in frame.columns]
    if missing:
        logs.emit(events.METADATA_FIELD_MISSING, name=recipe.recipe.name, fields=missing)
    return MetadataTable(fields, _rows(frame, declared.id_column, fields, item_ids))


def _fetch(
    declared: ItemMetadata,
    fields: tuple[str, ...],
    recipe: LoadedRecipe,
    settings: Settings,
    variables: Mapping[str, str],
) -> pandas.DataFrame:
    """The table, with at least the id column. Sources are imported here: most of them bring pandas along."""
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
    )
    try:
        frame = build_source(declared.source, context).fetch()
    except DataSourceError as error:
        raise MetadataError(f"item metadata: {error.message}") from error
    needed = (declared.id_column,) if lenient else (declared.id_column, *fields)
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        there = ", ".join(map(str, frame.columns))
        raise MetadataError(f"item metadata lacks the column {lacking[0]!r}; it has {there}")
    return frame


def _rows(
    frame: pandas.DataFrame, id_column: str, fields: tuple[str, ...], item_ids: IdTable
) -> list[tuple[Any, ...] | None]:
    """The rows of the model's items, in their order; rows of other items are dropped first."""
    ids = frame[id_column]
    columns = item_ids.indices([str(value) for value in ids.cat.categories])[ids.cat.codes.to_numpy()]
    known = (columns >= 0) & (ids.cat.codes.to_numpy() >= 0)
    frame, columns = frame.loc[known], columns[known]
    rows: list[tuple[Any, ...] | None] = [None] * len(item_ids)
    values = [_values(frame[name]) if name in frame.columns else [None] * len(frame) for name in fields]
    for column, row in zip(columns.tolist(), zip(*values, strict=True), strict=True):
        rows[column] = row
    return rows


def _values(series: pandas.Series) -> list[Any]:
    """Plain Python values; what pandas calls missing, and numbers that JSON cannot say, are None."""
    missing = series.isna().to_list()
    return [None if gone else _plain(value) for gone, value in zip(missing, series.to_list(), strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else value
