"""New items for a recommender in Python, from a caller's DataFrame or from the recipe's list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from svc.errors import DataSourceError, FeaturesNotSupported, FeatureValueUnusable, UsageError
from svc.library.tables import as_arrow, check_id_type, column_names, is_table, require
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.new_items import NewItems
from svc.serving.models.item_tables import ids_and_features, of_arrow

if TYPE_CHECKING:
    from svc.export.run import OpenedArtifact
    from svc.recipe.load import LoadedRecipe
    from svc.settings import Settings


def new_items_of(items: Any, opened: OpenedArtifact, max_share: float | None, min_share: float) -> NewItems | None:
    """Return the items of the table that the model does not know, placed by features, or None if `items` is None.

    The ids are in the id column of the training's features, or in `item_id`. Raises UsageError, which names row and
    column, and FeaturesNotSupported for a model without features of items.
    """
    if items is None:
        return None
    for name, share in (("new_items_share", max_share), ("new_items_min_share", min_share)):
        if share is not None and not 0.0 <= share <= 1.0:
            raise UsageError(f"{name}: {share} is not within 0..1")
    if max_share is not None and min_share > max_share:
        raise UsageError(f"new_items_min_share: {min_share} is above new_items_share, {max_share}")
    if not is_table(items):
        raise UsageError(f"new_items: give a DataFrame with a row for each item, not a {type(items).__name__}")
    model = opened.model
    encoder = None if model.features is None else model.features.item
    if encoder is None:
        raise FeaturesNotSupported(FeaturesNotSupported.template.format(side="item"))
    there = column_names(items, "new_items")
    trained_by = _feature_id_column(opened.header.get("recipe") or {})
    id_column = trained_by if trained_by in there else "item_id"
    for name in (id_column, *encoder.columns):
        require({"new_items": name}, there, "the table")
    table = as_arrow(items, list(dict.fromkeys([id_column, *encoder.columns])), "new_items")
    check_id_type(table, id_column, "new_items", "new_items")
    ids = table.column(id_column).cast(pa.large_string()).dictionary_encode()
    table = table.set_column(table.column_names.index(id_column), id_column, ids)
    try:
        ids_of, features = ids_and_features(of_arrow(table, id_column), id_column, encoder.columns)
        return model.new_items(ids_of, features, max_share, min_share)
    except (DataSourceError, FeatureValueUnusable) as error:
        raise UsageError(f"new_items: {error.message}") from None


def new_items_of_recipe(
    recipe: LoadedRecipe, model: Model, settings: Settings, variables: Mapping[str, str]
) -> NewItems | None:
    """Return the new items of the recipe's list, as a server reads it, or None without a list.

    Raises DataSourceError, MetadataError and FeatureValueUnusable, which names the row.
    """
    from svc.serving.models.lists.new_items import declared_in, read_new_items

    declared = declared_in(recipe)
    if declared is None:
        return None
    listed = read_new_items(recipe, settings, variables, model.n_items)
    return model.new_items(listed.ids, listed.features, declared.max_share, declared.min_share)


def _feature_id_column(recipe: Mapping[str, Any]) -> str:
    """Return the id column of the items' feature table in the recipe of a training."""
    item = (recipe.get("features") or {}).get("item") or {}
    return str(item.get("id_column", "item_id"))


def ids_with(item_ids: IdTable, new: NewItems | None) -> IdTable:
    """Return the ids of a model's items, followed by those of the new ones."""
    return item_ids if new is None else IdTable.from_ids([*item_ids.all(), *new.ids.all()])
