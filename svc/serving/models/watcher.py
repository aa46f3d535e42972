"""The watcher, which keeps the served models up to date with the recipes folder and the artifacts in stores.

At regular intervals, a *tick* lists the folder and asks the store of each artifact for the artifact's marker. A marker
is a short text that changes with the artifact, such as a modification time. If the marker has changed, a load starts,
and the tick does not wait for it. If the bytes have changed too, the loaded model replaces the served model. Errors are
logged. A failed load of the same bytes is repeated only if it may succeed later.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from svc import events, logs, metrics
from svc.artifact.store import Store
from svc.asking.policy import Policy
from svc.errors import (
    ArtifactError,
    ArtifactExpired,
    ArtifactReadError,
    ArtifactReplayed,
    ConfigError,
    MetadataError,
    RehearsalFailed,
    SvcError,
)
from svc.metrics import Metrics
from svc.recipe.load import LoadedRecipe
from svc.serving.models.bounded_calls import Calls, CallTimeout
from svc.serving.models.list_watch import ListWatch
from svc.serving.models.loader import Loaded, Loader
from svc.serving.models.recipes import Declared, RecipeFolder, declare
from svc.serving.models.transitions import Publisher
from svc.settings import Settings

STATS_AT_ONCE = 16
MAX_STAT_SECONDS = 30.0
JITTER = 0.1
LONGEST_BACKOFF_TICKS = 64

OpenStore = Callable[[LoadedRecipe], Store]
_RETRIED = (ArtifactReadError, MetadataError, ArtifactReplayed, ArtifactExpired)
"""Errors after which a load of the same bytes may succeed later, for example once the store answers again.

Unexpected errors, which are no ArtifactError, are retried too."""


@dataclass(slots=True, eq=False)
class WatchedArtifact:
    """The watcher's state of one recipe's artifact. If a changed recipe requires a new load, a new instance begins."""

    declared: Declared
    store: Store | None = None
    marker: str | None = None
    """Marker at the start of the last load, or None before the first load."""
    sha256: str | None = None
    """Digest of the last artifact that this instance loaded, or None before that."""
    sidecar: bool = False
    """True if the artifact had a `.sha256` file beside it at the last poll."""
    loading: bool = False
    refusal: type[ArtifactError] | None = None
    """The class of the last load's error if a new load of the same bytes would fail too, else None.

    Other signing keys or other rules of the rehearsal may lift the refusal. The error itself would keep the memory of
    the refused artifact, which the frames of its traceback hold."""
    failures: int = 0
    """Number of failed loads since the last success. Counts only errors after which the load is retried."""
    retry_tick: float = math.inf
    """Number of the tick from which on the load is repeated, although the marker is unchanged. Infinite for never."""

    @property
    def name(self) -> str:
        return self.declared.name


@dataclass(slots=True, eq=False)
class Watcher:
    """The task that watches the recipes folder and the artifacts.

    Call `start()` once, then `run()`, which runs until cancelled.
    """

    folder: RecipeFolder
    open_store: OpenStore
    loader: Loader
    publisher: Publisher
    settings: Settings
    metrics: Metrics
    lists: ListWatch
    _watched: dict[str, WatchedArtifact] = field(default_factory=dict)
    _ticks: int = 0
    _scans: Calls = field(default_factory=lambda: Calls(1))
    _stats: Calls = field(default_factory=lambda: Calls(STATS_AT_ONCE))
    _loads: Calls = field(init=False)

    def __post_init__(self) -> None:
        self._loads = Calls(self.settings.startup_parallelism or 8)

    @property
    def stat_timeout_s(self) -> float:
        return min(self.settings.watch_interval_s, MAX_STAT_SECONDS)

    async def start(self) -> None:
        """Find the recipes, load their artifacts concurrently, and then read their lists.

        Returns when each load and each read has succeeded or failed. Raises `ConfigError` if the folder cannot be
        listed within the timeout of a load.
        """
        async with trio.open_nursery() as changes:
            error = await self._rescan(changes)
        if error is not None:
            raise ConfigError(f"the recipes folder cannot be listed: {error}")
        async with trio.open_nursery() as loads:
            for watched in self._watched.values():
                loads.start_soon(self._guarded, self._poll, watched, loads)
        await self.lists.start()  # after the models, because their number of items bounds the length of a list
        self.publisher.end_start()
        if self.settings.metadata_field_deny:
            self._warn_of_unknown_denied_fields()

    def _warn_of_unknown_denied_fields(self) -> None:
        """Log names in SVC_METADATA_FIELD_DENY that no recipe has, because they are probably misspelt."""
        recipes = [watched.declared.loaded.recipe for watched in self._watched.values()]
        declared = {name.casefold() for recipe in recipes for name in recipe.shown_columns}
        unknown = [name for name in self.settings.metadata_field_deny if name.casefold() not in declared]
        if unknown and recipes:
            logs.emit(events.DENIED_FIELDS_UNKNOWN, fields=unknown)

    async def run(self) -> None:
        """Run ticks and read lists until cancelled.

        A tick starts one interval after the start of the previous tick, or later if the previous tick has not ended.
        """
        async with trio.open_nursery() as loads:
            loads.start_soon(self.lists.run)
            while True:
                pause = self.settings.watch_interval_s * random.uniform(1 - JITTER, 1 + JITTER)
                async with trio.open_nursery() as tick:
                    tick.start_soon(trio.sleep, pause)
                    tick.start_soon(self._tick, loads)

    async def _tick(self, loads: trio.Nursery) -> None:
        began = trio.current_time()
        self._ticks += 1
        await self._guarded(self._rescan, loads)
        async with trio.open_nursery() as polls:
            for watched in self._watched.values():
                polls.start_soon(self._guarded, self._poll, watched, loads)
        self.metrics.of(metrics.WATCHER_TICK_SECONDS).observe(trio.current_time() - began)

    async def _guarded(self, step: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Await `step(*arguments)`, and log an unexpected error instead of raising it."""
        try:
            await step(*arguments)
        except Exception as error:
            logs.emit(events.WATCHER_UNHANDLED_ERROR, error=logs.redact_text(f"{type(error).__name__}: {error}"))
            self.metrics.of(metrics.WATCHER_ERRORS).inc()

    async def _poll(self, watched: WatchedArtifact, loads: trio.Nursery) -> None:
        """Ask for the marker of an artifact, and start a load in `loads` if it has changed or a retry is due."""
        self.publisher.warn_of_expired(watched.name)
        marker = await self._changed_marker(watched)
        if marker is not None:
            watched.loading = True
            loads.start_soon(self._load, watched, marker)
        elif not watched.loading and self._is_current(watched):
            self.publisher.settle(watched.name)

    def recipe(self, name: str) -> LoadedRecipe:
        """Return the watched recipe of this name. Raises LookupError for another name."""
        return self._watched[name].declared.loaded

    def try_refused_again(self) -> None:
        """At the next tick, load again the artifacts whose signature could not be verified.

        Call it when the signing keys have changed.
        """
        for watched in self._watched.values():
            # New keys lift no other refusal.
            if watched.refusal is not None and watched.refusal.stage == "hmac":
                watched.retry_tick = 0

    # Recipes

    async def _rescan(self, changes: trio.Nursery) -> str | None:
        """Update the watched recipes. Return the error if the folder cannot be listed or is still being scanned.

        Tasks in `changes` apply changed rules and lists to the served models, so that a slow change delays no poll.
        """
        if self._scans.outstanding(self.folder):
            return "the last scan has not ended"
        # The first scan may take longer, because it parses all files.
        timeout_s = self.stat_timeout_s if self._ticks else self.settings.load_timeout_s
        try:
            recipes = await self._scans.run(self.folder, self.folder.scan, timeout_s)
        except (OSError, CallTimeout, RuntimeError) as error:  # RuntimeError if the system cannot start another thread
            text = f"no answer within {timeout_s:g} s" if isinstance(error, CallTimeout) else str(error)
            logs.emit(events.RECIPES_DIR_SCAN_FAILED, error=text)
            self.metrics.of(metrics.SCAN_FAILURES).inc()
            return text
        declared, refused = declare(recipes, {name: watched.declared for name, watched in self._watched.items()})
        self.publisher.refuse(refused)
        for name in self._watched.keys() - declared.keys():
            del self._watched[name]
            self.lists.remove(name)
            self.publisher.remove(name)
        for name, recipe in declared.items():
            if name in self._watched:
                self._redeclare(self._watched[name], recipe, changes)
            else:
                self._discover(recipe)
        return None

    def _discover(self, declared: Declared) -> None:
        self._watched[declared.name] = WatchedArtifact(declared)
        self.publisher.declare(declared, **self.lists.declare(declared.loaded))
        if self._ticks:
            logs.emit(events.RECIPE_DISCOVERED, name=declared.name, file=declared.file)

    def _redeclare(self, watched: WatchedArtifact, declared: Declared, changes: trio.Nursery) -> None:
        if declared.fault:
            self.publisher.recipe_broken(declared, declared.fault)
        else:
            self.publisher.clear_fault(declared.name, "recipe")
        before, watched.declared = watched.declared, declared
        if declared.loaded == before.loaded:
            return
        reload = _serves_otherwise(before.loaded, declared.loaded)
        if reload:
            self._watched[declared.name] = WatchedArtifact(declared)
        elif watched.refusal is RehearsalFailed and (
            before.loaded.recipe.serving.rehearsal != declared.loaded.recipe.serving.rehearsal
        ):
            watched.retry_tick = 0  # the artifact may pass the rehearsal with the new rules
        self.publisher.redeclare(declared, reload=reload)
        changes.start_soon(self._change, declared, reload, self.lists.declare(declared.loaded))

    async def _change(self, declared: Declared, reload: bool, inputs: dict[str, Any]) -> None:
        """Apply changed rules and lists of a recipe to its served model. With `reload`, the load applies the rules."""
        if not reload:
            inputs["policy"] = Policy.of(declared.loaded)
        if inputs:
            await self._guarded(partial(self.publisher.change, declared.name, **inputs))
        logs.emit(events.RECIPE_CHANGED, name=declared.name, file=declared.file, reload=reload)

    # Artifacts

    async def _changed_marker(self, watched: WatchedArtifact) -> str | None:
        """Return the marker if the artifact must be loaded, or None if nothing is to do.

        Nothing is to do if a call for the artifact still runs, if the marker is unavailable, if the recipe was removed
        or replaced meanwhile, or if the marker is unchanged and no retry is due.
        """
        # Abandoned calls count, so a store that hangs holds one thread for each artifact and no more.
        if watched.loading or self._stats.outstanding(watched) or self._loads.outstanding(watched):
            return None
        marker = await self._read_marker(watched)
        if marker is None or not self._is_current(watched):
            return None
        self.publisher.clear_fault(watched.name, "stat")
        await self._look_for_sidecar(watched)
        return None if marker == watched.marker and self._ticks < watched.retry_tick else marker

    async def _read_marker(self, watched: WatchedArtifact) -> str | None:
        """Return the marker from the store. If the store fails or is too slow, publish that and return None."""
        timeout_s = self.stat_timeout_s
        try:
            return await self._stats.run(watched, partial(self._marker, watched), timeout_s)
        except CallTimeout:
            error, event = f"the store did not answer within {timeout_s:g} s", events.ARTIFACT_STAT_TIMEOUT
        except FileNotFoundError:
            uri = "" if watched.store is None else f": {watched.store.uri}"
            error, event = f"artifact not found{uri}", events.ARTIFACT_DISAPPEARED
        except OSError as failure:
            error, event = f"the store cannot be asked: {failure.strerror or failure}", events.ARTIFACT_STAT_FAILED
        except SvcError as failure:
            error, event = failure.message, events.ARTIFACT_STAT_FAILED
        except Exception as failure:
            error, event = f"the store failed: {type(failure).__name__}: {failure}", events.ARTIFACT_STAT_FAILED
        if self._is_current(watched):
            more = {"timeout_s": timeout_s} if event is events.ARTIFACT_STAT_TIMEOUT else {}
            self.publisher.stat_failed(watched.name, logs.redact_text(error), event, **more)
        return None

    def _marker(self, watched: WatchedArtifact) -> str:
        """Return the marker from the store. Blocks.

        Opens the store first if necessary, because importing the client library of a store may take seconds.
        """
        watched.store = watched.store or self.open_store(watched.declared.loaded)
        return watched.store.marker()

    async def _look_for_sidecar(self, watched: WatchedArtifact) -> None:
        """Log if the `.sha256` file beside the artifact has disappeared. Ignores errors, as no load needs this file."""
        assert watched.store is not None, "a marker came from it"
        try:
            exists = await self._stats.run(watched, watched.store.sidecar_exists, self.stat_timeout_s)
        except Exception:
            return
        if watched.sidecar and not exists:
            logs.emit(events.SIDECAR_DISAPPEARED, name=watched.name)
        watched.sidecar = exists

    async def _load(self, watched: WatchedArtifact, marker: str) -> None:
        """Load and publish the artifact. Publishes failures and never raises."""
        assert watched.store is not None, "a marker came from it"
        # The marker from before the read: bytes that change while they are read are noticed by the next poll.
        watched.marker, watched.refusal, watched.retry_tick = marker, None, math.inf
        try:
            loaded = await self._loads.run(watched, self._loading(watched, watched.store), self.settings.load_timeout_s)
            if not self._is_current(watched):
                return
            if loaded is None:
                self.publisher.clear_fault(watched.name, "load")
            else:
                await self.publisher.load_succeeded(
                    watched.name,
                    loaded,
                    # Read when the model is published, because the recipe may have changed since the load began.
                    rules=lambda: Policy.of(watched.declared.loaded),
                    # Asked again then: the lane of an earlier output may start last, in workers seconds later.
                    is_wanted=partial(self._is_current, watched),
                )
                watched.sha256 = loaded.sha256
            watched.failures = 0
        except CallTimeout:
            text = f"loading took over {self.settings.load_timeout_s:g} s: raise SVC_LOAD_TIMEOUT_SECONDS"
            self._load_failed(watched, ArtifactReadError(text))
        except Exception as error:
            self._load_failed(watched, error)
        finally:
            watched.loading = False

    def _loading(self, watched: WatchedArtifact, store: Store) -> Callable[[], Loaded | None]:
        """Return the blocking call that loads the artifact."""
        # Not inline in `_load`, whose local variables would keep the replaced model in memory until `_load` returns.
        served = self.publisher.entry(watched.name).served
        live = None if served is None else served.model
        return partial(self.loader.load, watched.declared.loaded, store, known_sha256=watched.sha256, live=live)

    def _load_failed(self, watched: WatchedArtifact, error: Exception) -> None:
        """Publish the failure. If a load of the same bytes may succeed later, retries after 1, 2, 4, ... ticks.

        A retry waits at most LONGEST_BACKOFF_TICKS.
        """
        if isinstance(error, ArtifactError) and not isinstance(error, _RETRIED):
            watched.refusal = type(error)
        else:
            watched.retry_tick = self._ticks + min(2**watched.failures, LONGEST_BACKOFF_TICKS)
            watched.failures += 1
        if self._is_current(watched):
            self.publisher.load_failed(watched.name, error, is_retried=watched.refusal is None)

    def _is_current(self, watched: WatchedArtifact) -> bool:
        """Return False if the recipe was removed, or a change of it has begun a new instance."""
        return self._watched.get(watched.name) is watched


def _serves_otherwise(before: LoadedRecipe, after: LoadedRecipe) -> bool:
    """Return True if the change of a recipe requires a new load of its model.

    A load is required for another `output` or `item_metadata`, and if requests for users become permitted.
    """
    old, new = before.recipe, after.recipe
    return (new.serving.users and not old.serving.users) or (
        (old.output, old.item_metadata) != (new.output, new.item_metadata)
    )
