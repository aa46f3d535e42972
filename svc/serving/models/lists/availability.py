"""Lists of available items: read from their source while the server runs, and mapped to the items of the model.

A list is read whole and swapped as one reference. A refresh that fails keeps the last list, whose age grows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from svc.errors import AvailabilityStale, DataSourceError
from svc.model.ids import IdTable
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.threads import be_nice
from svc.settings import Settings
from svc.sources.bounds import TableBounds

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class ItemList:
    """The distinct ids of a list, as they were at `read_at`, a time of trio's clock."""

    ids: tuple[str, ...]
    read_at: float


@dataclass(frozen=True, slots=True, eq=False)
class Available:
    """The list of one recipe for one model: its items, all of them before there is a list in mode `deny`.

    `items` is None while there is no list in mode `allow`.
    """

    declared: Availability
    items: ItemSet | None
    listed: ItemList | None

    def age_s(self, now: float) -> float | None:
        """Seconds since the source was last read or found unchanged; None: never."""
        return None if self.listed is None else max(0.0, now - self.listed.read_at)

    def is_stale(self, now: float) -> bool:
        age_s = self.age_s(now)
        most_s = self.declared.max_stale_seconds
        return age_s is None or (most_s is not None and age_s > most_s)

    def require_fresh(self, now: float) -> None:
        """Raise AvailabilityStale in mode `allow` when no list can be trusted."""
        if self.declared.mode == "allow" and self.is_stale(now):
            raise AvailabilityStale


def line_up(
    declared: Availability, listed: ItemList | None, item_ids: IdTable, new: NewItems | None = None
) -> Available:
    """The list as a set of the model's and the new items; unknown ids are ignored. Slow for long lists."""
    if listed is None:
        return Available(declared, None, None)
    columns, n_items = item_ids.indices(listed.ids), len(item_ids)
    if new is not None:
        columns = np.concatenate([columns, np.where((rows := new.rows(listed.ids)) < 0, -1, n_items + rows)])
        n_items += len(new)
    items = ItemSet.of_columns(columns[columns >= 0], n_items)
    return Available(declared, items if declared.mode == "allow" else ~items, listed)


def read_ids(
    recipe: LoadedRecipe, settings: Settings, variables: Mapping[str, str], n_items: int = 0
) -> tuple[str, ...]:
    """The distinct ids of the recipe's list, in order of first appearance, for a model of `n_items`. Blocks.

    Raises DataSourceError, also for a list that is far larger than the model's items need.
    """
    be_nice()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    from svc.sources.base import SourceContext, build_source

    assert recipe.recipe.serving is not None and recipe.recipe.serving.availability is not None
    declared = recipe.recipe.serving.availability
    bounds = TableBounds.for_serving(n_items, 1)
    context = SourceContext.for_served_table(
        recipe.base_dir, settings, variables, declared.id_column, (declared.id_column,), bounds=bounds
    )
    source = build_source(declared.source, context)
    fetch_arrow: Callable[[], pa.Table] | None = getattr(source, "fetch_arrow", None)
    if fetch_arrow is not None:
        table = fetch_arrow()
        _require(declared.id_column, table.column_names)
        return tuple(text for text in table.column(declared.id_column).combine_chunks().dictionary.to_pylist() if text)
    frame = source.fetch()
    bounds.check(len(frame), int(frame.memory_usage().sum()), "the list")  # of a plug-in that does not know them
    _require(declared.id_column, [str(name) for name in frame.columns])
    return tuple(str(text) for text in frame[declared.id_column].cat.categories if str(text))


def _require(column: str, there: list[str]) -> None:
    if column not in there:
        raise DataSourceError(f"the list lacks the column {column!r}; it has {', '.join(there)}")
