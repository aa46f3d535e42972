"""Publication of lists: the current model and each later one is lined up with the lists of its recipe.

A list and a model that arrive at the same time are combined one after the other, under one lock a recipe.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from svc import events, logs, metrics
from svc.errors import SvcError
from svc.metrics import Metrics
from svc.model.ids import IdTable
from svc.serving.models.lists.availability import Available, ItemList, line_up
from svc.serving.models.lists.new_items import NewItemList, PlacedItems, joined_filters, place
from svc.serving.models.registry import Entry, ListsInForce, Registry
from svc.serving.models.threads import GilYielder, lower_priority

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.model.ranking.filter_fields import FilterFields
    from svc.recipe.serving_schema import Availability, NewItems

NO_IDS = IdTable.from_ids([])
Settled = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """The model that lists are lined up with, and its filter fields without those of new items."""

    model: Model
    filters: FilterFields | None


class ListPublisher:
    """The publisher of lists to the registry. Only the watcher's tasks call it."""

    def __init__(self, registry: Registry, counters: Metrics, settled: Settled | None = None) -> None:
        self._registry = registry
        self._metrics = counters
        self._settled = settled
        self._locks: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    def lock(self, name: str) -> trio.Lock:
        """Return the lock that is held while the model or a list of a recipe changes."""
        return self._locks[name]

    def forget(self, name: str) -> None:
        self._locks.pop(name, None)
        for gauge in (metrics.AVAILABILITY_AGE, metrics.NEW_ITEMS_AGE):
            self._metrics.forget(gauge, recipe=name)

    async def lined_up(self, name: str, beside: Beside) -> ListsInForce:
        """Return the recipe's lists for a model that is to go live.

        They are computed again if the recipe's lists change meanwhile. A list of new items that the model cannot use is
        left out, and logged.
        """
        while True:
            entry = self._registry.get(name)
            if entry is None or not entry.has_lists:
                return ListsInForce()
            try:
                lists = await trio.to_thread.run_sync(_line_up, entry, beside)
            except SvcError as error:
                logs.emit(events.NEW_ITEMS_LOAD_FAILED, name=name, error=logs.redact_text(error.message))
                lists = await trio.to_thread.run_sync(_line_up, replace(entry, new_listed=None), beside)
            now = self._registry.get(name)
            if now is None or now.same_lists(entry):
                return lists

    # Available items

    def list_declared(self, name: str, declared: Availability | None) -> None:
        """Publish that the recipe now declares a list, which has not been read yet, or no longer declares one."""
        entry = self._registry.get(name)
        if entry is None:
            return
        available = None if declared is None else line_up(declared, None, NO_IDS)
        served = entry.served and replace(entry.served, available=available)
        self._registry.put(replace(entry, availability=declared, listed=None, served=served))
        if declared is None:
            self._metrics.forget(metrics.AVAILABILITY_AGE, recipe=name)

    async def list_read(self, name: str, listed: ItemList) -> None:
        """Swap the list, for the current model and for later ones."""
        async with self.lock(name):
            entry = self._registry.get(name)
            if entry is None or entry.availability is None:
                return
            before, served = entry.listed, entry.served
            if before is not None and before.ids == listed.ids:
                if served is not None and served.available is not None:
                    served = replace(served, available=replace(served.available, listed=listed))
                self._registry.put(replace(entry, listed=listed, served=served))
                self.list_age(name)
                return
            self._registry.put(replace(entry, listed=listed))
            try:
                available = None if served is None else await self._available(name, served.model)
            except Exception:
                self._restore_list(name, listed, before)
                raise
            now = self._registry.get(name)
            if served is not None and now is not None and now.served is not None:
                self._registry.put(replace(now, served=replace(now.served, available=available)))
        if self._settled is not None:
            await self._settled()
        self.list_age(name)
        n_items = available and available.items and available.items.count
        mode, n_ids = entry.availability.mode, len(listed.ids)
        logs.emit(events.AVAILABILITY_LOADED, name=name, mode=mode, n_ids=n_ids, n_items=n_items)

    def _restore_list(self, name: str, listed: ItemList, before: ItemList | None) -> None:
        """Forget a list that could not be lined up.

        Otherwise the same ids, read again, would count as in force.
        """
        entry = self._registry.get(name)
        if entry is not None and entry.listed is listed:
            self._registry.put(replace(entry, listed=before))

    def list_age(self, name: str) -> tuple[float | None, bool]:
        """Return the seconds since the recipe's list was read, and True if it is too old.

        The seconds are None if the list was never read. Updates the metric too.
        """
        entry = self._registry.get(name)
        if entry is None or entry.availability is None:
            return None, False
        available = Available(entry.availability, None, entry.listed)
        now = trio.current_time()
        age_s = available.age_s(now)
        self._metrics.of(metrics.AVAILABILITY_AGE, recipe=name).set(math.inf if age_s is None else age_s)
        return age_s, available.is_stale(now)

    async def _available(self, name: str, model: Model) -> Available | None:
        """Return the list of available items for the served model.

        It is computed again if the recipe's lists change meanwhile.
        """
        while True:
            entry = self._registry.get(name)
            if entry is None or entry.availability is None:
                return None
            new = None if entry.served is None or entry.served.new is None else entry.served.new.items
            work = partial(line_up, entry.availability, entry.listed, model.item_ids, new)
            available = await trio.to_thread.run_sync(work)
            now = self._registry.get(name)
            if now is None or now.same_lists(entry):
                return available

    # New items

    def new_items_declared(self, name: str, declared: NewItems | None) -> None:
        """Publish that the recipe now declares a list, which has not been read yet, or no longer declares one."""
        entry = self._registry.get(name)
        if entry is None:
            return
        served = entry.served
        if served is not None and served.new is not None:
            available = (
                None if entry.availability is None else line_up(entry.availability, entry.listed, served.model.item_ids)
            )
            served = served.with_lists(ListsInForce(available))
        self._registry.put(replace(entry, new_items=declared, new_listed=None, served=served))
        if declared is None:
            self._metrics.forget(metrics.NEW_ITEMS_AGE, recipe=name)

    async def new_items_read(self, name: str, listed: NewItemList) -> None:
        """Swap the list, for the current model and for later ones.

        Raises SvcError if the model cannot use it.
        """
        async with self.lock(name):
            entry = self._registry.get(name)
            if entry is None or entry.new_items is None:
                return
            before, served = entry.new_listed, entry.served
            if before is not None and before.digest == listed.digest:
                self._registry.put(replace(entry, new_listed=replace(before, read_at=listed.read_at)))
                self.new_items_age(name)
                return
            lists = None
            if served is not None:
                beside = Beside(served.model, served.own_filters)
                lists = await trio.to_thread.run_sync(_line_up, replace(entry, new_listed=listed), beside)
            now = self._registry.get(name)
            if now is None or now.new_items is not entry.new_items:
                return
            served = now.served if lists is None or now.served is None else now.served.with_lists(lists)
            self._registry.put(replace(now, new_listed=listed, served=served))
        if self._settled is not None:
            await self._settled()
        self.new_items_age(name)
        n_new = None if lists is None or lists.new is None else len(lists.new.items)
        logs.emit(events.NEW_ITEMS_LOADED, name=name, n_ids=len(listed.ids), n_new=n_new)

    def new_items_age(self, name: str) -> None:
        """Update the metric of the list's age."""
        entry = self._registry.get(name)
        if entry is not None and entry.new_items is not None:
            age_s = math.inf if entry.new_listed is None else entry.new_listed.age_s(trio.current_time())
            self._metrics.of(metrics.NEW_ITEMS_AGE, recipe=name).set(age_s)


def _line_up(entry: Entry, beside: Beside) -> ListsInForce:
    """Return the lists of the entry for a model. Blocks and computes.

    Raises SvcError for new items that it cannot place.
    """
    new: PlacedItems | None = None
    if entry.new_items is not None and entry.new_listed is not None:
        lower_priority()
        new = place(entry.new_listed, beside.model, entry.new_items, yield_gil=GilYielder())
    available = None
    if entry.availability is not None:
        items = None if new is None else new.items
        available = line_up(entry.availability, entry.listed, beside.model.item_ids, items)
    return ListsInForce(available, new, joined_filters(beside.filters, new))
