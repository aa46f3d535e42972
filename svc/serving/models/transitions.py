"""The publisher, which applies the results of scans, loads and list reads to the registry, the log and the metrics.

Model, rules and lists of a recipe are the inputs of its `Served`. Each change of an input builds a new `Served` from
all inputs. A lock for each recipe lets only one change at a time do so.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import trio

from svc import events, logs, metrics
from svc.artifact.replay import expires_at
from svc.asking.item_lists import available_items
from svc.asking.policy import Policy
from svc.errors import ArtifactError, PayloadTooLarge, SvcError, exhaustion
from svc.events import Event
from svc.metrics import Metrics
from svc.names import stem_of
from svc.serving.models.lanes import Lane
from svc.serving.models.loader import UNKNOWN_KID, Loaded
from svc.serving.models.placed_items import PlacedItems, place_with_fragments
from svc.serving.models.recipes import Declared, Refused
from svc.serving.models.registry import SHOWN_ERROR_CHARACTERS, Entry, Faults, Registry, Served, unix_time
from svc.serving.models.threads import GilYielder, lower_priority

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
_REASONS_TO_CLEAR = {"recipe": "recipe_parsed", "load": "bytes_unchanged", "stat": "marker_restored"}


@dataclass(slots=True, eq=False)
class Publisher:
    """The writer of the registry. Only tasks of the watcher call it.

    `start_lane` starts the lane of a model. `wait_for_workers` waits until all ready workers have the present entries
    of the registry. Without workers it returns at once.
    """

    registry: Registry
    start_lane: Callable[[Loaded], Awaitable[Lane]]
    metrics: Metrics
    wait_for_workers: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
    _is_starting: bool = True
    _logged_expired: dict[str, str] = field(default_factory=dict)
    _locks: dict[str, trio.Lock] = field(default_factory=dict)

    def declare(self, declared: Declared, **lists: Any) -> None:
        """Register a new recipe, which has no model yet. `lists` are the fields of `Entry` for its lists."""
        self._locks[declared.name] = trio.Lock()
        self.registry.put(Entry(declared.name, declared.file, artifact_folder=_folder_of(declared), **lists))
        self._measure()

    def redeclare(self, declared: Declared, *, reload: bool) -> None:
        """Publish that the file of a registered recipe has changed. Changed lists must be published by `change`.

        Without `reload`, changed rules must be published by `change` too. With `reload`, a load of the model follows,
        which applies the new rules. `reload` also clears the errors "load" and "stat".
        """
        entry = replace(self.entry(declared.name), file=declared.file, artifact_folder=_folder_of(declared))
        if reload:
            entry = replace(entry, faults=Faults(recipe=entry.faults.recipe))
        self.registry.put(entry)

    async def change(self, name: str, **inputs: Any) -> tuple[Entry, Entry] | None:
        """Apply changed rules and lists, given as fields of `Entry`, and return the entries before and after.

        Returns once all ready workers have the new entry. Returns None if the recipe is removed meanwhile. Raises
        SvcError and changes nothing if the model cannot use a list of new items.
        """
        change = await self._put(name, None, inputs)
        await self.wait_for_workers()
        return change

    async def _put(
        self, name: str, model: Served | None, inputs: Mapping[str, Any], is_wanted: Callable[[], bool] = lambda: True
    ) -> tuple[Entry, Entry] | None:
        """Build the next `Served` in a thread, put it into the registry, and close the lane of a replaced model.

        `model` is a new model, or None to keep the present model. Returns the entries before and after. Returns None
        and changes nothing if the recipe is removed meanwhile, or if `is_wanted` returns False. Raises SvcError if the
        present model cannot use a list of new items.
        """
        lock = self._locks.get(name)
        if lock is None:
            return None
        async with lock:
            # Another lock means that the recipe was removed meanwhile, and perhaps declared again.
            if self._locks.get(name) is not lock:
                return None
            entry = self.entry(name)
            served = await trio.to_thread.run_sync(_build, entry, replace(entry, **inputs), model)
            if self._locks.get(name) is not lock or not is_wanted():
                return None
            # Read again, because its errors change without the lock. Model, rules and lists do not.
            before = self.entry(name)
            faults = before.faults if model is None else Faults(recipe=before.faults.recipe)
            after = replace(before, **inputs, served=served, faults=faults)
            self.registry.put(after)
            # After `put`, so that no new request finds a closed lane.
            if model is not None and before.served is not None:
                before.served.lane.close()
            return before, after

    def remove(self, name: str) -> None:
        """Remove a recipe that no file declares any more, and close the lane of its model."""
        entry = self.entry(name)
        self.registry.remove(name)
        del self._locks[name]
        if entry.served:
            entry.served.lane.close()
        logs.emit(events.RECIPE_REMOVED, name=name, file=entry.file)
        for gauge in (
            metrics.MODEL_LOADED,
            metrics.MODEL_TRAINED_AT,
            metrics.MODEL_SEARCHED_AT,
            metrics.RECIPE_PARSE_FAILED,
        ):
            self.metrics.forget(gauge, recipe=name)
        self._measure()

    def refuse(self, refused: Mapping[str, Refused]) -> None:
        """Publish the recipe files that are skipped. Logs each file that is new or has a new error."""
        before = self.registry.skipped_files()
        for file, refusal in refused.items():
            if before.get(file) != refusal.error:
                _log_refusal(stem_of(file), file, refusal)
        self.registry.skip({file: refusal.error for file, refusal in refused.items()})
        self._measure()

    def recipe_broken(self, declared: Declared, refusal: Refused) -> None:
        """Publish that the file of a registered recipe is no longer valid. The last valid recipe stays in use."""
        entry = self.entry(declared.name)
        if entry.faults.recipe != refusal.error:
            _log_refusal(declared.name, declared.file, refusal)
            logs.emit(events.RECIPE_PARSE_FAILED, name=declared.name, file=declared.file, error=refusal.error)
            self._fault(entry, recipe=refusal.error)

    def clear_fault(self, name: str, fault: Literal["recipe", "load", "stat"]) -> None:
        """Clear one error of `Faults`, if the recipe has it.

        Logs the cleared error. For "load" and "stat", logs it only if a model is served. An error of "load" is cleared
        without a load if the artifact has the served bytes again, as after a rollback.
        """
        entry = self.entry(name)
        error = getattr(entry.faults, fault)
        if error:
            self._fault(entry, **{fault: None})
            if entry.served or fault == "recipe":
                _log_cleared(name, _REASONS_TO_CLEAR[fault], error)

    async def load_succeeded(
        self, name: str, loaded: Loaded, rules: Callable[[], Policy], is_wanted: Callable[[], bool]
    ) -> None:
        """Serve a loaded model with a new lane. The previous lane still answers its waiting requests.

        `rules` returns the recipe's present rules. Does nothing if `is_wanted` returns False before the model is
        published, because the recipe was removed or names another artifact now. Clears the errors "load" and "stat".
        """
        lane = await self.start_lane(loaded)
        served = Served.of(name, loaded, lane, time.time())
        with ExitStack() as unused:
            unused.callback(lane.close)  # ends the lane's tasks, which hold the model in memory
            change = await self._put(name, served, {"policy": rules()}, is_wanted)
            if change is None:  # the recipe's file was changed or removed while the lane started
                return
            unused.pop_all()
        # Before the event, so that no worker answers from the earlier model once it is announced.
        await self.wait_for_workers()
        logs.emit(
            events.ARTIFACT_LOADED,
            name=name,
            model_version=served.model_version,
            kid=loaded.kid,
            best_class=loaded.header.get("best_class"),
            seconds=round(loaded.seconds, 3),
            **({} if loaded.few_items is None else {"metadata_few_items": dict(loaded.few_items)}),
        )
        faults = change[0].faults
        previous = faults.load or faults.stat
        if previous:
            _log_cleared(name, "artifact_loaded", previous)
        if not self._is_starting:
            self.metrics.of(metrics.SWAPS, result="ok").inc()
        self.metrics.of(metrics.MODEL_TRAINED_AT, recipe=name).set(unix_time(loaded.header.get("trained_at")))
        self.metrics.of(metrics.MODEL_SEARCHED_AT, recipe=name).set(unix_time(_searched_at(loaded.header)))
        self._measure()

    def warn_of_expired(self, name: str) -> None:
        """Log once if the served version has expired. It stays in use, because old answers are better than none."""
        served = self.entry(name).served
        moment = expires_at(served.header) if served else None
        if served and moment and moment <= datetime.now(UTC) and self._logged_expired.get(name) != served.model_version:
            self._logged_expired[name] = served.model_version
            logs.emit(events.ARTIFACT_EXPIRED, name=name, expires_at=moment.isoformat())

    def load_failed(self, name: str, failure: Exception, *, is_retried: bool) -> None:
        """Publish that a load has failed. The model that is served now stays in use.

        If the load `is_retried` and the server is starting, the server is not ready until the retry (`settle`).
        """
        if isinstance(failure, ArtifactError):
            error, reason = logs.redact_text(failure.message), failure.reason
            event = events.ARTIFACT_LOAD_FAILED
            if self._is_starting:
                is_large = isinstance(failure, PayloadTooLarge)
                event = events.INITIAL_ARTIFACT_READ_ERROR if is_large else _INITIAL_EVENTS[failure.stage]
            kid = failure.fields.get("kid", UNKNOWN_KID)
            logs.emit(event, name=name, error=error, kid=kid, reason=reason)
        else:
            limit, reason = exhaustion(failure), "unexpected"
            error = logs.redact_text(f"{type(failure).__name__}: {failure}" if limit is None else limit.message)
            logs.emit(events.ARTIFACT_LOAD_UNEXPECTED_ERROR, name=name, error=error)
        self.metrics.of(metrics.LOAD_FAILURES, recipe=name, reason=reason).inc()
        if not self._is_starting:
            self.metrics.of(metrics.SWAPS, result="error").inc()
        self._fault(self.entry(name), load=error, settling=is_retried and self._is_starting)

    def settle(self, name: str) -> None:
        """Publish that the server's readiness no longer waits for this recipe, because no retry of its load began."""
        entry = self.entry(name)
        if entry.faults.settling:
            self._fault(entry, settling=False)

    def stat_failed(self, name: str, error: str, event: Event, **more: object) -> None:
        """Publish that the store returned no marker of the artifact (see `watcher`).

        Counts every failure, and logs it if the error has changed, as `event` with the fields `more`.
        """
        # At the start no artifact was there before that could have disappeared.
        event = events.INITIAL_ARTIFACT_READ_FAILED if self._is_starting else event
        entry = self.entry(name)
        self.metrics.of(metrics.STAT_FAILURES, recipe=name).inc()
        if entry.faults.stat != error:
            logs.emit(event, name=name, error=error, **more)
            self._fault(entry, stat=error)

    def end_start(self) -> None:
        """Mark the end of the start, and log each recipe that has no model. Later loads are counted as swaps."""
        self._is_starting = False
        for entry in self.registry.entries():
            if entry.error:
                logs.emit(events.RECIPE_NOT_LOADED_AT_STARTUP, name=entry.name, error=entry.error)

    def entry(self, name: str) -> Entry:
        """Return the entry of a registered recipe. Raises LookupError for another name."""
        entry = self.registry.get(name)
        if entry is None:
            raise LookupError(f"recipe {name!r} is not registered")
        return entry

    def _fault(self, entry: Entry, **change: Any) -> None:
        self.registry.put(replace(entry, faults=replace(entry.faults, **change)))
        self._measure()

    def _measure(self) -> None:
        entries = self.registry.entries()
        self.metrics.of(metrics.ACTIVE_RECIPES).set(sum(not entry.is_arm for entry in entries))
        broken = sum(entry.faults.recipe is not None for entry in entries)
        self.metrics.of(metrics.SKIPPED_RECIPES).set(len(self.registry.skipped_files()) + broken)
        for entry in entries:
            self.metrics.of(metrics.MODEL_LOADED, recipe=entry.name).set(entry.served is not None)
            self.metrics.of(metrics.RECIPE_PARSE_FAILED, recipe=entry.name).set(entry.faults.recipe is not None)


def _build(before: Entry, after: Entry, model: Served | None) -> Served | None:
    """Return the `Served` for rules and lists in `after`, or None without a model. Blocks.

    `model` is a newly loaded model, or None to keep the model in `before`. Parts whose inputs have not changed are
    shared with the previous `Served` of the same model.

    Raises SvcError if the model in `before` cannot use a list of new items. If a newly loaded model cannot use it, the
    error is logged, and the result has no new items.
    """
    served = model or before.served
    if served is None:
        return None
    new, available, is_loaded = served.new, served.available, model is not None
    if is_loaded or after.new_items != before.new_items:
        try:
            new = _place_new_items(after, served)
        except SvcError as error:
            if not is_loaded:
                raise
            logs.emit(events.NEW_ITEMS_LOAD_FAILED, name=after.name, error=logs.redact_text(error.message))
    # Mapping 100,000 ids takes 0.3 s, so an unchanged list is not mapped again.
    if is_loaded or new is not served.new or after.availability != before.availability:
        available, state = None, after.availability
        if state is not None and state.content is not None:
            listed_new = None if new is None else new.items
            available = available_items(state.declared, state.content, served.model.item_ids, listed_new)
    return served.beside(available, new, after.policy)


def _place_new_items(entry: Entry, served: Served) -> PlacedItems | None:
    state = entry.new_items
    if state is None or state.content is None:
        return None
    lower_priority()
    return place_with_fragments(state.content, served.model, state.declared, yield_gil=GilYielder())


def _log_refusal(name: str, file: str, refusal: Refused) -> None:
    kept = {} if refusal.kept is None else {"kept": refusal.kept}
    logs.emit(_REFUSED_EVENTS[refusal.why], name=name, file=file, error=refusal.error, **kept)


def _log_cleared(name: str, reason: str, previous: str) -> None:
    shown = previous[:SHOWN_ERROR_CHARACTERS]
    logs.emit(events.ARTIFACT_LOAD_ERROR_CLEARED, name=name, reason=reason, previous_error=shown)


def _searched_at(header: Mapping[str, Any]) -> object:
    """Return the time of the parameter search in ISO 8601. For a refit, it is the time of the search it has reused."""
    tuning = header.get("tuning")
    reused = tuning.get("reused_from") if isinstance(tuning, Mapping) else None
    return reused.get("searched_at") if isinstance(reused, Mapping) else header.get("trained_at")


def _folder_of(declared: Declared) -> str:
    """Return the folder of a recipe's artifact with its last slash, redacted as in error messages."""
    folder, slash, _ = logs.redact_text(declared.loaded.output_uri).rpartition("/")
    return folder + slash
