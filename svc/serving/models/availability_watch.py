"""Reads the lists of available items again and again, each at its own interval, beside the ticks of the watcher.

Whatever a source does, the last list stays in force: a read that fails or hangs is logged once and retried at the next
interval, and while one hangs no second one is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from svc import events, logs
from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.availability import ItemList
from svc.serving.models.bounded_calls import Calls, CallTimeout
from svc.serving.models.transitions import Publisher

READS_AT_ONCE = 4
READ_TIMEOUT_S = 30.0
TICK_S = 1.0


@dataclass(slots=True, eq=False)
class Followed:
    """One list: when it is to be read next, and what was logged about it."""

    recipe: LoadedRecipe
    declared: Availability
    due_at: float = float("-inf")
    refreshing: bool = False
    """From the beginning of a read until its list is in force, which may take longer than the interval."""
    error: str | None = None
    stale: bool = False


@dataclass(slots=True, eq=False)
class AvailabilityWatch:
    """`follow` sets which lists there are; `run` reads them until cancelled. `read` blocks and returns the ids."""

    read: Callable[[LoadedRecipe], tuple[str, ...]]
    publisher: Publisher
    _followed: dict[str, Followed] = field(default_factory=dict)
    _reads: Calls = field(default_factory=lambda: Calls(READS_AT_ONCE))

    def follow(self, recipes: Mapping[str, LoadedRecipe]) -> None:
        """Read the lists of these recipes from now on, and no others. A list declared anew begins without ids."""
        lists = {name: (recipe, _declared(recipe)) for name, recipe in recipes.items()}
        for name in self._followed.keys() - {name for name, (_, declared) in lists.items() if declared}:
            del self._followed[name]
            self.publisher.list_declared(name, None)
        for name, (recipe, declared) in lists.items():
            known = self._followed.get(name)
            if declared is None or (known is not None and known.declared == declared):
                continue
            self._followed[name] = Followed(recipe, declared)
            self.publisher.list_declared(name, declared)

    async def start(self) -> None:
        """Read every list once, side by side."""
        async with trio.open_nursery() as nursery:
            for name, followed in self._followed.items():
                nursery.start_soon(self._refresh, name, followed)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                now = trio.current_time()
                for name, followed in self._followed.items():
                    if followed.due_at <= now and not followed.refreshing and not self._reads.outstanding(followed):
                        followed.due_at = now + followed.declared.refresh_seconds
                        nursery.start_soon(self._refresh, name, followed)
                    self._say_when_stale(name, followed)
                await trio.sleep(TICK_S)

    async def _refresh(self, name: str, followed: Followed) -> None:
        """Never raises."""
        followed.refreshing = True
        try:
            await self._read(name, followed)
        finally:
            followed.refreshing = False

    async def _read(self, name: str, followed: Followed) -> None:
        """The time of the list is that at which its reading began."""
        began = trio.current_time()
        followed.due_at = began + followed.declared.refresh_seconds
        try:
            ids = await self._reads.run(followed, lambda: self.read(followed.recipe), READ_TIMEOUT_S)
        except CallTimeout:
            self._failed(name, followed, f"the source did not answer within {READ_TIMEOUT_S:g} s")
        except SvcError as error:
            self._failed(name, followed, error.message)
        except Exception as error:
            self._failed(name, followed, f"{type(error).__name__}: {error}")
        else:
            if self._followed.get(name) is followed:
                followed.error = None
                await self.publisher.list_read(name, ItemList(ids, began))

    def _failed(self, name: str, followed: Followed, error: str) -> None:
        text = logs.redact_text(error)
        if self._followed.get(name) is followed and followed.error != text:
            followed.error = text
            logs.emit(events.AVAILABILITY_LOAD_FAILED, name=name, error=text)

    def _say_when_stale(self, name: str, followed: Followed) -> None:
        """Once for each time that the list becomes too old."""
        age_s, stale = self.publisher.list_age(name)
        if stale and not followed.stale:
            mode = followed.declared.mode
            logs.emit(
                events.AVAILABILITY_STALE, name=name, mode=mode, age_seconds=None if age_s is None else round(age_s)
            )
        followed.stale = stale


def _declared(recipe: LoadedRecipe) -> Availability | None:
    serving = recipe.recipe.serving
    return None if serving is None else serving.availability
