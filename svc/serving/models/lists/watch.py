"""Repeated reading of recipes' lists, each at its own interval, beside the ticks of the watcher.

The last list always stays in force. A read that fails or hangs is logged once and retried at the next interval. While a
read hangs, no second one is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import trio

from svc import events, logs
from svc.errors import DataSourceError, SvcError
from svc.event_kinds import Event
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability, NewItems
from svc.serving.models.bounded_calls import Calls, CallTimeout
from svc.serving.models.lists.availability import ItemList
from svc.serving.models.lists.new_items import NewItemList, declared_in
from svc.serving.models.lists.publishing import ListPublisher

READS_AT_ONCE = 4
READ_TIMEOUT_S = 30.0
TICK_S = 1.0


class ListKind(Protocol):
    """One kind of lists: its declaration in a recipe, its reader, and its publisher."""

    @property
    def failed(self) -> Event:
        """The event that is logged if a list cannot be used."""

    def declared_in(self, recipe: LoadedRecipe) -> Any: ...
    def read(self, recipe: LoadedRecipe) -> Any:
        """Return the source's list. Blocks."""

    def declare(self, name: str, declared: Any) -> None: ...
    async def publish(self, name: str, content: Any, began: float) -> None:
        """Put a list into force. Its reading began at `began`, a time of trio's clock."""

    def check_age(self, name: str, followed: Followed) -> None:
        """Report the age of the list in force. Called every TICK_S."""


@dataclass(slots=True, eq=False)
class Followed:
    """One list: the time of its next read, and the state that was logged last."""

    recipe: LoadedRecipe
    declared: Any
    kind: ListKind
    due_at: float = float("-inf")
    refreshing: bool = False
    """True from the beginning of a read until its list is in force, which may take longer than the interval."""
    error: str | None = None
    stale: bool = False


@dataclass(slots=True, eq=False)
class ListWatch:
    """The watch of all lists.

    `follow` sets the lists. `run` reads them until cancelled.
    """

    kinds: tuple[ListKind, ...]
    _followed: dict[tuple[int, str], Followed] = field(default_factory=dict)
    _reads: Calls = field(default_factory=lambda: Calls(READS_AT_ONCE))

    def follow(self, recipes: Mapping[str, LoadedRecipe]) -> None:
        """Read the lists of these recipes from now on, and no others.

        A list that is declared anew begins without ids.
        """
        for number, kind in enumerate(self.kinds):
            lists = {name: (recipe, kind.declared_in(recipe)) for name, recipe in recipes.items()}
            for name in [name for of, name in self._followed if of == number and not lists.get(name, (0, None))[1]]:
                del self._followed[number, name]
                kind.declare(name, None)
            for name, (recipe, declared) in lists.items():
                before = self._followed.get((number, name))
                if declared is None or (before is not None and before.declared == declared):
                    continue
                self._followed[number, name] = Followed(recipe, declared, kind)
                kind.declare(name, declared)

    async def start(self) -> None:
        """Read every list once, side by side."""
        async with trio.open_nursery() as nursery:
            for (_, name), followed in self._followed.items():
                nursery.start_soon(self._refresh, name, followed)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                for (_, name), followed in self._followed.items():
                    if followed.due_at <= now and not followed.refreshing and not self._reads.outstanding(followed):
                        followed.due_at = now + followed.declared.refresh_seconds
                        nursery.start_soon(self._refresh, name, followed)
                    followed.kind.check_age(name, followed)
                await trio.sleep(TICK_S)

    async def _refresh(self, name: str, followed: Followed) -> None:
        """Read and publish a list. Never raises."""
        followed.refreshing = True
        try:
            await self._read(name, followed)
        except CallTimeout:
            self._failed(name, followed, f"the source did not answer within {READ_TIMEOUT_S:g} s")
        except SvcError as error:
            self._failed(name, followed, error.message)
        except Exception as error:
            self._failed(name, followed, f"{type(error).__name__}: {error}")
        finally:
            followed.refreshing = False

    async def _read(self, name: str, followed: Followed) -> None:
        """Read and publish a list. Its time is the time at which its reading began."""
        began = trio.current_time()
        followed.due_at = began + followed.declared.refresh_seconds
        content = await self._reads.run(followed, lambda: followed.kind.read(followed.recipe), READ_TIMEOUT_S)
        if self._is_followed(name, followed):
            await followed.kind.publish(name, content, began)
            followed.error = None

    def _failed(self, name: str, followed: Followed, error: str) -> None:
        text = logs.redact_text(error)
        if self._is_followed(name, followed) and followed.error != text:
            followed.error = text
            logs.emit(followed.kind.failed, name=name, error=text)

    def _is_followed(self, name: str, followed: Followed) -> bool:
        return any(of_name == name and other is followed for (_, of_name), other in self._followed.items())


@dataclass(frozen=True, slots=True)
class AvailabilityLists:
    """The lists of available items. `reader` blocks and returns the ids of a recipe's list."""

    reader: Callable[[LoadedRecipe], tuple[str, ...]]
    publisher: ListPublisher
    failed: Event = events.AVAILABILITY_LOAD_FAILED

    def declared_in(self, recipe: LoadedRecipe) -> Availability | None:
        serving = recipe.recipe.serving
        return None if serving is None else serving.availability

    def read(self, recipe: LoadedRecipe) -> tuple[str, ...]:
        return self.reader(recipe)

    def declare(self, name: str, declared: Availability | None) -> None:
        self.publisher.list_declared(name, declared)

    async def publish(self, name: str, content: tuple[str, ...], began: float) -> None:
        await self.publisher.list_read(name, ItemList(content, began))

    def check_age(self, name: str, followed: Followed) -> None:
        """Log once for each time that the list becomes too old."""
        age_s, stale = self.publisher.list_age(name)
        if stale and not followed.stale:
            mode = followed.declared.mode
            logs.emit(
                events.AVAILABILITY_STALE, name=name, mode=mode, age_seconds=None if age_s is None else round(age_s)
            )
        followed.stale = stale


@dataclass(frozen=True, slots=True)
class NewItemLists:
    """The lists of new items. `reader` blocks and returns a recipe's list."""

    reader: Callable[[LoadedRecipe], NewItemList]
    publisher: ListPublisher
    failed: Event = events.NEW_ITEMS_LOAD_FAILED

    def declared_in(self, recipe: LoadedRecipe) -> NewItems | None:
        return declared_in(recipe)

    def read(self, recipe: LoadedRecipe) -> NewItemList:
        """Return the recipe's list. Raises DataSourceError for a list without items.

        More likely its writer failed than that nothing is new.
        """
        listed = self.reader(recipe)
        if not listed.ids:
            raise DataSourceError(
                "the list has no items; where nothing is new, items that the model knows may stay in it"
            )
        return listed

    def declare(self, name: str, declared: NewItems | None) -> None:
        self.publisher.new_items_declared(name, declared)

    async def publish(self, name: str, content: NewItemList, began: float) -> None:
        await self.publisher.new_items_read(name, replace(content, read_at=began))

    def check_age(self, name: str, followed: Followed) -> None:  # noqa: ARG002
        self.publisher.new_items_age(name)
