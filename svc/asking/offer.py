"""The offer: all from which the requests to one recipe are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svc.asking.names import Names
from svc.asking.policy import DEFAULT_POLICY, Policy
from svc.model.ranking.filter_fields import NO_FIELDS, FilterFields
from svc.model.ranking.item_sets import ItemSet, intersect
from svc.model.ranking.new_items import NewItems

if TYPE_CHECKING:
    from svc.model.model import Model


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

    def allowed_items(self, own: ItemSet | None = None) -> ItemSet | None:
        """Return the items that an answer may contain, or None for all items.

        `own` is the set of items that satisfy the filter of the request, or None without a filter.
        """
        return intersect(self.always, self.available, own)
