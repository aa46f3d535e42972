"""Publication of the outcomes of scans, polls and loads.

Registry, lanes, events and metrics change together.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from svc import events, logs, metrics
from svc.artifact.replay.freshness import expires_at
from svc.errors import ArtifactError, PayloadTooLarge, exhaustion
from svc.events import Event
from svc.metrics import Metrics
from svc.names import stem_of
from svc.serving.models.discovery import Declared, Refused
from svc.serving.models.lanes import Lane
from svc.serving.models.lists.publishing import Beside, ListPublisher, Settled
from svc.serving.models.loader import Loaded, LoadFailed
from svc.serving.models.policy import Policy
from svc.serving.models.registry import SHOWN_ERROR_CHARACTERS, Entry, Faults, ListsInForce, Registry, Served, unix_time

if TYPE_CHECKING:
    from svc.model.model import Model

StartLane = Callable[[Loaded], Awaitable[Lane]]

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
    """The publisher of outcomes to the registry.

    Only the watcher's tasks call it. `start_lane` returns a lane that scores. `settled` returns once all workers answer
    from the registry's state. In one process it is None, because the state holds at once.
    """

    def __init__(
        self, registry: Registry, start_lane: StartLane, counters: Metrics, settled: Settled | None = None
    ) -> None:
        self._settled = settled
        self._registry = registry
        self._start_lane = start_lane
        self._metrics = counters
        self._told_expired: dict[str, str] = {}
        self.lists = ListPublisher(registry, counters, settled)

    def declare(self, declared: Declared) -> None:
        """Register a recipe, without a model yet."""
        policy = Policy.of(declared.loaded.recipe)
        folder = _folder_of(declared)
        self._registry.put(Entry(declared.name, declared.file, policy=policy, artifact_folder=folder))
        self._measure()

    def redeclare(self, declared: Declared, *, reload: bool) -> None:
        """Publish that a registered recipe changed its file or content.

        `reload` says that its artifact or metadata changed too.
        """
        entry = self._entry(declared.name)
        faults = Faults(recipe=entry.faults.recipe) if reload else entry.faults
        policy = Policy.of(declared.loaded.recipe)
        served = entry.served
        if served is not None and not reload and policy != entry.policy:
            served = served.under(policy)
        entry = replace(entry, file=declared.file, faults=faults, policy=policy, served=served)
        self._registry.put(replace(entry, artifact_folder=_folder_of(declared)))

    def live_model(self, name: str) -> Model | None:
        """Return the model that answers for a registered recipe, or None for a stub."""
        served = self._entry(name).served
        return None if served is None else served.model

    def remove(self, name: str) -> None:
        entry = self._entry(name)
        self._registry.remove(name)
        self.lists.forget(name)
        if entry.served:
            entry.served.lane.close()
        logs.emit(events.RECIPE_REMOVED, name=name, file=entry.file)
        for gauge in (
            metrics.MODEL_LOADED,
            metrics.MODEL_TRAINED_AT,
            metrics.MODEL_SEARCHED_AT,
            metrics.RECIPE_PARSE_FAILED,
        ):
            self._metrics.forget(gauge, recipe=name)
        self._measure()

    def refuse(self, refused: Mapping[str, Refused]) -> None:
        """Publish the skipped files. A file is logged if it or its error is new."""
        before = self._registry.skipped_files()
        for file, refusal in refused.items():
            if before.get(file) != refusal.error:
                _log_refusal(stem_of(file), file, refusal)
        self._registry.skip({file: refusal.error for file, refusal in refused.items()})
        self._measure()

    def recipe_broken(self, declared: Declared, refusal: Refused) -> None:
        """Publish that the file of a registered recipe no longer parses.

        Its last recipe and model stay in service.
        """
        entry = self._entry(declared.name)
        if entry.faults.recipe != refusal.error:
            _log_refusal(declared.name, declared.file, refusal)
            logs.emit(events.RECIPE_PARSE_FAILED, name=declared.name, file=declared.file, error=refusal.error)
            self._fault(entry, recipe=refusal.error)

    def recipe_mended(self, name: str) -> None:
        entry = self._entry(name)
        if entry.faults.recipe:
            self._fault(entry, recipe=None)
            _log_cleared(name, "recipe_parsed", entry.faults.recipe)

    async def load_succeeded(self, name: str, loaded: Loaded, *, initial: bool) -> None:
        """Start a lane for the model and publish both.

        The previous lane answers the requests that wait in it.
        """
        lane = await self._start_lane(loaded)
        async with self.lists.lock(name):
            try:
                lists = await self.lists.lined_up(name, Beside(loaded.model, loaded.filters))
            except BaseException:
                lane.close()  # it would hold the memory of a model that no request uses
                raise
            entry = self._registry.get(name)
            if entry is None:  # its file was removed while the lane started
                lane.close()
                return
            await self._put_model(entry, loaded, lane, lists, initial=initial)

    async def _put_model(self, entry: Entry, loaded: Loaded, lane: Lane, lists: ListsInForce, *, initial: bool) -> None:
        name = entry.name
        version = f"sha256:{loaded.sha256}"
        served = Served(
            name,
            loaded.model,
            loaded.fragments,
            loaded.header,
            version,
            loaded.kid,
            lane,
            loaded_at=time.time(),
            filters=loaded.filters,
            policy=entry.policy,
        ).with_lists(lists)
        self._registry.put(replace(entry, served=served, faults=Faults(recipe=entry.faults.recipe)))
        if entry.served:
            entry.served.lane.close()
        if self._settled is not None:
            await self._settled()
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
        self._metrics.of(metrics.MODEL_TRAINED_AT, recipe=name).set(unix_time(loaded.header.get("trained_at")))
        self._metrics.of(metrics.MODEL_SEARCHED_AT, recipe=name).set(unix_time(_searched_at(loaded.header)))
        self._measure()

    def warn_of_expired(self, now: datetime) -> None:
        """Log once for each served model that it has expired.

        The model stays in service: old answers are better than none.
        """
        for entry in self._registry.entries():
            served = entry.served
            moment = expires_at(served.header) if served else None
            if served and moment and moment <= now and self._told_expired.get(entry.name) != served.model_version:
                self._told_expired[entry.name] = served.model_version
                logs.emit(events.ARTIFACT_EXPIRED, name=entry.name, expires_at=moment.isoformat())

    def bytes_unchanged(self, name: str) -> None:
        """Clear a load error when the marker changed, but the file holds the bytes that are served.

        This happens after a rollback, or for an identical copy.
        """
        entry = self._entry(name)
        if entry.faults.load:
            self._fault(entry, load=None)
            _log_cleared(name, "bytes_unchanged", entry.faults.load)

    def load_failed(self, name: str, failure: LoadFailed, *, initial: bool) -> None:
        """Publish that the artifact is unreadable or refused. The served model stays."""
        error = logs.redact_text(failure.error.message)
        event = _initial_event(failure.error) if initial else events.ARTIFACT_LOAD_FAILED
        logs.emit(event, name=name, error=error, kid=failure.kid, reason=failure.error.reason)
        self._load_failed(name, error, failure.error.reason, initial=initial)

    def load_broke(self, name: str, error: Exception, *, initial: bool) -> None:
        """Publish that loading failed with an error that is not one of svc's own."""
        limit = exhaustion(error)
        text = logs.redact_text(f"{type(error).__name__}: {error}" if limit is None else limit.message)
        logs.emit(events.ARTIFACT_LOAD_UNEXPECTED_ERROR, name=name, error=text)
        self._load_failed(name, text, "unexpected", initial=initial)

    def _load_failed(self, name: str, error: str, reason: str, *, initial: bool) -> None:
        self._metrics.of(metrics.LOAD_FAILURES, recipe=name, reason=reason).inc()
        if not initial:
            self._metrics.of(metrics.SWAPS, result="error").inc()
        self._fault(self._entry(name), load=error)

    def stat_failed(self, name: str, error: str, event: Event, **more: object) -> None:
        """Publish that the store gave no marker.

        The error is logged if it is new, and counted each time.
        """
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
        """Log each recipe that has no model at the end of start-up."""
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
        broken = sum(entry.faults.recipe is not None for entry in entries)
        self._metrics.of(metrics.SKIPPED_RECIPES).set(len(self._registry.skipped_files()) + broken)
        for entry in entries:
            self._metrics.of(metrics.MODEL_LOADED, recipe=entry.name).set(entry.served is not None)
            self._metrics.of(metrics.RECIPE_PARSE_FAILED, recipe=entry.name).set(entry.faults.recipe is not None)


def _initial_event(error: ArtifactError) -> Event:
    if isinstance(error, PayloadTooLarge):
        return events.INITIAL_ARTIFACT_READ_ERROR
    return _INITIAL_EVENTS[error.stage]


def _log_refusal(name: str, file: str, refusal: Refused) -> None:
    kept = {} if refusal.kept is None else {"kept": refusal.kept}
    logs.emit(_REFUSED_EVENTS[refusal.why], name=name, file=file, error=refusal.error, **kept)


def _log_cleared(name: str, reason: str, previous: str) -> None:
    logs.emit(
        events.ARTIFACT_LOAD_ERROR_CLEARED,
        name=name,
        reason=reason,
        previous_error=previous[:SHOWN_ERROR_CHARACTERS],
    )


def _searched_at(header: Mapping[str, Any]) -> object:
    """Return the time of the parameter search, in ISO 8601.

    A refit takes its parameters from another version, so it has the time of that version's search.
    """
    tuning = header.get("tuning")
    reused = tuning.get("reused_from") if isinstance(tuning, Mapping) else None
    return reused.get("searched_at") if isinstance(reused, Mapping) else header.get("trained_at")


def _folder_of(declared: Declared) -> str:
    """Return the folder of the recipe's artifact as error messages show it.

    It ends with its last slash, and is empty without a slash.
    """
    folder, slash, _ = logs.redact_text(declared.loaded.output_uri).rpartition("/")
    return folder + slash
