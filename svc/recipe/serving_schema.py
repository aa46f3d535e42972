"""The blocks of a recipe that a server uses: item metadata, filter fields, lists of items, rules for all requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, ValidationInfo, field_validator, model_validator

from svc.names import NAME_PATTERN
from svc.recipe.filter_tree import GROUPS, FilterProblem, Kind, parse_filter
from svc.recipe.source_options import Block, Located, Name, Number, SourceSpec, Whole, unique_by_name, unique_names
from svc.recipe.training_schema import Age, Delimiter, seconds

RecipeName = Annotated[str, Field(pattern=NAME_PATTERN)]
Share = Annotated[Number, Field(ge=0, le=1)]
RESERVED_FIELDS = frozenset({"item_id", "score"})  # keys that every recommended item already has


class FilterField(Block):
    """A column of the metadata table that requests may filter on."""

    name: Name
    kind: Kind
    delimiter: Delimiter = Field(default="|", description="Between labels of multi_label.")

    @field_validator("name")
    @classmethod
    def _no_word_of_filters(cls, name: str) -> str:
        if name in GROUPS:
            raise ValueError("is a word of filters themselves; rename the column in the table")
        return name


class ItemMetadata(Block):
    """Fields of each recommended item in an answer, and fields that requests may filter on."""

    source: SourceSpec
    id_column: Name
    fields: Annotated[tuple[Name, ...], AfterValidator(unique_names)] = Field(
        default=(), description="The only columns that answers carry; may be empty when there are filter_fields."
    )
    filter_fields: Annotated[tuple[FilterField, ...], AfterValidator(unique_by_name)] = Field(
        default=(), description="Columns that may be filtered on; answered only when they are also in `fields`."
    )
    on_field_missing: Literal["error", "null"] = "error"

    @field_validator("fields")
    @classmethod
    def _not_reserved(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in RESERVED_FIELDS:
                raise ValueError(f"names {name!r}, which every answer already has; rename the column in the table")
        return names

    @model_validator(mode="after")
    def _some_field(self) -> Self:
        if not self.fields and not self.filter_fields:
            raise ValueError("needs `fields`, `filter_fields` or both")
        return self

    @property
    def filter_kinds(self) -> dict[str, str]:
        """Return the kind of each filter field by its name."""
        return {field.name: field.kind for field in self.filter_fields}


class Availability(Block):
    """A list of item ids that the server reads again every `refresh_seconds`."""

    source: SourceSpec
    id_column: Name
    mode: Literal["allow", "deny"] = Field(description="allow: only these items; deny: all but these.")
    refresh_seconds: Annotated[Number, Field(ge=5, le=86_400)] = 60
    max_stale_seconds: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Age in seconds from which the list is too old: allow answers 503, deny logs it. null: never.",
    )

    @model_validator(mode="after")
    def _outlives_a_refresh(self) -> Self:
        if self.max_stale_seconds is not None and self.max_stale_seconds < self.refresh_seconds:
            raise ValueError("max_stale_seconds is shorter than refresh_seconds, so every list would be stale")
        return self


NEW_ITEMS_SHARE = 0.2
"""The default of NewItems.max_share."""


class NewItems(Block):
    """A list of items that are not in the training data. The server reads it again every `refresh_seconds`."""

    source: SourceSpec = Field(description="Has the id column and the columns of features.item.")
    refresh_seconds: Annotated[Number, Field(ge=5, le=86_400)] = 300
    max_items: Annotated[Whole, Field(ge=1, le=100_000)] = Field(
        default=10_000, description="A longer list is refused, and the last one stays."
    )
    max_share: Share | None = Field(
        default=NEW_ITEMS_SHARE, description="Of the first n items of a ranking, for every n; null: no bound."
    )
    min_share: Share = Field(
        default=0, description="Share of new items as long as there are new candidates, regardless of their scores."
    )

    @field_validator("min_share")
    @classmethod
    def _is_at_most_max_share(cls, min_share: float, info: ValidationInfo) -> float:
        # Absent if it is invalid, which has an error of its own.
        max_share = info.data.get("max_share")
        if max_share is not None and min_share > max_share:
            raise ValueError(f"is above max_share, {max_share:g}: raise max_share, or lower min_share")
        return min_share


class Timed(Block):
    """A boost or a pin, which may be limited in time."""

    from_: AwareDatetime | None = Field(default=None, alias="from", description="ISO 8601 with zone; null: always.")
    until: AwareDatetime | None = Field(default=None, description="ISO 8601 with zone, not included; null: for ever.")

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.from_ is not None and self.until is not None and self.from_ >= self.until:
            raise ValueError("`from` is not before `until`")
        return self

    def applies(self, now: float) -> bool:
        """Return True at Unix times from `from` on and before `until`."""
        has_begun = self.from_ is None or self.from_.timestamp() <= now
        return has_begun and (self.until is None or now < self.until.timestamp())

    def overlaps(self, other: Timed) -> bool:
        # A missing bound is no bound, so only those that are given can keep the two apart.
        starts = [entry.from_ for entry in (self, other) if entry.from_ is not None]
        ends = [entry.until for entry in (self, other) if entry.until is not None]
        return not starts or not ends or max(starts) < min(ends)


class ServingLimit(Block):
    """The most items in an answer with the same value of a field."""

    field: Name
    max: Annotated[Whole, Field(ge=1, le=1000)]


class ServingBoost(Timed):
    """A factor that ranks the items that satisfy a filter higher or lower."""

    filter: dict[str, Any]
    factor: Annotated[Number, Field(ge=0.1, le=10)]


class ServingPin(Timed):
    """An item at a fixed position of the whole ranking, from 0."""

    item_id: Name
    position: Annotated[Whole, Field(ge=0, le=999)]


class Popular(Block):
    """How much a choice counts towards an item's popularity, by the age of the choice at the start of the training."""

    half_life: Age | None = Field(
        default=None, description="A choice of this age counts half, one of twice the age a quarter: 90min, 7d."
    )
    window: Age | None = Field(
        default=None, description="Older choices do not count, and items without a newer choice stand last: 36h, 30d."
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.half_life is None and self.window is None:
            raise ValueError("give half_life, window, or both; without the block all choices count alike")
        return self

    @property
    def half_life_s(self) -> float | None:
        return seconds(self.half_life)

    @property
    def window_s(self) -> float | None:
        return seconds(self.window)


class Rehearsal(Block):
    """The conditions for a new model to replace the served one."""

    min_known_users: Share = Field(description="Share of the served model's users that the new model must know.")


class PageRules(Block):
    """The rules of a recipe for the items of all answers, which an arm of an experiment may replace."""

    filter: dict[str, Any] | None = Field(default=None, description="Holds for every request, joined by AND.")
    diversity: Share = Field(default=0, description="0: the best items; 1: as unlike each other as possible.")
    limits: Annotated[tuple[ServingLimit, ...], Field(max_length=4)] = ()
    boosts: Annotated[tuple[ServingBoost, ...], Field(max_length=16)] = ()
    pins: Annotated[tuple[ServingPin, ...], Field(max_length=16)] = ()

    @field_validator("pins")
    @classmethod
    def _each_place_once(cls, pins: tuple[ServingPin, ...]) -> tuple[ServingPin, ...]:
        for index, pin in enumerate(pins):
            for before in pins[:index]:
                if pin.overlaps(before) and (pin.item_id == before.item_id or pin.position == before.position):
                    raise ValueError(
                        f"repeats an item or a position at the same time in entry {index}: change its times"
                    )
        return pins

    def _filters(self, where: str) -> dict[str, dict[str, Any]]:
        """Return every filter of the block by its field path in the recipe."""
        filters = {} if self.filter is None else {f"{where}.filter": self.filter}
        return filters | {f"{where}.boosts[{index}].filter": boost.filter for index, boost in enumerate(self.boosts)}

    def check_fields(self, kinds: Mapping[str, str], where: str = "serving") -> None:
        """Raise ValueError for an invalid filter, a limit on a field without labels, and two limits on one field.

        `kinds` has the kind of each filter field of the recipe, and `where` is the field path of the block.
        """
        for path, tree in self._filters(where).items():
            try:
                parse_filter(tree, kinds)
            except FilterProblem as problem:
                field_path = ".".join(map(str, (path, *problem.place)))
                raise ValueError(f"{field_path}: {problem.message}") from None
        # Two limits on one field would both hold, so the larger one would have no effect.
        names = [limit.field for limit in self.limits]
        for index, name in enumerate(names):
            # A field that is not declared is no field with labels either.
            if kinds.get(name, "numerical") == "numerical":
                raise ValueError(f"{where}.limits[{index}].field: {name!r} is not a filter field with labels")
            if name in names[:index]:
                raise ValueError(f"{where}.limits[{index}].field: {name!r} has a limit already; keep one")


class Arm(Block):
    """One variant of an experiment: a model, rules, or both."""

    name: RecipeName
    weight: Annotated[Whole, Field(ge=0, le=1_000_000)] = Field(
        description="Share of the units: this weight of the sum of all weights."
    )
    path: Name | None = Field(default=None, description="An artifact of its own. null: the artifact of the recipe.")
    serving: PageRules = Field(default_factory=PageRules, description="Rules that replace those of the recipe.")

    def rules(self, serving: Serving) -> Serving:
        """Return the block of the recipe with the rules of this arm."""
        # Only what the arm writes: other rules stay those of the recipe.
        own = {name: getattr(self.serving, name) for name in self.serving.model_fields_set}
        return serving.model_copy(update=own)


class Shadow(Block):
    """An arm that also ranks a share of the requests. Its rankings are compared and never sent."""

    arm: RecipeName
    share: Share = Field(description="Share of the requests that the arm ranks too.")


class Experiment(Block):
    """Variants of a recipe that answer the requests of distinct units, so that they can be compared."""

    name: RecipeName
    salt: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="A secret text. The same salt gives each unit the same arm on every replica."
    )
    arms: Annotated[tuple[Arm, ...], Field(min_length=2, max_length=8), AfterValidator(unique_by_name)]
    shadow: Shadow | None = None

    @model_validator(mode="after")
    def _some_weight_and_known_shadow(self) -> Self:
        if not any(arm.weight for arm in self.arms):
            raise ValueError("every arm has the weight 0: give at least one arm a weight above 0")
        names = [arm.name for arm in self.arms]
        if self.shadow is not None and self.shadow.arm not in names:
            raise ValueError(f"shadow.arm {self.shadow.arm!r} is no arm: name one of {', '.join(names)}")
        return self


class ServedLog(Located):
    """A log of what was answered, in files of JSON lines in a local folder."""

    path: Name = Field(description="A local folder.")
    share: Share = Field(default=1, description="Share of the units that are logged.")
    rotate_minutes: Annotated[Whole, Field(ge=1, le=1440)] = Field(
        default=60, description="A new file begins at multiples of this many minutes of the day, in UTC."
    )
    keep_days: Annotated[Whole, Field(ge=1, le=3650)] = Field(
        default=30, description="Age in days from which a file is removed."
    )


class Serving(PageRules):
    """The use of the model by a server. Only `popular` changes the model, so only it is part of the recipe's hash."""

    availability: Availability | None = None
    new_items: NewItems | None = Field(default=None, description="Needs features.item.")
    fallback: Literal["none", "popular"] = Field(
        default="none", description="Answer for an unknown user if the request has no `fallback`."
    )
    popular: Popular | None = Field(
        default=None,
        description="Weights of choices by age, in the ranking by popularity. null: all choices count alike.",
    )
    rehearsal: Rehearsal | None = None
    users: bool = Field(default=False, description="Let users be ranked for an item: answers then hold user ids.")
    experiment: Experiment | None = None
    served_log: ServedLog | None = None

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Return the arms of the experiment, none without an experiment."""
        return () if self.experiment is None else self.experiment.arms

    def check_fields(self, kinds: Mapping[str, str], where: str = "serving") -> None:
        super().check_fields(kinds, where)
        for index, arm in enumerate(self.arms):
            arm.serving.check_fields(kinds, f"{where}.experiment.arms[{index}].serving")
