"""The new items of a list in the form in which one served model recommends them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from svc.asking.item_lists import NewItemList
from svc.asking.item_tables import MetadataTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields
from svc.model.ranking.new_items import NewItems
from svc.recipe import serving_schema
from svc.serving.models.fragments import ItemFragments


@dataclass(frozen=True, slots=True, eq=False)
class PlacedItems:
    """The items of a list of new items that one model does not know, in the form in which it recommends them.

    `fragments` and `filters` cover only these items.
    """

    items: NewItems
    fragments: ItemFragments
    filters: FilterFields


def place_with_fragments(
    listed: NewItemList,
    model: Model,
    declared: serving_schema.NewItems,
    *,
    yield_gil: Callable[[], None] = lambda: None,
) -> PlacedItems:
    """Return the items of the list that the model does not know, with vectors, filter fields and encoded metadata.

    `declared` has the bounds for the share of new items in a ranking. Call this function from a thread, because
    preparing a long list takes long. `yield_gil` is called after each item. Raises FeaturesNotSupported if the model
    has no item features, or FeatureValueUnusable if it cannot use the value of a feature.
    """
    items = model.new_items(listed.ids, listed.features, declared.max_share, declared.min_share, yield_gil=yield_gil)
    # The same items in the order of `items`, because metadata and filter values are joined to them by position.
    rows = model.unknown(listed.ids)
    metadata = None
    if listed.metadata is not None:
        metadata = MetadataTable(listed.metadata.fields, [listed.metadata.rows[row] for row in rows.tolist()])
    return PlacedItems(items, ItemFragments.build(items.ids, metadata), listed.filters.of_items(rows))
