"""What the world learns when something happens to a recipe: registry, lanes, events and metrics change together."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from svc import events, logs, metrics
from svc.errors import ArtifactError, PayloadTooLarge
from svc.events import Event
from svc.metrics import Metrics
from svc.serving.discovery import Declared, Refused
from svc.serving.lanes import Lane
from svc.serving.loader import Loaded, LoadFailed
from svc.serving.registry import SHOWN_ERROR_CHARACTERS, Entry, Faults, Registry, Served

if TYPE_CHECKING:
    from svc.model.model import Model

StartLane = Callable[["Model"], Awaitable[Lane]]

_INITIAL_EVENTS = {
    "read": events.INITIAL_ARTIFACT_READ_FAILED,
    "parse": events.INITIAL_ARTIFACT_PARSE_FAILED,
    "hmac": events.INITIAL_ARTIFACT_HMAC_FAILED,
    "deserialize": events.INITIAL_ARTIFACT_DESERIALIZE_FAILED,
}
_REFUSED_EVENTS = {
    "parse": events.RECIPE_LOAD_ERROR_SKIPPED,
    "security": events.RECIPE_SECURITY_VIOLATION_SKIPPED,
    "duplicate": events.RECIPE_DUPLICATE_NAME,
}


class Publisher:
    """Applies outcomes to the registry. Only the watcher's tasks call it; `start_lane` returns a lane that scores."""

    def __init__(self, registry: Registry, start_lane: StartLane, counters: Metrics) -> None:
        self._registry = registry
        self._start_lane = start_lane
        self._metrics = counters

    def declare(self, declared: Declared) -> None:
        """Register a recipe, without a model yet."""
        self._registry.put(Entry(declared.name, declared.file))
        self._measure()

    def redeclare(self, declared: Declared, *, reload: bool) -> None:
        """A registered recipe comes from another file or text; `reload` when its artifact or metadata moved."""
        entry = self._entry(declared.name)
        faults = Faults(recipe=entry.faults.recipe) if reload else entry.faults
        self._registry.put(replace(entry, file=declared.file, faults=faults))

    def remove(self, name: str) -> None:
        entry = self._entry(name)
        self._registry.remove(name)
        if entry.served:
            entry.served.lane.close()
        logs.emit(events.RECIPE_REMOVED, name=name, file=entry.file)
        for gauge in (metrics.MODEL_LOADED, metrics.MODEL_TRAINED_AT):
            self._metrics.forget(gauge, recipe=name)
        self._measure()

    def refuse(self, refused: Mapping[str, Refused]) -> None:
        """Publish which files are skipped; each is logged when it or its error is new."""
        before = self._registry.skipped_files()
        for file, refusal in refused.items():
            if before.get(file) != refusal.error:
                _log_refusal(file.removesuffix(".yaml"), file, refusal)
        self._registry.skip({file: refusal.error for file, refusal in refused.items()})
        self._metrics.of(metrics.SKIPPED_RECIPES).set(len(refused))

    def recipe_broken(self, declared: Declared, refusal: Refused) -> None:
        """The file of a registered recipe stopped parsing; its last recipe and model stay."""
        entry = self._entry(declared.name)
        if entry.faults.recipe != refusal.error:
            _log_refusal(declared.name, declared.file, refusal)
            self._fault(entry, recipe=refusal.error)

    def recipe_mended(self, name: str) -> None:
        entry = self._entry(name)
        if entry.faults.recipe:
            self._fault(entry, recipe=None)
            _log_cleared(name, "recipe_parsed", entry.faults.recipe)

    async def load_succeeded(self, name: str, loaded: Loaded, *, initial: bool) -> None:
        """Start a lane for the model, publish both, and let the lane before finish what waits in it."""
        lane = await self._start_lane(loaded.model)
        entry = self._registry.get(name)
        if entry is None:  # its file was removed while the lane started
            lane.close()
            return
        version = f"sha256:{loaded.sha256}"
        served = Served(
            name, loaded.model, loaded.fragments, loaded.header, version, loaded.kid, lane, loaded_at=time.time()
        )
        self._registry.put(replace(entry, served=served, faults=Faults(recipe=entry.faults.recipe)))
        if entry.served:
            entry.served.lane.close()
        logs.emit(
            events.ARTIFACT_LOADED,
            name=name,
            model_version=version,
            kid=loaded.kid,
            best_class=loaded.header.get("best_class"),
            seconds=round(loaded.seconds, 3),
        )
        previous = entry.faults.load or entry.faults.stat
        if previous:
            _log_cleared(name, "artifact_loaded", previous)
        if not initial:
            self._metrics.of(metrics.SWAPS, result="ok").inc()
        self._metrics.of(metrics.MODEL_TRAINED_AT, recipe=name).set(_timestamp(loaded.header.get("trained_at")))
        self._measure()

    def bytes_unchanged(self, name: str) -> None:
        """The artifact holds the bytes that are served already."""
        entry = self._entry(name)
        if entry.faults.load:
            self._fault(entry, load=None)
            _log_cleared(name, "bytes_unchanged", entry.faults.load)

    def load_failed(self, name: str, failure: LoadFailed, *, initial: bool) -> None:
        """The artifact is unreadable or refused; whatever is served stays."""
        error = logs.redact_text(failure.error.message)
        event = _initial_event(failure.error) if initial else events.ARTIFACT_LOAD_FAILED
        logs.emit(event, name=name, error=error, kid=failure.kid, reason=failure.error.reason)
        self._load_failed(name, error, failure.error.reason, initial=initial)

    def load_broke(self, name: str, error: Exception, *, initial: bool) -> None:
        """Loading failed in a way that no rule foresees."""
        text = logs.redact_text(f"{type(error).__name__}: {error}")
        logs.emit(events.ARTIFACT_LOAD_UNEXPECTED_ERROR, name=name, error=text)
        self._load_failed(name, text, "unexpected", initial=initial)

    def _load_failed(self, name: str, error: str, reason: str, *, initial: bool) -> None:
        self._metrics.of(metrics.LOAD_FAILURES, recipe=name, reason=reason).inc()
        if not initial:
            self._metrics.of(metrics.SWAPS, result="error").inc()
        self._fault(self._entry(name), load=error)

    def stat_failed(self, name: str, error: str, event: Event, **more: object) -> None:
        """The store did not tell about the artifact. Logged when the error is new, counted each time."""
        entry = self._entry(name)
        self._metrics.of(metrics.STAT_FAILURES, recipe=name).inc()
        if entry.faults.stat != error:
            logs.emit(event, name=name, error=error, **more)
            self._fault(entry, stat=error)

    def stat_restored(self, name: str) -> None:
        entry = self._entry(name)
        if entry.faults.stat:
            self._fault(entry, stat=None)
            if entry.served:
                _log_cleared(name, "marker_restored", entry.faults.stat)

    def report_stubs(self) -> None:
        """At the end of the start: name each recipe that has no model."""
        for entry in self._registry.entries():
            if entry.error:
                logs.emit(events.RECIPE_NOT_LOADED_AT_STARTUP, name=entry.name, error=entry.error)

    def _entry(self, name: str) -> Entry:
        entry = self._registry.get(name)
        if entry is None:
            raise LookupError(f"recipe {name!r} is not registered")
        return entry

    def _fault(self, entry: Entry, **change: str | None) -> None:
        self._registry.put(replace(entry, faults=replace(entry.faults, **change)))
        self._measure()

    def _measure(self) -> None:
        entries = self._registry.entries()
        self._metrics.of(metrics.ACTIVE_RECIPES).set(len(entries))
        for entry in entries:
            self._metrics.of(metrics.MODEL_LOADED, recipe=entry.name).set(entry.served is not None)


def _initial_event(error: ArtifactError) -> Event:
    if isinstance(error, PayloadTooLarge):
        return events.INITIAL_ARTIFACT_READ_ERROR
    return _INITIAL_EVENTS[error.stage]


def _log_refusal(name: str, file: str, refusal: Refused) -> None:
    logs.emit(_REFUSED_EVENTS[refusal.why], name=name, file=file, error=refusal.error)


def _log_cleared(name: str, reason: str, previous: str) -> None:
    logs.emit(
        events.ARTIFACT_LOAD_ERROR_CLEARED,
        name=name,
        reason=reason,
        previous_error=previous[:SHOWN_ERROR_CHARACTERS],
    )


def _timestamp(trained_at: object) -> float:
    """Unix time of an ISO 8601 text; 0 when the header has none."""
    try:
        return datetime.fromisoformat(str(trained_at)).timestamp()
    except ValueError:
        return 0.0
