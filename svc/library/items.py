"""Read the caller's item tables: metadata of the model's items, and new items.

Filters and answers use the columns of the metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api import types

from svc import events, logs
from svc.asking.item_tables import few_items, ids_and_features, load_metadata, of_arrow
from svc.errors import DataSourceError, FeaturesNotSupported, FeatureValueUnusable, MetadataError, UsageError
from svc.library.tables import as_arrow, as_pandas, as_table, check_id_type, column_names, plain, require
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import NO_FIELDS, Field, FilterFields, LabelField, NumberField
from svc.model.ranking.new_items import NewItems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from svc.export.run import OpenedArtifact
    from svc.recipe.load import LoadedRecipe
    from svc.settings import Settings


def new_items_of(items: Any, opened: OpenedArtifact, max_share: float | None, min_share: float) -> NewItems | None:
    """Return the items of the table that the model does not know, with vectors made from their features.

    Returns None if `items` is None. Ids are read from the id column of the item features in the training's recipe, or
    from `item_id` if the table has no such column. `max_share` and `min_share` are the shares of new items in rankings,
    as `new_items_share` and `new_items_min_share` of `svc.load`.

    Raises UsageError, which names row and column of an unusable value, and FeaturesNotSupported for a model without
    item features.
    """
    if items is None:
        return None
    for name, share in (("new_items_share", max_share), ("new_items_min_share", min_share)):
        if share is not None and not 0.0 <= share <= 1.0:
            raise UsageError(f"{name}: {share} is not within 0..1")
    if max_share is not None and min_share > max_share:
        raise UsageError(f"new_items_min_share: {min_share} is above new_items_share, {max_share}")
    items = as_table(items, "new_items", "a row for each item")
    model = opened.model
    encoder = None if model.features is None else model.features.item
    if encoder is None:
        raise FeaturesNotSupported(FeaturesNotSupported.template.format(side="item"))
    there = column_names(items, "new_items")
    trained_by = _feature_id_column(opened.header.get("recipe") or {})
    # A table may come from another place than that of the training.
    id_column = trained_by if trained_by in there else "item_id"
    for name in (id_column, *encoder.columns):
        require({"new_items": name}, there, "the table")
    table = as_arrow(items, list(dict.fromkeys([id_column, *encoder.columns])), "new_items")
    check_id_type(table, id_column, "new_items", "new_items")
    # As sources return ids, so that the same function reads both.
    ids = table.column(id_column).cast(pa.large_string()).dictionary_encode()
    table = table.set_column(table.column_names.index(id_column), id_column, ids)
    try:
        ids_of, features = ids_and_features(of_arrow(table, id_column), id_column, encoder.columns)
        return model.new_items(ids_of, features, max_share, min_share)
    except (DataSourceError, FeatureValueUnusable) as error:
        raise UsageError(f"new_items: {error.message}") from None


def _feature_id_column(recipe: Mapping[str, Any]) -> str:
    """Return the id column of the items' feature table in the recipe of a training, or `item_id` without a table."""
    item = (recipe.get("features") or {}).get("item") or {}
    return str(item.get("id_column", "item_id"))


DELIMITER = "|"
"""Separates the labels of a cell, as by default in recipes."""
RESERVED = frozenset(
    {"user_id", "rank", "item_id", "score", "reason", "because", "in_spite_of", "rest"}
)  # columns of answers


class ItemTable(NamedTuple):
    """The metadata of a model's items and new items, one row per item in the order of their columns in rankings.

    `frame` is shown beside recommended items. `filters` are the fields by which requests may filter, limit and boost.
    """

    frame: pd.DataFrame
    filters: FilterFields

    def of(self, columns: NDArray[Any]) -> pd.DataFrame:
        """Return the rows of these item columns, (n,)."""
        return self.frame.iloc[columns].reset_index(drop=True)

    def facts(self, column: int) -> dict[str, Any]:
        """Return the values of one item by column name. Missing values are None."""
        return {str(name): plain(values.iloc[column]) for name, values in self.frame.items()}


NO_ITEM_TABLE = ItemTable(pd.DataFrame(), NO_FIELDS)


def item_table(items: Any, item_ids: IdTable, id_column: str) -> ItemTable:
    """Build the table of `item_ids` from a caller's DataFrame, which need not have all of them.

    If an item has several rows, the last one counts. Rows of other items are left out. Ids are read from `id_column`,
    or from `item_id` if the DataFrame has no such column. All columns are shown, and all but times are filter fields.
    Logs a warning if fewer than half of `item_ids` are there.
    Raises UsageError.
    """
    items = as_table(items, "items", "a row for each item")
    names = column_names(items, "items")
    id_column = id_column if id_column in names else "item_id"
    require({"items": id_column}, names, "the table")
    frame = as_pandas(items, "items")
    ids = frame[id_column]
    if not ids.dropna().map(lambda value: isinstance(value, str)).all():
        raise UsageError(
            f"items: ids are text, and the column {id_column!r} holds other values; use str(...) for each, such as "
            f"items[{id_column!r}] = items[{id_column!r}].astype(str)"
        )
    # Two columns of one name would make `frame["score"]` a frame.
    taken = sorted(RESERVED & {*names} - {id_column})
    if taken:
        raise UsageError(f"items: rename the column {taken[0]!r}, because answers already have a column of this name")
    frame = frame[ids.notna()].drop_duplicates(id_column, keep="last").set_index(frame.columns[names.index(id_column)])
    # Items without a row get missing values, and `reindex` refuses repeated ids.
    aligned = frame.reindex(item_ids.all()).reset_index(drop=True)
    few = few_items(int(np.count_nonzero(item_ids.indices(frame.index.tolist()) >= 0)), len(item_ids))
    if few is not None:
        message = f"items: the table has {few['n_found']} of {few['n_items']} items: has {id_column!r} their ids?"
        logs.emit(events.RECIPE_WARNING, code="metadata_few_items", field="items", message=message)
    try:
        fields = {name: _field(name, aligned[name]) for name in aligned.columns if not _is_time(aligned[name])}
    except MetadataError as error:
        raise UsageError(f"items: {error.message}") from None
    return ItemTable(aligned, FilterFields(fields, len(item_ids)))


def require_items(items: Any, id_column: str, chosen: Collection[str]) -> None:
    """Raise UsageError if the caller's table of `items` has none of the `chosen` ones, before a training of them."""
    names = column_names(items, "items")
    id_column = id_column if id_column in names else "item_id"
    ids = as_pandas(items, "items")[id_column].dropna()
    # One common id is enough: whether many are missing is a warning after the training.
    if len(ids) and set(ids).isdisjoint(chosen):
        raise UsageError(
            f"items: none of the items of data, such as {min(chosen, default='')!r}, is in the column {id_column!r}, "
            f"which has such as {ids.iloc[0]!r}: has it the ids of items?"
        )


def items_of_recipe(
    recipe: LoadedRecipe, settings: Settings, item_ids: IdTable, variables: Mapping[str, str]
) -> ItemTable:
    """Return the recipe's `item_metadata`, read as a server reads it, empty if it has none. Raises MetadataError."""
    metadata, filters, _ = load_metadata(recipe, settings, item_ids, variables)
    if metadata is None:
        return ItemTable(NO_ITEM_TABLE.frame, filters)
    nothing = (None,) * len(metadata.fields)
    rows = [nothing if row is None else row for row in metadata.rows]
    return ItemTable(pd.DataFrame(rows, columns=list(metadata.fields)), filters)


def _field(name: str, column: pd.Series[Any]) -> Field:
    """Return the filter field of a column.

    It is numerical for a column of numbers, multi_label if any cell is a list or contains the delimiter, and
    categorical otherwise.
    """
    if types.is_numeric_dtype(column) and not types.is_bool_dtype(column):
        numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        # An infinite value is as missing as in recipes.
        return NumberField(np.where(np.isfinite(numbers), numbers, np.nan))
    values = [plain(value) for value in column]
    several = any(isinstance(value, list) or (isinstance(value, str) and DELIMITER in value) for value in values)
    return LabelField.read(name, "multi_label" if several else "categorical", DELIMITER, values, len(values))


def _is_time(column: pd.Series[Any]) -> bool:
    return types.is_datetime64_any_dtype(column) or types.is_timedelta64_dtype(column)
