"""The task that reads the recipes' lists of available and new items again, each at the interval in its declaration.

If a read fails or exceeds READ_TIMEOUT_S, the last content of the list stays in use, and the error is logged once. The
list is read again after the next interval. While a read hangs, no second read of the same list begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from svc import events, logs, metrics
from svc.asking.item_lists import NewItemList, read_ids, read_new_items
from svc.errors import DataSourceError, SvcError
from svc.events import Event
from svc.metrics import Metric, Metrics
from svc.recipe.load import LoadedRecipe
from svc.serving.models.bounded_calls import Calls, CallTimeout
from svc.serving.models.loader import Loader
from svc.serving.models.registry import Entry, ListState, is_stale
from svc.serving.models.threads import lower_priority
from svc.serving.models.transitions import Publisher
from svc.settings import Settings

READS_AT_ONCE = 4
READ_TIMEOUT_S = 30.0
TICK_S = 1.0
ReadList = Callable[[LoadedRecipe, Settings, Mapping[str, str], int], Any]
"""A function that reads the list of a recipe. The last argument is the number of the model's items. Blocks."""


@dataclass(frozen=True, slots=True)
class ListKind:
    """A kind of list that recipes may declare: available items or new items."""

    name: str
    """Name of the field in a recipe's `serving` block and in `Entry`."""
    read: ReadList
    age: Metric
    loaded: Event
    failed: Event
    facts: Callable[[Entry], dict[str, Any]]
    """Returns the fields of the event `loaded`."""
    has_metadata: bool = False
    """True if the content of the list includes the recipe's item metadata."""

    def declared(self, recipe: LoadedRecipe) -> Any:
        """Return the declaration of this list in a recipe, or None."""
        return getattr(recipe.recipe.serving, self.name)

    def context(self, recipe: LoadedRecipe) -> tuple[Any, Any]:
        """Return the parts of a recipe without which the content of the list has no meaning: its mode, its metadata."""
        mode = getattr(self.declared(recipe), "mode", None)
        return mode, recipe.recipe.item_metadata if self.has_metadata else None


def _facts_of_available(entry: Entry) -> dict[str, Any]:
    assert entry.availability is not None, "it is in force"
    items = entry.served and entry.served.available
    declared, ids = entry.availability.declared, entry.availability.content
    return {"mode": declared.mode, "n_ids": len(ids), "n_items": items and items.count}


def _facts_of_new(entry: Entry) -> dict[str, Any]:
    assert entry.new_items is not None, "it is in force"
    new = entry.served and entry.served.new
    return {"n_ids": len(entry.new_items.content.ids), "n_new": new and len(new.items)}


KINDS = (
    ListKind(
        "availability",
        read_ids,
        metrics.AVAILABILITY_AGE,
        events.AVAILABILITY_LOADED,
        events.AVAILABILITY_LOAD_FAILED,
        _facts_of_available,
    ),
    ListKind(
        "new_items",
        read_new_items,
        metrics.NEW_ITEMS_AGE,
        events.NEW_ITEMS_LOADED,
        events.NEW_ITEMS_LOAD_FAILED,
        _facts_of_new,
        has_metadata=True,
    ),
)


@dataclass(slots=True, eq=False)
class WatchedList:
    """A list of one recipe: when it is read next, and which state was logged last."""

    recipe: LoadedRecipe
    kind: ListKind
    due_at: float = -math.inf
    """Time of the next read on trio's clock."""
    refreshing: bool = False
    """True from the start of a read until it fails or its content is in use. This may take longer than the interval."""
    error: str | None = None
    """The error that was logged last, or None after a successful read."""
    stale: bool = False
    """True if this list of available items was too old at the last check. The event is logged when this begins."""

    @property
    def name(self) -> str:
        return self.recipe.recipe.name

    @property
    def declared(self) -> Any:
        return self.kind.declared(self.recipe)


@dataclass(slots=True, eq=False)
class ListWatch:
    """The reader of all lists. `declare` and `remove` choose the lists, and `run` reads them until cancelled."""

    publisher: Publisher
    loader: Loader
    metrics: Metrics
    kinds: tuple[ListKind, ...] = KINDS
    _lists: dict[tuple[str, str], WatchedList] = field(default_factory=dict)
    _reads: Calls = field(default_factory=lambda: Calls(READS_AT_ONCE))

    def declare(self, recipe: LoadedRecipe) -> dict[str, Any]:
        """Read the lists of a new or changed recipe from now on.

        Returns the fields of `Entry` that `Publisher.declare` or `Publisher.change` must replace. The value is None for
        a list that the recipe no longer declares. A changed list keeps its last content if its `context` is unchanged.
        """
        changes: dict[str, Any] = {}
        for kind in self.kinds:
            key, declared = (kind.name, recipe.recipe.name), kind.declared(recipe)
            before = self._lists.get(key)
            keeps = before is not None and kind.context(before.recipe) == kind.context(recipe)
            if before is not None and keeps and before.declared == declared:
                before.recipe = recipe
            elif declared is not None:
                self._lists[key] = WatchedList(recipe, kind)
                state = getattr(self.publisher.entry(recipe.recipe.name), kind.name) if keeps else None
                changes[kind.name] = replace(state or ListState(declared), declared=declared)
            elif before is not None:
                self._forget(before)
                changes[kind.name] = None
        return changes

    def remove(self, name: str) -> None:
        """Stop reading the lists of a recipe."""
        for watched in [watched for watched in self._lists.values() if watched.name == name]:
            self._forget(watched)

    def _forget(self, watched: WatchedList) -> None:
        del self._lists[watched.kind.name, watched.name]
        self.metrics.forget(watched.kind.age, recipe=watched.name)

    async def start(self) -> None:
        """Read every list once, at most READS_AT_ONCE at a time. Returns when all reads have succeeded or failed."""
        async with trio.open_nursery() as nursery:
            for watched in self._lists.values():
                nursery.start_soon(self._refresh, watched)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                # Without an await, because `declare` and `remove` change the mapping.
                for watched in self._lists.values():
                    if watched.due_at <= now and not watched.refreshing and not self._reads.outstanding(watched):
                        nursery.start_soon(self._refresh, watched)
                    self._check_age(watched)
                await trio.sleep(TICK_S)

    async def _refresh(self, watched: WatchedList) -> None:
        """Read and publish a list. Logs errors and never raises."""
        watched.refreshing = True
        try:
            await self._read(watched)
        except CallTimeout:
            self._log_failure(watched, f"the source did not answer within {READ_TIMEOUT_S:g} s")
        except SvcError as error:
            self._log_failure(watched, error.message)
        except Exception as error:
            self._log_failure(watched, f"{type(error).__name__}: {error}")
        finally:
            watched.refreshing = False

    async def _read(self, watched: WatchedList) -> None:
        """Read and publish a list. Raises CallTimeout, and the errors of the source and of `Publisher.change`."""
        kind, began = watched.kind, trio.current_time()
        watched.due_at = began + watched.declared.refresh_seconds
        content = await self._reads.run(watched, lambda: self._content(watched), READ_TIMEOUT_S)
        if not self._is_current(watched):
            return
        # The start of the read is its time: the source may have changed since.
        state = ListState(watched.declared, content, began)
        change = await self.publisher.change(watched.name, **{kind.name: state})
        watched.error = None
        self._check_age(watched)
        if change is not None and getattr(change[0], kind.name) != state:
            logs.emit(kind.loaded, name=watched.name, **kind.facts(change[1]))

    def _content(self, watched: WatchedList) -> Any:
        """Return the content of a list, read from its source. Blocks.

        Raises the errors of the source, and DataSourceError for an empty list of new items.
        """
        lower_priority()
        served = self.publisher.entry(watched.name).served
        n_items = 0 if served is None else len(served.model.item_ids)
        content = watched.kind.read(watched.recipe, self.loader.settings, self.loader.variables, n_items)
        if isinstance(content, NewItemList) and not content.ids:  # its writer has probably failed
            raise DataSourceError("the list has no items: if no item is new, list items that the model knows")
        return content

    def _log_failure(self, watched: WatchedList, error: str) -> None:
        text = logs.redact_text(error)
        # The same error at each interval is one line of the log.
        if self._is_current(watched) and watched.error != text:
            watched.error = text
            logs.emit(watched.kind.failed, name=watched.name, error=text)

    def _is_current(self, watched: WatchedList) -> bool:
        """Return False if the recipe has removed or replaced the declaration of the list."""
        return self._lists.get((watched.kind.name, watched.name)) is watched

    def _check_age(self, watched: WatchedList) -> None:
        """Update the metric of a list's age, and log when a list of available items becomes too old."""
        if not self._is_current(watched):
            return
        entry = self.publisher.entry(watched.name)
        available, state = entry.availability, getattr(entry, watched.kind.name)
        age_s = None if state is None else state.age_s()
        self.metrics.of(watched.kind.age, recipe=watched.name).set(math.inf if age_s is None else age_s)
        stale = available is not None and state is available and is_stale(available)
        if stale and not watched.stale:
            shown_s = None if age_s is None else round(age_s)
            logs.emit(events.AVAILABILITY_STALE, name=watched.name, mode=watched.declared.mode, age_seconds=shown_s)
        watched.stale = stale
