"""The offer: all from which the requests to one recipe are answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from svc.asking.item_lists import available_items, read_ids
from svc.asking.item_tables import load_metadata
from svc.asking.names import Names
from svc.asking.policy import DEFAULT_POLICY, Policy
from svc.model.ranking.filter_fields import NO_FIELDS, FilterFields
from svc.model.ranking.item_sets import ItemSet, intersect
from svc.model.ranking.new_items import NewItems, ids_with

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.recipe.load import LoadedRecipe
    from svc.settings import Settings


@dataclass(frozen=True, eq=False, kw_only=True)
class Offer:
    """A model with the filter fields, serving rules and lists of a recipe. Immutable.

    Item sets and filter fields have columns for the items of the model, followed by the new items.
    """

    model: Model
    filters: FilterFields = NO_FIELDS
    policy: Policy = DEFAULT_POLICY
    new_items: NewItems | None = None
    """New items that may be recommended, or None without new items."""
    available: ItemSet | None = None
    """Items that the list of available items permits, or None without such a list."""
    always: ItemSet | None = None
    """Items that satisfy the recipe's own filter, or None without such a filter."""
    names: Names = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", Names(self.model, self.new_items))

    @classmethod
    def read(
        cls,
        recipe: LoadedRecipe,
        model: Model,
        settings: Settings,
        variables: Mapping[str, str],
        *,
        new_items: NewItems | None = None,
        filters: FilterFields | None = None,
        **more: Any,
    ) -> Self:
        """Return the offer that the recipe's server would make now, with the fields `more` of a subclass. Blocks.

        `filters` are the filter fields of the model's items and `new_items`. None: they are read from the recipe's
        metadata if the recipe has a filter. Raises DataSourceError and MetadataError if a table cannot be read, because
        there is no earlier list to use instead.
        """
        policy, item_ids = Policy.of(recipe), ids_with(model.item_ids, new_items)
        if filters is None:
            has_filter = policy.filter is not None
            filters = load_metadata(recipe, settings, item_ids, variables).filters if has_filter else NO_FIELDS
        available, declared = None, recipe.recipe.serving.availability
        if declared is not None:
            available = available_items(declared, read_ids(recipe, settings, variables, len(item_ids)), item_ids)
        always = None if policy.filter is None else filters.items(policy.filter)
        return cls(
            model=model,
            filters=filters,
            policy=policy,
            # An empty list is no list: queries then need neither candidates nor rules for them.
            new_items=new_items or None,
            available=available,
            always=always,
            **more,
        )

    def allowed_items(self, own: ItemSet | None = None) -> ItemSet | None:
        """Return the items that an answer may contain, or None for all items.

        `own` is the set of items that satisfy the filter of the request, or None without a filter.
        """
        return intersect(self.always, self.available, own)
