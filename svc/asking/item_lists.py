"""Lists of available items and of new items: reading them from a source, and mapping their ids to items of a model.

The lists change while the server runs, so `list_watch.ListWatch` reads them again at intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from pydantic_core import to_json

from svc.asking.item_tables import ROWS_AT_ONCE, MetadataTable, ids_and_features, load_metadata, read_item_table
from svc.errors import DataSourceError, FeaturesNotSupported, FeatureValueUnusable
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability
from svc.settings import Settings
from svc.sources.base import SourceContext, TableBounds


def available_items(
    declared: Availability, ids: Sequence[str], item_ids: IdTable, new: NewItems | None = None
) -> ItemSet:
    """Return the items that a list of available items permits, among the items of the model and the new items.

    The columns of `new` follow the columns of `item_ids`, the model's items. `ids` are the ids in the list. A list of
    mode "allow" permits these items, and a list of mode "deny" permits all other items. Unknown ids are ignored. Takes
    long if the list is long.
    """
    columns, n_items = item_ids.indices(ids), len(item_ids)
    if new is not None:
        columns = np.concatenate([columns, np.where((rows := new.rows(ids)) < 0, -1, n_items + rows)])
        n_items += len(new)
    items = ItemSet.of_columns(columns[columns >= 0], n_items)
    return items if declared.mode == "allow" else ~items


def read_ids(
    recipe: LoadedRecipe, settings: Settings, variables: Mapping[str, str], n_items: int = 0
) -> tuple[str, ...]:
    """Return the distinct ids in the recipe's list of available items, in order of first appearance. Blocks.

    Empty ids are left out. `n_items` is the number of the model's items, or 0 without a model. It bounds the size of
    the list (`TableBounds.for_serving`). Raises DataSourceError if the list cannot be read or is too large.
    """
    declared = recipe.recipe.serving.availability
    assert declared is not None, "asked only for a recipe with a list"
    columns, bounds = (declared.id_column,), TableBounds.for_serving(n_items, 1)
    context = SourceContext.for_served_table(
        recipe.base_dir, settings, variables, declared.id_column, columns, bounds=bounds
    )
    table = read_item_table(declared.source, context, columns, "the list")
    return tuple(text for text in table.texts if text)


@dataclass(frozen=True, slots=True)
class NewItemList:
    """The content of a recipe's list of new items."""

    ids: tuple[str, ...] = field(compare=False)
    features: tuple[Mapping[str, Any], ...] = field(compare=False)
    """Feature values of each item by column."""
    metadata: MetadataTable | None = field(compare=False)
    filters: FilterFields = field(compare=False)
    digest: bytes
    """Digest of all other fields. Two lists with the same digest are equal."""


def read_new_items(
    recipe: LoadedRecipe, settings: Settings, variables: Mapping[str, str], n_items: int = 0
) -> NewItemList:
    """Return the content of the recipe's list of new items, with the metadata of these items. Blocks.

    `n_items` is the number of the model's items. The bounds of the metadata table follow from it and from the length of
    the list.

    Raises DataSourceError if the list cannot be read, has more than `max_items` items, or lacks or repeats an id.
    Raises MetadataError if the metadata cannot be read.
    """
    declared, features = recipe.recipe.serving.new_items, recipe.recipe.features
    assert declared is not None and features is not None and features.item is not None, "checked with the recipe"
    names = tuple(column.name for column in features.item.columns)
    columns = (features.item.id_column, *names)
    bounds = TableBounds.for_serving(declared.max_items, len(columns))
    context = SourceContext.for_served_table(recipe.base_dir, settings, variables, columns[0], columns, bounds=bounds)
    table = read_item_table(declared.source, context, columns, "the list")
    n_rows = len(table.codes)
    if n_rows > declared.max_items:
        raise DataSourceError(
            f"the list has {n_rows} items, more than serving.new_items.max_items, {declared.max_items}: raise it, or"
            " leave out items that are not new any more"
        )
    ids, rows = ids_and_features(table, columns[0], names)
    metadata, filters, _ = load_metadata(recipe, settings, IdTable.from_ids(ids), variables, n_rows=n_items + n_rows)
    if metadata is not None:
        metadata = MetadataTable(metadata.fields, list(metadata.rows))
    return NewItemList(ids, rows, metadata, filters, _digest(ids, rows, metadata, filters))


def new_items_of_recipe(
    recipe: LoadedRecipe, model: Model, settings: Settings, variables: Mapping[str, str]
) -> NewItems | None:
    """Return the items of the recipe's list that the model does not know, or None if the recipe has no such list.

    Blocks. Raises the errors of `read_new_items`, and DataSourceError if the model cannot use the list.
    """
    declared = recipe.recipe.serving.new_items
    if declared is None:
        return None
    try:
        listed = read_new_items(recipe, settings, variables, model.n_items)
        return model.new_items(listed.ids, listed.features, declared.max_share, declared.min_share)
    except (FeatureValueUnusable, FeaturesNotSupported) as error:
        raise DataSourceError(f"the model cannot use the list of new items: {error.message}") from None


def _digest(
    ids: Sequence[str], rows: Sequence[Mapping[str, Any]], metadata: MetadataTable | None, filters: FilterFields
) -> bytes:
    """Return a digest of ids, features, metadata and filter values of a list."""
    digest = blake2b(digest_size=16)
    for start in range(0, len(ids), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        shown = None if metadata is None else metadata.rows[part]
        digest.update(to_json([ids[part], rows[part], shown], inf_nan_mode="strings", fallback=str))
    for filtered in filters.fields.values():
        for array in filtered.arrays():
            digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
