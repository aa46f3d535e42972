"""Reads the recipes' lists again and again, each at its own interval, apart from the ticks of the watcher.

If a read fails or hangs, the last list stays in use, the error is logged once, and the next interval retries. While a
read hangs, no second one is started.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from svc import events, logs, metrics
from svc.errors import DataSourceError, SvcError
from svc.events import Event
from svc.metrics import Metric, Metrics
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.bounded_calls import Calls, CallTimeout
from svc.serving.models.item_lists import ItemList, NewItemList, age_of, is_stale
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.transitions import Publisher

READS_AT_ONCE = 4
READ_TIMEOUT_S = 30.0
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class ListKind:
    """A kind of list that recipes may declare, such as available items.

    `declared` and `listed` name fields of `Entry`, `declared` also a field of a recipe's `serving` block. `read` blocks
    and returns the source's list. `facts` returns the fields of the event `loaded`.
    """

    declared: str
    listed: str
    read: Callable[[LoadedRecipe], ItemList | NewItemList]
    age: Metric
    loaded: Event
    failed: Event
    facts: Callable[[Entry], dict[str, Any]]
    has_metadata: bool = False
    """True if the list has the recipe's item metadata too."""

    def inputs(self, recipe: LoadedRecipe) -> tuple[Any, Any]:
        """Return the parts of a recipe on which the content of the list depends. A change of one discards the list."""
        declared = getattr(recipe.recipe.serving, self.declared, None)
        return declared, recipe.recipe.item_metadata if self.has_metadata else None


def available_items(read_ids: Callable[[LoadedRecipe], tuple[str, ...]]) -> ListKind:
    """Return the kind of the lists of available items."""

    def facts(entry: Entry) -> dict[str, Any]:
        assert entry.availability is not None and entry.listed is not None, "they are in force"
        items = entry.served and entry.served.available and entry.served.available.items
        return {"mode": entry.availability.mode, "n_ids": len(entry.listed.ids), "n_items": items and items.count}

    return ListKind(
        "availability",
        "listed",
        lambda recipe: ItemList(read_ids(recipe)),
        metrics.AVAILABILITY_AGE,
        events.AVAILABILITY_LOADED,
        events.AVAILABILITY_LOAD_FAILED,
        facts,
    )


def new_items(read: Callable[[LoadedRecipe], NewItemList]) -> ListKind:
    """Return the kind of the lists of new items."""

    def read_some(recipe: LoadedRecipe) -> NewItemList:
        listed = read(recipe)
        if not listed.ids:  # an empty list is more likely a failure of its writer
            raise DataSourceError("the list has no items: if none are new, leave items in it that the model knows")
        return listed

    def facts(entry: Entry) -> dict[str, Any]:
        assert entry.new_listed is not None, "it is in force"
        new = entry.served and entry.served.new
        return {"n_ids": len(entry.new_listed.ids), "n_new": new and len(new.items)}

    return ListKind(
        "new_items",
        "new_listed",
        read_some,
        metrics.NEW_ITEMS_AGE,
        events.NEW_ITEMS_LOADED,
        events.NEW_ITEMS_LOAD_FAILED,
        facts,
        has_metadata=True,
    )


@dataclass(slots=True, eq=False)
class WatchedList:
    """One list, the time of its next read, and its last logged state."""

    recipe: LoadedRecipe
    declared: Any
    kind: ListKind
    due_at: float = float("-inf")
    refreshing: bool = False
    """True from the start of a read until its list is in use, which may take longer than the interval."""
    error: str | None = None
    stale: bool = False


@dataclass(slots=True, eq=False)
class ListWatch:
    """The task that reads all lists. `follow` sets the lists, and `run` reads them until cancelled."""

    kinds: tuple[ListKind, ...]
    publisher: Publisher
    registry: Registry
    metrics: Metrics
    _lists: dict[tuple[str, str], WatchedList] = field(default_factory=dict)
    _reads: Calls = field(default_factory=lambda: Calls(READS_AT_ONCE))

    def follow(self, recipes: Mapping[str, LoadedRecipe]) -> list[tuple[str, dict[str, Any]]]:
        """Read only the lists of these recipes from now on, and return the changed inputs for the publisher.

        A changed declaration discards the last list.
        """
        changes: list[tuple[str, dict[str, Any]]] = []
        for kind in self.kinds:
            for name in sorted({*recipes, *(name for declared, name in self._lists if declared == kind.declared)}):
                recipe, before = recipes.get(name), self._lists.pop((kind.declared, name), None)
                declared = None if recipe is None else kind.inputs(recipe)[0]
                watched = None if recipe is None or declared is None else WatchedList(recipe, declared, kind)
                if before and watched and kind.inputs(before.recipe) == kind.inputs(watched.recipe):
                    before.recipe, watched = watched.recipe, before
                if watched is not None:
                    self._lists[kind.declared, name] = watched
                if watched is not before:
                    changes.append((name, {kind.declared: declared, kind.listed: None}))
                    if declared is None:
                        self.metrics.forget(kind.age, recipe=name)
        return changes

    async def start(self) -> None:
        """Read every list once, concurrently."""
        async with trio.open_nursery() as nursery:
            for (_, name), watched in self._lists.items():
                nursery.start_soon(self._refresh, name, watched)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                for (_, name), watched in self._lists.items():
                    if watched.due_at <= now and not watched.refreshing and not self._reads.outstanding(watched):
                        watched.due_at = now + watched.declared.refresh_seconds
                        nursery.start_soon(self._refresh, name, watched)
                    self._check_age(name, watched)
                await trio.sleep(TICK_S)

    async def _refresh(self, name: str, watched: WatchedList) -> None:
        """Read and publish a list. Never raises."""
        watched.refreshing = True
        try:
            await self._read(name, watched)
        except CallTimeout:
            self._log_failure(name, watched, f"the source did not answer within {READ_TIMEOUT_S:g} s")
        except SvcError as error:
            self._log_failure(name, watched, error.message)
        except Exception as error:
            self._log_failure(name, watched, f"{type(error).__name__}: {error}")
        finally:
            watched.refreshing = False

    async def _read(self, name: str, watched: WatchedList) -> None:
        """Read and publish a list. Its `read_at` is the start of the read."""
        kind, began = watched.kind, trio.current_time()
        watched.due_at = began + watched.declared.refresh_seconds
        listed = await self._reads.run(watched, lambda: kind.read(watched.recipe), READ_TIMEOUT_S)
        if not self._is_current(name, watched):
            return
        change = await self.publisher.change(name, **{kind.listed: replace(listed, read_at=began)})
        watched.error = None
        self._check_age(name, watched)
        if change is not None and listed != getattr(change[0], kind.listed):
            logs.emit(kind.loaded, name=name, **kind.facts(change[1]))

    def _log_failure(self, name: str, watched: WatchedList, error: str) -> None:
        text = logs.redact_text(error)
        if self._is_current(name, watched) and watched.error != text:
            watched.error = text
            logs.emit(watched.kind.failed, name=name, error=text)

    def _is_current(self, name: str, watched: WatchedList) -> bool:
        return self._lists.get((watched.kind.declared, name)) is watched

    def _check_age(self, name: str, watched: WatchedList) -> None:
        """Update the metric of a list's age, and log when a list of available items becomes too old."""
        entry = self.registry.get(name)
        if entry is None or not self._is_current(name, watched):
            return
        age_s = age_of(getattr(entry, watched.kind.listed), trio.current_time())
        self.metrics.of(watched.kind.age, recipe=name).set(math.inf if age_s is None else age_s)
        stale = isinstance(watched.declared, Availability) and is_stale(watched.declared, age_s)
        if stale and not watched.stale:
            shown_s = None if age_s is None else round(age_s)
            logs.emit(events.AVAILABILITY_STALE, name=name, mode=watched.declared.mode, age_seconds=shown_s)
        watched.stale = stale
