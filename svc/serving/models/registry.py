"""The current state of each recipe, and the health documents made from it. No I/O.

A change builds the next mapping of entries or of skipped files and swaps one reference, so a reader in any thread sees
the mapping before or after a change, never half of it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from svc import events, logs
from svc.errors import AvailabilityStale, RecipeNotFound
from svc.model.ranking.item_sets import ItemSet, intersect
from svc.names import stem_of
from svc.serving.models.recipes import DEFAULT_POLICY, Policy

if TYPE_CHECKING:
    from svc.model.model import Model
    from svc.model.ranking.filter_fields import FilterFields
    from svc.model.ranking.new_items import NewItems
    from svc.recipe.serving_schema import Availability
    from svc.recipe.serving_schema import NewItems as NewItemsDeclared
    from svc.serving.models.fragments import ItemFragments
    from svc.serving.models.item_lists import PlacedItems
    from svc.serving.models.lanes import Lane
    from svc.serving.models.loader import Loaded

SHOWN_ERROR_CHARACTERS = 200
Declared = TypeVar("Declared")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Served:
    """A published model with everything that an answer needs.

    A request uses one instance from its beginning to its end. `model_version` is `sha256:<hex of the artifact file>`.
    `loaded_at` is Unix time in seconds. `number` changes with any other field, so caches use it as a key. `fragments`
    and `filters` cover the model's items, then the new items. `alone` is the same model without new items, if there
    are any.
    """

    name: str
    model: Model
    fragments: ItemFragments
    header: Mapping[str, Any]
    model_version: str
    lane: Lane
    loaded_at: float
    filters: FilterFields | None = None
    policy: Policy = DEFAULT_POLICY
    available: ItemSet | None = None
    always: ItemSet | None = None
    new: PlacedItems | None = None
    alone: Served | None = None
    number: int = field(init=False, default_factory=_numbers.__next__)

    @classmethod
    def of(cls, name: str, loaded: Loaded, lane: Lane, loaded_at: float) -> Served:
        """Return a loaded model as it is served before its recipe's policy and lists apply."""
        return cls(
            name,
            loaded.model,
            loaded.fragments,
            loaded.header,
            f"sha256:{loaded.sha256}",
            lane,
            loaded_at,
            loaded.filters,
        )

    def allowed_items(self, own: ItemSet | None = None) -> ItemSet | None:
        """Return the items that may be shown, or None for all items.

        `own` are the items that satisfy the filter of the request.
        """
        return intersect(self.always, self.available, own)

    @property
    def filter_kinds(self) -> Mapping[str, str]:
        """Kind of each field that requests may filter on."""
        return {} if self.filters is None else self.filters.kinds

    @property
    def new_items(self) -> NewItems | None:
        """New items that may be recommended, or None without new items."""
        return None if self.new is None or not len(self.new.items) else self.new.items

    def beside(self, available: ItemSet | None, new: PlacedItems | None, policy: Policy) -> Served:
        """Return the same model with these items and this policy. Blocks, and computes only the changed parts."""
        served = self
        if new is not self.new:
            served = self.alone or self
        if new is not None and new is not self.new:
            fragments, filters = served.fragments.followed_by(new.fragments), new.behind(served.filters)
            served = replace(served, new=new, fragments=fragments, filters=filters, alone=served)
        always = self.always
        if served is not self or policy != self.policy:
            always = None if policy.filter is None or served.filters is None else served.filters.items(policy.filter)
        elif available is self.available:
            return self
        return replace(served, available=available, policy=policy, always=always)


@dataclass(frozen=True, slots=True)
class Faults:
    """The current errors of a recipe. Each part sets and clears its own.

    `load`: the artifact could not be loaded. `stat`: the store returned no marker of the artifact. `recipe`: the recipe
    file no longer parses.
    """

    load: str | None = None
    stat: str | None = None
    recipe: str | None = None

    def first(self) -> str | None:
        return self.load or self.stat or self.recipe


@dataclass(frozen=True, slots=True)
class ListState(Generic[Declared]):
    """A declared list of items, its content, and the start of its last read on trio's clock.

    `content` and `read_at` are None before the first read. If a read fails, they stay. Workers get no content. States
    with the same content are equal.
    """

    declared: Declared
    content: Any = None
    read_at: float | None = field(default=None, compare=False)

    def age_s(self) -> float | None:
        """Return the seconds since the source was last read or found unchanged, or None if it never was."""
        return None if self.read_at is None else max(0.0, trio.current_time() - self.read_at)

    def on_clock(self, shift_s: float) -> ListState[Declared]:
        """Return the state without its content, on a clock that is ahead by `shift_s`."""
        return ListState(self.declared, None, None if self.read_at is None else self.read_at + shift_s)


def is_stale(available: ListState[Availability]) -> bool:
    """Return True if a list of available items is too old, or was never read."""
    age_s, longest_s = available.age_s(), available.declared.max_stale_seconds
    return age_s is None or (longest_s is not None and age_s > longest_s)


@dataclass(frozen=True, slots=True)
class Entry:
    """The state of one recipe.

    It is a stub if `served` is None. `file` is the name of the recipe file. `artifact_folder` is the path or URI of the
    artifact's folder with its last slash.
    """

    name: str
    file: str
    served: Served | None = None
    faults: Faults = Faults()
    policy: Policy = DEFAULT_POLICY
    availability: ListState[Availability] | None = None
    new_items: ListState[NewItemsDeclared] | None = None
    artifact_folder: str = ""

    @property
    def error(self) -> str | None:
        """Reason why there is no model, or None while a model is served."""
        return None if self.served else self.faults.first() or "not loaded yet"

    @property
    def last_load_error(self) -> str | None:
        """Current error while an earlier model serves, or None for a stub."""
        return self.faults.first() if self.served else None

    @property
    def is_closed(self) -> bool:
        """True while the recipe answers 503 because it shows only listed items, and the list is missing or too old."""
        return (
            self.availability is not None and self.availability.declared.mode == "allow" and is_stale(self.availability)
        )

    def require_fresh(self) -> None:
        """Raise AvailabilityStale if the recipe answers 503 because of its list."""
        if self.is_closed:
            raise AvailabilityStale


@dataclass(frozen=True, slots=True)
class WorkersState:
    """The number of configured workers, of ready workers, and of places in which each new worker dies at once."""

    total: int
    ready: int
    failing: int


class Registry:
    """The current entries of all recipes by name, and the errors of skipped files by file name.

    Only the watcher's tasks write, and any thread may read. `changed` is called for each change with its
    kind and arguments. `workers` is None without worker processes.
    """

    def __init__(self, changed: Callable[..., None] = lambda *_: None) -> None:
        self._entries: Mapping[str, Entry] = {}
        self._skipped: Mapping[str, str] = {}
        self._changed = changed
        self.workers: WorkersState | None = None

    def get(self, name: str) -> Entry | None:
        return self._entries.get(name)

    def require(self, name: str) -> Entry:
        """Return the entry of a recipe that a client names, or log the name and raise RecipeNotFound."""
        entry = self.get(name)
        if entry is None:
            raise unknown_recipe(name)
        return entry

    def entries(self) -> tuple[Entry, ...]:
        """Return all entries, sorted by name."""
        return tuple(self._entries.values())

    def skipped_files(self) -> Mapping[str, str]:
        """Return the errors of skipped recipe files by file name."""
        return self._skipped

    def put(self, entry: Entry) -> None:
        """Add or replace the entry of this name."""
        before = self.get(entry.name)
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

    def ready(self) -> bool:
        """Return True if a recipe is loaded, or if there are no recipes."""
        entries = self._entries
        return not entries or any(entry.served for entry in entries.values())

    def health(self) -> tuple[dict[str, Any], int]:
        """Return the document of counts and its HTTP status, which is 503 while a valid recipe has no model."""
        entries, skipped = self._entries, self._skipped
        loaded = sum(entry.served is not None for entry in entries.values())
        degraded = loaded < len(entries)
        document: dict[str, Any] = {"status": "degraded" if degraded else "ok", "total": len(entries), "loaded": loaded}
        if skipped:
            document["skipped"] = len(skipped)
        if self.workers is not None:
            document["workers"] = asdict(self.workers)
        return document, 503 if degraded else 200

    def details(self, may_ask: Callable[[str], bool] = bool) -> tuple[dict[str, Any], int]:
        """Return the document with the state of each recipe, and its HTTP status.

        The status is 503 while any recipe has an error. Skipped files are shown, but are not errors. The document has
        only names that `may_ask` admits. The name of a skipped file is its stem.
        """
        entries = {name: entry for name, entry in self._entries.items() if may_ask(name)}
        recipes = {name: _details(entry) for name, entry in entries.items()}
        degraded = any(entry.faults.first() or not entry.served or entry.is_closed for entry in entries.values())
        for file, error in self._skipped.items():
            if not may_ask(stem_of(file)):
                continue
            key = file if stem_of(file) in entries else stem_of(file)
            recipes[key] = {"loaded": False, "skipped": True, "error": _shown(error)}
        return {"status": "degraded" if degraded else "ok", "recipes": recipes}, 503 if degraded else 200


def unknown_recipe(name: str) -> RecipeNotFound:
    """Log an unknown recipe's name, and return the error for the client.

    No other code may raise RecipeNotFound, so that each is logged.
    """
    logs.emit(events.RECIPE_NOT_FOUND, name=name)
    return RecipeNotFound()


def unix_time(moment: object) -> float:
    """Return the Unix time of an ISO 8601 text in a header, or 0 if it has none."""
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
    for key, error in (("error", entry.error), ("last_load_error", entry.last_load_error)):
        if error:
            shown = error.replace(entry.artifact_folder, "") if entry.artifact_folder else error
            document[key] = _shown(shown)
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


def _shown(error: str) -> str:
    """Return the exposed part of an error. Escapes bytes that are not UTF-8, which paths and variables may have."""
    return error.encode("utf-8", "backslashreplace").decode()[:SHOWN_ERROR_CHARACTERS]
