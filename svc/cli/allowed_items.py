"""The items that an export may recommend.

They are the items that a recipe's server would allow at this moment and that satisfy --filter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from svc.errors import UsageError
from svc.recipe.filter_tree import Filter, FilterProblem, parse_filter

if TYPE_CHECKING:
    from svc.model.ids import IdTable
    from svc.model.ranking.item_sets import ItemSet
    from svc.recipe.load import LoadedRecipe
    from svc.serving.models.lists.new_items import PlacedItems
    from svc.settings import Settings


def parse_json(text: str | None) -> Any:
    """Return the tree of --filter.

    Raises UsageError.
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--filter: is no JSON: {error}") from None


def allowed_items(
    recipe: LoadedRecipe,
    asked: Any,
    item_ids: IdTable,
    settings: Settings,
    variables: Mapping[str, str],
    *,
    new: PlacedItems | None = None,
) -> ItemSet | None:
    """Return the items that `serving.filter`, the list of available items and the tree `asked` leave.

    None means all items. With `new` items the set has columns for these too.

    Raises UsageError for a tree that is no filter, MetadataError and DataSourceError for tables that cannot be read.
    """
    serving = recipe.recipe.serving
    if asked is None and serving is None:
        return None
    from svc.model.ranking.item_sets import joined
    from svc.serving.models.policy import Policy

    trees = [tree for tree in (Policy.of(recipe.recipe).filter, _checked(asked, recipe, settings)) if tree is not None]
    filtered = _filtered(trees, recipe, item_ids, settings, variables, new=new)
    return joined(*filtered, _available(recipe, item_ids, settings, variables, new=new))


def _checked(asked: Any, recipe: LoadedRecipe, settings: Settings) -> Filter | None:
    if asked is None:
        return None
    kinds = recipe.recipe.filter_kinds
    open_kinds = {name: kind for name, kind in kinds.items() if not settings.is_denied(name)}
    try:
        return parse_filter(asked, open_kinds)
    except FilterProblem as problem:
        path = ".".join(map(str, problem.place))
        raise UsageError(f"--filter{': ' if path else ''}{path}: {problem.message}") from None


def _filtered(
    trees: list[Filter],
    recipe: LoadedRecipe,
    item_ids: IdTable,
    settings: Settings,
    variables: Mapping[str, str],
    *,
    new: PlacedItems | None,
) -> list[ItemSet]:
    if not trees:
        return []
    from svc.serving.models.lists.new_items import joined_filters
    from svc.serving.models.metadata import load_metadata

    fields = joined_filters(load_metadata(recipe, settings, item_ids, variables).filters, new)
    assert fields is not None, "a filter names declared fields"
    return [fields.items(tree) for tree in trees]


def _available(
    recipe: LoadedRecipe,
    item_ids: IdTable,
    settings: Settings,
    variables: Mapping[str, str],
    *,
    new: PlacedItems | None,
) -> ItemSet | None:
    """Return the current list, because an export has no earlier list to go on with."""
    serving = recipe.recipe.serving
    if serving is None or serving.availability is None:
        return None
    from svc.serving.models.lists.availability import ItemList, line_up, read_ids

    listed = ItemList(read_ids(recipe, settings, variables, len(item_ids)), 0.0)
    return line_up(serving.availability, listed, item_ids, None if new is None else new.items).items
