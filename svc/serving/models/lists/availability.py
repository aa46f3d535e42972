"""Lists of available items, read while the server runs and mapped to the items of the model.

A list is read whole and swapped as one reference. If a refresh fails, the last list stays, and its age grows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from svc.errors import AvailabilityStale, DataSourceError
from svc.model.ids import IdTable
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.item_tables import read_item_table
from svc.settings import Settings
from svc.sources.base import TableBounds


@dataclass(frozen=True, slots=True)
class ItemList:
    """The distinct ids of a list at `read_at`, a time of trio's clock. Lists with the same ids are equal."""

    ids: tuple[str, ...]
    read_at: float = field(default=0.0, compare=False)

    def without_ids(self, shift_s: float) -> ItemList:
        """Return the list without its ids, on a clock that is ahead by `shift_s`."""
        return ItemList((), self.read_at + shift_s)


@dataclass(frozen=True, slots=True, eq=False)
class Available:
    """The list of one recipe for one model, as the items that may be shown.

    `items` is None until a list has been read. Until then, mode `deny` allows all items, and mode `allow` refuses
    requests.
    """

    declared: Availability
    items: ItemSet | None
    listed: ItemList | None

    @classmethod
    def of(
        cls, declared: Availability, listed: ItemList | None, item_ids: IdTable, new: NewItems | None = None
    ) -> Self:
        """Return the items of the model and the new items that the list lets through.

        Unknown ids are ignored. Takes long if the list is long.
        """
        if listed is None:
            return cls(declared, None, None)
        columns, n_items = item_ids.indices(listed.ids), len(item_ids)
        if new is not None:
            columns = np.concatenate([columns, np.where((rows := new.rows(listed.ids)) < 0, -1, n_items + rows)])
            n_items += len(new)
        items = ItemSet.of_columns(columns[columns >= 0], n_items)
        return cls(declared, items if declared.mode == "allow" else ~items, listed)

    def require_fresh(self, now: float) -> None:
        """Raise AvailabilityStale in mode `allow` if the list is missing or too old."""
        if self.declared.mode == "allow" and is_stale(self.declared, age_of(self.listed, now)):
            raise AvailabilityStale


class Dated(Protocol):
    """A list that was read at a time of trio's clock."""

    @property
    def read_at(self) -> float: ...


def age_of(listed: Dated | None, now: float) -> float | None:
    """Return the seconds since the source was last read or found unchanged, or None if it never was."""
    return None if listed is None else max(0.0, now - listed.read_at)


def is_stale(declared: Availability, age_s: float | None) -> bool:
    """Return True if a list of this age is too old, or was never read."""
    return age_s is None or (declared.max_stale_seconds is not None and age_s > declared.max_stale_seconds)


def read_ids(
    recipe: LoadedRecipe, settings: Settings, variables: Mapping[str, str], n_items: int = 0
) -> tuple[str, ...]:
    """Read the distinct ids of the recipe's list, in order of first appearance. Blocks.

    `n_items` is the number of the model's items. Raises DataSourceError, also if the list is far longer than that.
    """
    from svc.sources.base import SourceContext

    assert recipe.recipe.serving is not None and recipe.recipe.serving.availability is not None
    declared = recipe.recipe.serving.availability
    bounds = TableBounds.for_serving(n_items, 1)
    context = SourceContext.for_served_table(
        recipe.base_dir, settings, variables, declared.id_column, (declared.id_column,), bounds=bounds
    )
    table = read_item_table(declared.source, context, (declared.id_column,), lacking, shown="the list")
    return tuple(text for text in table.texts if text)


def lacking(text: str) -> DataSourceError:
    """Return the error for a list that lacks a column. `text` completes the sentence "the list ..."."""
    return DataSourceError(f"the list {text}")
