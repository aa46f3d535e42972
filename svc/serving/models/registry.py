"""The registry, which has an `Entry` for each recipe and makes the health documents from these entries.

Every change creates a new mapping of all recipes and then replaces one reference. A reader in any thread sees the
mapping before or after a change, never a half-finished change.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from svc import events, logs
from svc.asking.policy import DEFAULT_POLICY, ArmOfModel, Policy
from svc.errors import AvailabilityStale, RecipeNotFound, RecipeUnavailable
from svc.model.ranking.item_sets import ItemSet
from svc.names import ARM_MARK, arm_name, stem_of
from svc.serving.models.loader import Loaded

if TYPE_CHECKING:
    from svc.recipe.serving_schema import Availability
    from svc.recipe.serving_schema import NewItems as NewItemsDeclared
    from svc.serving.models.lanes import Lane
    from svc.serving.models.placed_items import PlacedItems

SHOWN_ERROR_CHARACTERS = 200
_NOT_LOADED = "not loaded yet"
Declared = TypeVar("Declared")
# Threads build instances at once. `next` of this counter is a single step under the GIL.
_numbers = itertools.count()


@dataclass(frozen=True, eq=False, kw_only=True)
class Served(Loaded):
    """A loaded model that is served, with the rules and lists of its recipe and the queue of the model.

    The instance is immutable. A change of the model, the rules or a list creates a new instance. A request uses the
    same instance from its beginning to its end.
    """

    name: str
    """Name of the recipe."""
    lane: Lane
    loaded_at: float
    """Unix time in seconds."""
    new: PlacedItems | None = None
    """The new items, or None without a list of new items or before its first read."""
    alone: Served | None = None
    """The same model without its new items, or None without new items."""
    arms: Mapping[str, Served] = field(default_factory=dict)
    """The same model with the rules of each arm that has no artifact of its own."""
    number: int = field(init=False, default_factory=_numbers.__next__)
    """Different in each instance, so caches of answers use the number as a key."""

    @classmethod
    def of(cls, name: str, loaded: Loaded, lane: Lane, loaded_at: float) -> Served:
        """Return a loaded model without rules and lists, which `beside` adds."""
        parts = {part.name: getattr(loaded, part.name) for part in fields(loaded) if part.init}
        return cls(**parts, name=name, lane=lane, loaded_at=loaded_at)

    def beside(self, available: ItemSet | None, new: PlacedItems | None, policy: Policy) -> Served:
        """Return the same model with these available items, new items and rules, or `self` if nothing differs.

        Unchanged new items must be the same object as before. Blocks, because the recipe's filter is computed for all
        items.
        Shares unchanged parts with `self`.
        """
        served = self
        if new is not self.new:
            served = self.alone or self  # removes the former new items
        if new is not None and new is not self.new:
            fragments, filters = served.fragments.followed_by(new.fragments), served.filters.followed_by(new.filters)
            items = new.items if len(new.items) else None
            served = replace(served, new=new, new_items=items, fragments=fragments, filters=filters, alone=served)
        is_same = served is self and policy == self.policy
        # Sets are compared by content, because a new instance would lose the cached answers (`number`).
        if is_same and (available is self.available or (available is not None and available.equals(self.available))):
            return self
        always = self.always if is_same else served._permitted(policy)
        split, arms = policy.experiment, dict[str, Served]()
        for arm in () if split is None else split.arms:
            if (own := arm.policy) is not None:
                permitted = served._permitted(own)
                # Without the arms of `served`, which would keep each former instance in memory.
                arms[arm.name] = replace(served, available=available, policy=own, always=permitted, arms={})
        return replace(served, available=available, policy=policy, always=always, arms=arms)

    def _permitted(self, policy: Policy) -> ItemSet | None:
        return None if policy.filter is None else self.filters.items(policy.filter)


@dataclass(frozen=True, slots=True)
class Faults:
    """The current errors of a recipe. They are independent, so a recipe may have several."""

    load: str | None = None
    """Why the artifact could not be loaded."""
    stat: str | None = None
    """Why the store did not say whether the artifact has changed."""
    recipe: str | None = None
    """Why the recipe file is no longer valid."""
    settling: bool = False
    """True after the recipe's first load at the start has failed, until its retry has ended."""

    def first(self) -> str | None:
        """Return the most important error, or None without errors."""
        return self.load or self.stat or self.recipe


@dataclass(frozen=True, slots=True)
class ListState(Generic[Declared]):
    """A list of available or new items that a recipe declares, with its last content. A failed read changes nothing."""

    declared: Declared
    """The declaration in the recipe."""
    content: Any = None
    """Ids of available items, or a `NewItemList`. None before the first read, and always None in workers."""
    read_at: float | None = field(default=None, compare=False)
    """Start of the last successful read on trio's clock, or None before that.

    Not compared, because another read of equal content changes nothing."""

    def age_s(self) -> float | None:
        """Return the seconds since the start of the last successful read, or None before the first."""
        return None if self.read_at is None else max(0.0, trio.current_time() - self.read_at)


def is_stale(available: ListState[Availability]) -> bool:
    """Return True if a list of available items is older than the recipe permits, or was never read."""
    age_s, longest_s = available.age_s(), available.declared.max_stale_seconds
    return age_s is None or (longest_s is not None and age_s > longest_s)


@dataclass(frozen=True, slots=True)
class Entry:
    """One recipe in the registry, with its served model, rules, lists and errors."""

    name: str
    file: str
    """Name of the recipe file."""
    served: Served | None = None
    """The served model, or None if no model could be loaded so far."""
    faults: Faults = Faults()
    policy: Policy = DEFAULT_POLICY
    availability: ListState[Availability] | None = None
    """The list of available items, or None if the recipe declares none."""
    new_items: ListState[NewItemsDeclared] | None = None
    """The list of new items, or None if the recipe declares none."""
    artifact_folder: str = ""
    """Path or URI of the artifact's folder with its last slash. Health documents remove it from error messages."""

    @property
    def is_arm(self) -> bool:
        """True for an arm with an artifact of its own, which clients cannot ask by its name."""
        return ARM_MARK in self.name

    @property
    def error(self) -> str | None:
        """Reason why no model is served, or None while a model is served."""
        return None if self.served else self.faults.first() or _NOT_LOADED

    @property
    def last_load_error(self) -> str | None:
        """Most important current error while a model is served, or None without an error or without a model."""
        return self.faults.first() if self.served else None

    @property
    def is_closed(self) -> bool:
        """True if requests must be refused, because only listed items are permitted and the list `is_stale`."""
        return (
            self.availability is not None and self.availability.declared.mode == "allow" and is_stale(self.availability)
        )

    def require_fresh(self) -> None:
        """Raise AvailabilityStale if `is_closed`."""
        if self.is_closed:
            raise AvailabilityStale


class Registry:
    """The entries of all recipes by name, and the errors of skipped recipe files by file name.

    Only tasks of the event loop write, and any thread may read. `workers` has the numbers of `responses.WorkersHealth`,
    or is None without worker processes.
    """

    def __init__(self, changed: Callable[..., None] = lambda *_: None) -> None:
        """Create an empty registry.

        `changed` is called for each change, with one of these groups of arguments:

        - "entry", the new entry, and the model that was served before, or None
        - "remove" and the name of the recipe
        - "skip" and the errors of skipped files by file name
        """
        self._entries: Mapping[str, Entry] = {}
        self._skipped: Mapping[str, str] = {}
        self._changed = changed
        self.workers: Mapping[str, int] | None = None

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def require(self, name: str) -> Entry:
        """Return the entry of a recipe that a client asks for. Logs an unknown name and raises RecipeNotFound."""
        entry = self.get(name)
        if entry is None:
            raise unknown_recipe(name)
        return entry

    def require_served(self, name: str) -> tuple[Entry, Served]:
        """Return the entry and the current model of a recipe. Raises RecipeNotFound or RecipeUnavailable.

        A request uses this model even if a new model replaces it meanwhile.
        """
        entry = self.require(name)
        if entry.served is None:
            raise RecipeUnavailable
        return entry, entry.served

    def entries(self) -> tuple[Entry, ...]:
        """Return the entries of all recipes and of all arms with an artifact of their own, sorted by name."""
        return tuple(self._entries.values())

    def recipes(self) -> tuple[Entry, ...]:
        """Return the entries of all recipes, sorted by name."""
        return tuple(entry for entry in self._entries.values() if not entry.is_arm)

    def arm(self, served: Served, arm: ArmOfModel) -> Served | None:
        """Return the model of an arm of the experiment of `served`, with its rules. None: it cannot answer now."""
        if arm.policy is not None:
            return served.arms[arm.name]
        entry = self._entries.get(arm_name(served.name, arm.name))
        return None if entry is None or entry.is_closed else entry.served

    def skipped_files(self) -> Mapping[str, str]:
        """Return the errors of skipped recipe files by file name."""
        return self._skipped

    def put(self, entry: Entry) -> None:
        """Add the entry, or replace the entry of the same name."""
        before = self.get(entry.name)
        # Sorted at each change, because changes are rare and probes read the names in order.
        self._entries = dict(sorted({**self._entries, entry.name: entry}.items()))
        self._changed("entry", entry, None if before is None else before.served)

    def remove(self, name: str) -> None:
        self._entries = {key: entry for key, entry in self._entries.items() if key != name}
        self._changed("remove", name)

    def skip(self, errors: Mapping[str, str]) -> None:
        """Replace the skipped files, given as a mapping from file name to error."""
        if errors != self._skipped:
            self._changed("skip", dict(errors))
        self._skipped = dict(sorted(errors.items()))

    def unready_reason(self, *, names_recipes: bool) -> str | None:
        """Return why no requests should be sent, or None if the server is ready or has no recipes.

        The server is ready when a recipe has a model and no failed load of the start is about to be tried again. With
        `names_recipes` the reason has each recipe's error, as in `details`, else only the number of recipes.
        """
        entries = self.recipes()
        some_served = any(entry.served for entry in entries)
        # Also a recipe that is about to be loaded again, whose requests would get 503 once a balancer sends them.
        waiting = [entry for entry in entries if entry.faults.settling or not some_served]
        if not waiting:
            return None
        if names_recipes:
            return "; ".join(
                f"{entry.name}: {_shown_error(entry, entry.faults.first() or _NOT_LOADED)}" for entry in waiting
            )
        return (
            f"{len(waiting)} of {len(entries)} recipes have no model yet: GET /v1/health/details, with a key, says why"
        )

    def health(self) -> tuple[dict[str, Any], int]:
        """Return the document of `/v1/health` and its HTTP status, 503 while a registered recipe has no model."""
        entries, skipped = self.recipes(), self._skipped
        loaded = sum(entry.served is not None for entry in entries)
        degraded = loaded < len(entries)
        document: dict[str, Any] = {"status": "degraded" if degraded else "ok", "total": len(entries), "loaded": loaded}
        if skipped:
            document["skipped"] = len(skipped)
        if self.workers is not None:
            document["workers"] = self.workers
        return document, 503 if degraded else 200

    def details(self, may_ask: Callable[[str], bool] = bool) -> tuple[dict[str, Any], int]:
        """Return the document of `/v1/health/details`, and its HTTP status.

        The status is 503 while any recipe has an error or no model, or must refuse requests (`Entry.is_closed`). The
        document and the status count only the recipes whose name `may_ask` accepts. Skipped recipe files are shown
        under their stem, or under their file name if a recipe has that name. They do not count as errors.
        """
        # An arm is shown to those who may use its recipe.
        entries = {name: entry for name, entry in self._entries.items() if may_ask(name.partition(ARM_MARK)[0])}
        recipes = {name: _details(entry) for name, entry in entries.items()}
        degraded = any(entry.faults.first() or not entry.served or entry.is_closed for entry in entries.values())
        for file, error in self._skipped.items():
            if not may_ask(stem_of(file)):
                continue
            key = file if stem_of(file) in entries else stem_of(file)
            recipes[key] = {"loaded": False, "skipped": True, "error": _shown(error)}
        return {"status": "degraded" if degraded else "ok", "recipes": recipes}, 503 if degraded else 200


def unknown_recipe(name: str) -> RecipeNotFound:
    """Log that a client asked for an unknown recipe, and return the error for the client.

    All code must create RecipeNotFound by this function, so that each unknown name is logged.
    """
    logs.emit(events.RECIPE_NOT_FOUND, name=name)
    return RecipeNotFound()


def unix_time(moment: object) -> float:
    """Return the Unix time of an ISO 8601 text from the header of an artifact, or 0 if the text is invalid."""
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except ValueError:
        return 0.0


def _details(entry: Entry) -> dict[str, Any]:
    document: dict[str, Any] = {"loaded": entry.served is not None}
    if entry.served:
        document["model_version"] = entry.served.model_version
        document["best_class"] = entry.served.header.get("best_class")
        trained_at = unix_time(entry.served.header.get("trained_at"))
        if trained_at:
            document["age_seconds"] = round(time.time() - trained_at)
        if entry.served.few_items is not None:
            document["metadata_few_items"] = dict(entry.served.few_items)
    for key, error in (("error", entry.error), ("last_load_error", entry.last_load_error)):
        if error:
            document[key] = _shown_error(entry, error)
    if (available := entry.availability) is not None:
        document["availability"] = {
            "mode": available.declared.mode,
            "age_seconds": _rounded(available.age_s()),
            "stale": is_stale(available),
        }
    if entry.new_items is not None:
        new = entry.served and entry.served.new
        document["new_items"] = {"age_seconds": _rounded(entry.new_items.age_s()), "n_new": new and len(new.items)}
    return document


def _rounded(age_s: float | None) -> float | None:
    return None if age_s is None else round(age_s, 1)


def _shown_error(entry: Entry, error: str) -> str:
    return _shown(error.replace(entry.artifact_folder, "") if entry.artifact_folder else error)


def _shown(error: str) -> str:
    """Return the text of an error for clients: valid UTF-8, cut to SHOWN_ERROR_CHARACTERS."""
    # Paths and variables may contain bytes that are not UTF-8, which JSON cannot encode.
    return error.encode("utf-8", "backslashreplace").decode()[:SHOWN_ERROR_CHARACTERS]
