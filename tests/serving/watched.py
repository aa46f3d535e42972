"""A watcher whose folder, stores, loader and lanes are fakes that tests control."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import trio
import trio.testing

from svc import logs
from svc.errors import ArtifactError
from svc.metrics import Metrics
from svc.recipe.serving_schema import Serving
from svc.serving.models.list_watch import KINDS, ListWatch
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Entry, Registry
from svc.serving.models.transitions import Publisher
from svc.serving.models.watcher import Watcher
from svc.settings import Settings

INTERVAL_S = 5.0


@dataclass
class FakeStore:
    """An artifact whose bytes are a text. The next calls raise `trouble`, and `hang` blocks them."""

    content: str | None = "v1"
    marker_text: str | None = None
    sidecar: bool = False
    uri: str = "/fake/artifact.svc"
    trouble: Exception | None = None
    hang: threading.Event | None = None
    looks: int = 0

    def marker(self) -> str:
        self.looks += 1
        if self.hang is not None:
            hang_until(self.hang)
        if self.trouble is not None:
            raise self.trouble
        if self.content is None:
            raise FileNotFoundError("gone")
        return self.marker_text or self.content

    def sidecar_exists(self) -> bool:
        return self.sidecar


@dataclass
class FakeLoader:
    """Loads the text of a store, or raises the error that the text stands for. Records every load."""

    errors: dict[str, Exception] = field(default_factory=dict)
    loads: list[tuple[str, str]] = field(default_factory=list)
    lives: list[Any] = field(default_factory=list)
    hang: threading.Event | None = None
    settings: Any = None
    variables: Any = None

    def load(
        self, recipe: Any, store: FakeStore, *, known_sha256: str | None = None, live: Any = None
    ) -> Loaded | None:
        text = store.content or ""
        if self.hang is not None:
            hang_until(self.hang)
        if text == known_sha256:
            return None
        self.loads.append((recipe.recipe.name, text))
        self.lives.append(live)
        if text in self.errors:
            raise self.errors[text]
        return Loaded(
            model=cast(Any, text),
            fragments=cast(Any, None),
            header={"best_class": "TopPopRecommender"},
            model_version=f"sha256:{text}",
            kid="k1",
        )


class FakeLane:
    def __init__(self, model: object) -> None:
        self.model = model
        self.closed = False

    def close(self) -> None:
        self.closed = True


@dataclass(eq=False)
class FakeFolder:
    """The content of a folder by file name, or an error to raise."""

    files: dict[str, Any] = field(default_factory=dict)
    trouble: Exception | None = None
    hang: threading.Event | None = None

    def scan(self) -> dict[str, Any]:
        if self.hang is not None:
            hang_until(self.hang)
        if self.trouble is not None:
            raise self.trouble
        return dict(self.files)


@dataclass(frozen=True)
class FakeRecipe:
    """The parts of a loaded recipe that serving uses."""

    name: str
    output: str = "out.svc"
    item_metadata: str | None = None
    text: str = ""
    serving: Any = field(default_factory=Serving)
    shown_columns: frozenset[str] = frozenset()
    arms: tuple[Any, ...] = ()
    filter_kinds: Any = None
    served_log_folder: None = None

    @property
    def output_uri(self) -> str:
        return FakeStore.uri

    @property
    def recipe(self) -> Any:
        return SimpleNamespace(
            name=self.name,
            output=self.output,
            item_metadata=self.item_metadata,
            serving=self.serving,
            filter_kinds={},
            shown_columns=self.shown_columns,
        )


class World:
    """A watcher with its fakes."""

    def __init__(self, *names: str, settings: Settings | None = None) -> None:
        self.folder = FakeFolder({f"{name}.yaml": FakeRecipe(name) for name in names})
        self.stores: dict[tuple[str, str], FakeStore] = {}
        self.loader = FakeLoader()
        self.registry = Registry()
        self.lists: dict[str, Any] = {}
        self.new_items: dict[str, Any] = {}
        self.lanes: list[FakeLane] = []
        self.release: Callable[[threading.Event], None] = threading.Event.set
        self.hold_lanes = trio.Event()
        self.hold_lanes.set()
        self.records: list[dict[str, Any]] = []
        self.metrics = Metrics.create()
        publisher = Publisher(self.registry, cast(Any, self.start_lane), self.metrics)
        self.watcher = Watcher(
            folder=cast(Any, self.folder),
            open_store=cast(Any, lambda recipe: self.store(recipe.name, recipe.output)),
            loader=cast(Any, self.loader),
            publisher=publisher,
            settings=settings or Settings(watch_interval_s=INTERVAL_S),
            metrics=self.metrics,
            lists=ListWatch(
                publisher,
                cast(Any, self.loader),
                self.metrics,
                tuple(
                    replace(kind, read=cast(Any, read))
                    for kind, read in zip(KINDS, (self.read_list, self.read_new_items), strict=True)
                ),
            ),
        )

    def store(self, name: str, output: str = "out.svc") -> FakeStore:
        return self.stores.setdefault((name, output), FakeStore())

    def read_list(self, recipe: FakeRecipe, *_: object) -> tuple[str, ...]:
        """Return the ids of a recipe's list, or raise the error in their place."""
        found = self.lists[recipe.name]
        if isinstance(found, threading.Event):
            hang_until(found)
            return ()
        if isinstance(found, Exception):
            raise found
        return tuple(found)

    def read_new_items(self, recipe: FakeRecipe, *_: object) -> Any:
        """Return a recipe's list of new items, or raise the error in its place."""
        found = self.new_items[recipe.name]
        if isinstance(found, threading.Event):
            hang_until(found)
        if isinstance(found, Exception):
            raise found
        return found

    async def start_lane(self, loaded: Loaded) -> FakeLane:
        await self.hold_lanes.wait()
        self.lanes.append(FakeLane(loaded.model))
        return self.lanes[-1]

    def entry(self, name: str) -> Entry:
        entry = self.registry.get(name)
        assert entry is not None
        return entry

    def served(self, name: str) -> str | None:
        entry = self.entry(name)
        return cast(Any, entry.served.model) if entry.served else None

    def said(self, event: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == event]

    def count(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    @contextmanager
    def listening(self) -> Iterator[None]:
        logs.configure(Settings(log_format="json"), lambda line: self.records.append(json.loads(line)))
        clock = ThreadClock()
        self.release = clock.release
        with mock.patch.object(trio.to_thread, "run_sync", clock.run_sync):
            yield
        logs.configure(Settings())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the watcher, and tick until the block ends."""
        with self.listening():
            await self.watcher.start()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.watcher.run)
                await ticks(0.5)
                yield
                nursery.cancel_scope.cancel()


class ThreadClock:
    """Lets virtual time jump only while no thread works, because a busy machine may start a thread late.

    A thread that hangs on purpose lets it jump until it is released.
    """

    def __init__(self) -> None:
        self._clock = cast(trio.testing.MockClock, trio.lowlevel.current_clock())
        self._clock.autojump_threshold = 0
        self._working: set[int] = set()
        self._hanging: dict[int, threading.Event] = {}

    def set_working(self, calls: Iterable[int], *, working: bool) -> None:
        self._working = self._working.union(calls) if working else self._working.difference(calls)
        self._clock.autojump_threshold = math.inf if self._working else 0

    async def run_sync(self, sync_fn: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Run like trio.to_thread.run_sync."""
        call = next(_NUMBERS)

        def numbered() -> Any:
            _CALL.hang = lambda released: trio.from_thread.run_sync(self._hang, call, released)
            return sync_fn(*arguments)

        self.set_working([call], working=True)
        try:
            return await _RUN_SYNC(numbered, **options)
        finally:
            self._hanging.pop(call, None)
            self.set_working([call], working=False)

    def _hang(self, call: int, released: threading.Event) -> None:
        self._hanging[call] = released
        self.set_working([call], working=False)

    def release(self, event: threading.Event) -> None:
        self.set_working([call for call, awaited in self._hanging.items() if awaited is event], working=True)
        event.set()


_RUN_SYNC = trio.to_thread.run_sync
_NUMBERS = itertools.count()
_CALL = threading.local()


def hang_until(released: threading.Event) -> None:
    """Hang in a worker thread like a store that does not answer. `World.release` ends it."""
    _CALL.hang(released)
    released.wait()


async def ticks(count: float) -> None:
    """Let `count` intervals pass, with their jitter."""
    await trio.sleep(count * INTERVAL_S * 1.11)


def failed(error: Any, kid: str | None = "k1") -> ArtifactError:
    if kid is not None:
        error.fields["kid"] = kid
    return error


async def until(condition: Callable[[], bool]) -> None:
    """Let time pass until `condition` holds. Real threads may need real time."""
    with trio.fail_after(INTERVAL_S * 1000):
        while not condition():  # noqa: ASYNC110 (the test is about polls)
            await trio.sleep(1)
