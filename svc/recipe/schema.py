"""The recipe as frozen models: every field with its type, bounds and default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator

from svc.names import NAME_PATTERN, Versioning, did_you_mean
from svc.recipe.algorithms import BLEND, FEATURE_AWARE, RECENCY, SELF_WEIGHT, TAKES_TIMES, TOP_POP
from svc.recipe.filter_tree import RowFilter, either, parse_row_filter
from svc.recipe.serving_schema import ItemMetadata, Serving
from svc.recipe.source_options import Block, Located, Name, Number, Positive, SourceSpec, bare_off, each_once
from svc.recipe.training_schema import (
    Age,
    Features,
    Training,
    check_recency,
    or_empty,
    recency_in_effect,
    seconds,
    with_default_algorithms,
)

INCUMBENT: Final = "incumbent"
BASELINE: Final = "TopPop"

TimeUnit = Literal["s", "ms", "us", "ns"]
TIME_FORMAT_PATTERN = "^(?:[^%]|%[aAwdbBmMyYHIpSfjzZUWuVG%]){0,100}%[yYG](?:[^%]|%[aAwdbBmMyYHIpSfjzZUWuVG%]){0,100}$"
"""Has a year, and only the codes that pandas reads too."""


def _require_two(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) != 2:
        raise ValueError("must name one column, or two: of dates and of clock times")
    return names


if TYPE_CHECKING:
    Where = RowFilter
else:  # written as a tree of mappings; pydantic reports a FilterProblem as an error of the field
    Where = Annotated[dict[str, Any], AfterValidator(parse_row_filter), PlainSerializer(attrgetter("written"))]


class InteractionSchema(Block):
    """The columns of the interaction table by their roles."""

    user_column: Name
    item_column: Name
    time_column: Name | Annotated[tuple[Name, ...], AfterValidator(_require_two)] | None = Field(
        default=None, description="The column of times, or the columns of dates and of clock times."
    )
    time_unit: TimeUnit | None = Field(
        default=None,
        description="Unit of a numeric time column. Leave it out for dates as text, and multiply days by 86400.",
    )
    time_format: Annotated[str, Field(pattern=TIME_FORMAT_PATTERN)] | None = Field(
        default=None, description="Form of times as text, as in Python's strptime: %d.%m.%Y %H:%M. Default: ISO 8601."
    )
    weight_column: Name | None = Field(default=None, description="The weight of each row, a number above 0.")
    event_column: Name | None = Field(
        default=None, description="The kind of each row's event. cleansing.event_weights has its weight."
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        if self.time_unit is not None and (self.time_format is not None or len(self.time_columns) > 1):
            raise ValueError("time_unit is for one column of numbers: leave it out")
        if self.user_column == self.item_column:
            raise ValueError("user_column and item_column name the same column")
        for name in ("weight_column", "event_column"):
            if getattr(self, name) in {self.user_column, self.item_column}:
                raise ValueError(f"{name} names an id column")
        if self.weight_column is not None and self.event_column is not None:
            raise ValueError("weight_column and event_column both say what a row counts: keep one of them")
        return self

    @property
    def time_columns(self) -> tuple[str, ...]:
        names = self.time_column or ()
        return (names,) if isinstance(names, str) else names

    @property
    def time_name(self) -> str:
        """Return the name of the time column in messages."""
        return " ".join(self.time_columns)

    @property
    def time_form(self) -> str | None:
        """Return the unit of numeric times, the format of texts, or None for ISO 8601."""
        return self.time_format or self.time_unit

    @property
    def is_weighted(self) -> bool:
        return self.weight_column is not None or self.event_column is not None


class MaxChange(Block):
    """The permitted change of the data since the last training, up or down: 0.5 allows 50%."""

    n_rows: Annotated[Number, Field(gt=0)] | None = None
    n_users: Annotated[Number, Field(gt=0)] | None = None
    n_items: Annotated[Number, Field(gt=0)] | None = None


Dedup = Literal["sum", "max", "count", "keep_last", "keep_first", "none"]
DEDUP_OF_EVENTS: Final = "max"
WEIGHT_SCALES: Final = ("none", "log", "rank", "mean")
"""The scales of weights from which a search chooses."""


class Forget(Block):
    """A table of users whose rows are dropped before everything else in every training."""

    source: SourceSpec
    id_column: Name


class Cleansing(Block):
    where: Where | None = Field(
        default=None, description="A filter, as in requests, over columns of the table. Other rows are dropped."
    )
    hide: Where | None = Field(
        default=None,
        description="A filter over columns of the table, applied before `where`. Its rows are no interactions, and "
        "hide their items from their users like seen items.",
    )
    forget: Forget | None = Field(
        default=None, description="Users whose rows are dropped before everything else. `svc forget` adds to it."
    )
    drop_null_ids: bool = True
    event_weights: dict[str, Annotated[Number, Field(gt=0)] | Literal["exclude"]] | None = Field(
        default=None,
        description="Weight by event; `exclude`: no interaction, and that user never sees the item. Rows of other "
        "events are dropped.",
    )
    seen: Annotated[tuple[str, ...], AfterValidator(each_once)] | None = Field(
        default=None,
        description="Events whose items are left out of the user's answers. Default: all with a weight.",
    )
    dedup: Dedup = Field(
        default="keep_last",
        description="The result for several interactions of one user and item: one with the sum, the largest or the "
        "number of their weights, the last or the first of them, or all of them. Default with events: max.",
    )
    weight_scale: Literal["search", "none", "log", "rank", "mean", "raw"] = Field(
        default="search",
        description="How weights of weight_column count. raw: as they are. search: as each trial chooses.",
    )
    min_interactions: Positive | None = Field(
        default=None,
        description="Rows of users and of items with fewer rows than this are dropped, until none is left (k-core).",
    )
    min_rows: Positive | None = None
    min_users: Positive | None = None
    min_items: Positive | None = None
    max_change: MaxChange | None = Field(
        default=None, description="A larger change since the last training ends the run; no part of the hash."
    )

    @model_validator(mode="after")
    def _filters_agree(self) -> Self:
        either(self.hide, self.where)
        return self

    @property
    def event_values(self) -> dict[str, float]:
        """Return the weight of each event that has one."""
        weights = self.event_weights or {}
        return {event: float(weight) for event, weight in weights.items() if weight != "exclude"}

    @property
    def dedup_in_effect(self) -> Dedup:
        """Return the rule for repeated rows. Of events, the one with the largest weight counts by default."""
        # By the written fields, because a written keep_last must stay what it says.
        return self.dedup if self.event_weights is None or "dedup" in self.model_fields_set else DEDUP_OF_EVENTS


class Output(Located):
    path: Name = Field(description="The artifact: local path or URI that ends in .svc.")
    versioning: Versioning = "always_overwrite"
    expires_after: Age | None = Field(
        default=None, description="Age from which servers do not load the artifact anew: 36h, 30d."
    )

    keep: Positive | None = Field(
        default=None,
        description="Number of newest versions to keep. The live one and the one before it always stay. null: all.",
    )

    @model_validator(mode="after")
    def _versions_to_keep(self) -> Self:
        # Refused and not ignored, because an operator would count on versions that do not exist.
        if self.keep is not None and self.versioning == "always_overwrite":
            raise ValueError("keep needs versioning: append_sha; always_overwrite leaves no older versions to keep")
        return self

    @property
    def expires_after_s(self) -> float | None:
        return seconds(self.expires_after)


def _baseline(name: object) -> object:
    """Return `TopPop` for any spelling that `training.algorithms` accepts, and other names unchanged."""
    short = name.strip().lower().removesuffix("recommender") if isinstance(name, str) else name
    # Other names stay for pydantic, whose error lists the two that are valid.
    return BASELINE if short == BASELINE.lower() else name


HighestChange = Annotated[Number, Field(ge=0)]
LowestChange = Annotated[Number, Field(ge=-1)]
Opponent = Annotated[Literal["incumbent", "TopPop"], BeforeValidator(_baseline)]


class Guardrail(Block):
    """The lowest permitted change of a figure, relative to the live model. -0.3 allows a drop of 30%."""

    min_relative_change: LowestChange


class CostGuardrail(Block):
    """The highest permitted change of a cost, relative to the live model. 1.0 allows twice the cost."""

    max_relative_change: HighestChange


def _guardrail() -> Guardrail:
    return Guardrail(min_relative_change=-0.3)


class Guardrails(Block):
    """Figures to check besides the metric. null skips a figure."""

    catalog_coverage: Guardrail | None = Field(
        default_factory=_guardrail, description="Share of all items in some judged user's list."
    )
    n_users: Guardrail | None = Field(default_factory=_guardrail, description="Users of the cleansed data.")
    n_items: Guardrail | None = Field(default_factory=_guardrail, description="Items of the cleansed data.")
    rank_ms: CostGuardrail | None = Field(
        default=None, description="Milliseconds of a single ranking, of both models on the machine that trains."
    )


class Promotion(Block):
    """The conditions for a new model to go live. They are not part of the hash."""

    mode: Annotated[Literal["off", "report", "enforce"], BeforeValidator(bare_off)] = Field(
        default="off", description="report: decide and say so; enforce: a refused model does not go live, exit code 9."
    )
    against: Annotated[tuple[Opponent, ...], Field(min_length=1), AfterValidator(each_once)] = (INCUMBENT, BASELINE)
    min_relative_change: LowestChange = Field(
        default=-0.01, description="Of the training metric; the lower end of each interval must reach it."
    )
    confidence: Annotated[Number, Field(ge=0.5, le=0.999)] = 0.95
    guardrails: Guardrails = Field(
        default_factory=Guardrails, description="Bounds of relative changes from the incumbent."
    )

    @model_validator(mode="after")
    def _guardrails_have_an_incumbent(self) -> Self:
        # Only a written block is refused, because the default one is always there.
        if "guardrails" in self.model_fields_set and INCUMBENT not in self.against:
            raise ValueError("guardrails compare with the incumbent: list it in promotion.against, or leave them out")
        return self


class Recipe(Block):
    """One recommender: its data, its search and its artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="svc recipe")

    name: Annotated[str, Field(pattern=NAME_PATTERN, description="Part of URLs.")]
    source: SourceSpec
    schema_: InteractionSchema = Field(alias="schema")
    cleansing: Cleansing = Field(default_factory=Cleansing)
    features: Features | None = None
    item_metadata: ItemMetadata | None = None
    training: Training = Field(default_factory=Training)
    output: Output
    # `serving: null` was valid before, and stays so.
    serving: Annotated[Serving, BeforeValidator(or_empty, Serving | None)] = Field(default_factory=Serving)
    promotion: Promotion | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_algorithms(cls, recipe: Any) -> Any:
        return with_default_algorithms(recipe) if isinstance(recipe, Mapping) else recipe

    @model_validator(mode="after")
    def _times_are_there(self) -> Self:
        # All that follows is about recipes without times.
        if self.schema_.time_column is not None:
            return self
        scheme = self.training.split.scheme
        if scheme in {"time_user", "time_global"}:
            raise ValueError(f"split.scheme {scheme} needs schema.time_column")
        if self.training.time_decay is not None:
            raise ValueError("training.time_decay needs schema.time_column")
        for name in TAKES_TIMES:
            if name in self.training.algorithms:
                raise ValueError(f"{name} learns which item follows which, so it needs schema.time_column")
        if self.serving.popular is not None:
            raise ValueError(
                "serving.popular needs schema.time_column: without times, nobody knows what was chosen lately"
            )
        return self

    @model_validator(mode="after")
    def _weights_have_columns(self) -> Self:
        if (self.schema_.event_column is None) != (self.cleansing.event_weights is None):
            if self.schema_.event_column is None:
                raise ValueError("cleansing.event_weights needs schema.event_column, the column whose values it weighs")
            raise ValueError("schema.event_column needs cleansing.event_weights, the weight of each of its values")
        # The default is there without a weight column, too.
        if "weight_scale" in self.cleansing.model_fields_set and self.schema_.weight_column is None:
            if self.schema_.event_column is not None:
                raise ValueError(
                    "cleansing.weight_scale is for a weight_column: cleansing.event_weights stay as written"
                )
            raise ValueError("cleansing.weight_scale needs schema.weight_column, the column whose values it scales")
        for field, names in (("cleansing.seen", self.cleansing.seen), ("training.target", self.training.target)):
            if names is not None:
                self._check_events(field, names)
        if self.cleansing.seen is not None and self.training.repeats:
            raise ValueError("cleansing.seen has no effect beside training.repeats: true, which shows all seen items")
        bounded = [name for name, bounds in (self.training.search_space or {}).items() if SELF_WEIGHT in bounds]
        if bounded and not self.shows_history:
            raise ValueError(
                f"training.search_space.{bounded[0]}.self_weight has no effect here: it needs training.repeats: true, "
                "or cleansing.seen, without which users are not recommended items that they have chosen before"
            )
        if self.training.weighted_metric and not self.schema_.is_weighted:
            raise ValueError("training.weighted_metric needs schema.weight_column or schema.event_column")
        return self

    @property
    def weight_scales(self) -> tuple[str, ...]:
        """Return the scales of weights that trials may have, none if weights are used as they are."""
        scale = self.cleansing.weight_scale
        if self.schema_.weight_column is None or scale == "raw":
            return ()
        return WEIGHT_SCALES if scale == "search" else (scale,)

    def _check_events(self, field: str, names: tuple[str, ...]) -> None:
        """Raise ValueError if one of `names` is no event with a weight."""
        if self.schema_.event_column is None:
            raise ValueError(f"{field} needs schema.event_column, the column with the events that it names")
        events = self.cleansing.event_values
        for name in names:
            if name not in events:
                raise ValueError(
                    f"{field} names {name!r}, which has no weight in cleansing.event_weights; "
                    f"{did_you_mean(name, events)}It has weights for {', '.join(events) or 'no event'}"
                )

    @property
    def seen(self) -> frozenset[str] | None:
        """Return the events whose items are left out of the user's answers, or None for all with a weight."""
        return self._some_events(self.cleansing.seen)

    @property
    def target(self) -> frozenset[str] | None:
        """Return the events that are held out and judged, or None for all with a weight."""
        return self._some_events(self.training.target)

    @property
    def shows_history(self) -> bool:
        """Return whether users are recommended some of the items in their history."""
        return self.training.repeats or self.seen is not None

    def _some_events(self, names: tuple[str, ...] | None) -> frozenset[str] | None:
        # A list of all events means the same as none, and must train the same model.
        return None if names is None or set(names) == set(self.cleansing.event_values) else frozenset(names)

    @model_validator(mode="after")
    def _recency_needs_order(self) -> Self:
        training = self.training
        # The default is off without a word where order cannot be judged. Only a written key is refused.
        recency = training.recency if "recency" in training.model_fields_set else "off"
        check_recency(recency, time_column=self.schema_.time_column, scheme=training.split.scheme)
        bounded = [name for name, bounds in (training.search_space or {}).items() if RECENCY in bounds]
        if bounded and self.recency != "search":
            raise ValueError(
                f"training.search_space.{bounded[0]}.recency has no effect here: it needs "
                "training.recency: search, schema.time_column and a split.scheme by time"
            )
        return self

    @property
    def recency(self) -> Literal["search"] | float:
        """Return "search", or the one recency of all models, which is 0 if it is off or cannot be searched."""
        return recency_in_effect(
            self.training.recency, time_column=self.schema_.time_column, scheme=self.training.split.scheme
        )

    @property
    def trains_on_times(self) -> bool:
        """Return whether a model, or the weights in its histories, depend on the times of interactions."""
        uses_recent = self.blends_recent_popularity or self.orders_pages
        return self.training.trains_on_times or self.recency != 0.0 or uses_recent

    @property
    def uses_time(self) -> bool:
        """Return whether a training uses the times of interactions. It is False without a time column."""
        wanted = self.training.split.scheme != "random" or self.trains_on_times or self.serving.popular is not None
        return wanted and self.schema_.time_column is not None

    @property
    def blends_recent_popularity(self) -> bool:
        """Return whether a blend may have recent popularity as a part.

        A random holdout is as old as the training data, so it cannot show whether recent choices count more.
        """
        listed, scheme = self.training.algorithms, self.training.split.scheme
        return {BLEND, TOP_POP} <= set(listed) and self.schema_.time_column is not None and scheme != "random"

    @property
    def orders_pages(self) -> bool:
        """Return whether the training learns the order of pages (`training.ranker`) from the times of interactions.

        Random splits do not permit this, because held-out rows must be later than the rows to learn from.
        """
        has_times = self.schema_.time_column is not None and self.training.split.scheme != "random"
        return self.training.ranker == "search" and has_times

    @model_validator(mode="after")
    def _features_agree(self) -> Self:
        budget = (self.training.per_algorithm_trials or {}).get(FEATURE_AWARE)
        if self.features is not None and (FEATURE_AWARE not in self.training.algorithms or budget == 0):
            raise ValueError(f"features are learned by {FEATURE_AWARE} alone: list it in training.algorithms")
        if self.serving.new_items is not None and (self.features is None or self.features.item is None):
            raise ValueError("serving.new_items needs features.item: new items are ranked by their features alone")
        # Vectors of BPR cannot be solved for after a training on some users.
        leaves_out = self.features is not None or "BPRFMRecommender" in self.training.algorithms
        if self.training.sample_users is not None and leaves_out:
            raise ValueError("training.sample_users: leave out features and BPRFMRecommender, or sample_users")
        return self

    @model_validator(mode="after")
    def _refused_models_have_a_place(self) -> Self:
        enforced = self.promotion is not None and self.promotion.mode == "enforce"
        if enforced and self.output.versioning == "always_overwrite":
            raise ValueError(
                "promotion.mode enforce needs output.versioning: append_sha; always_overwrite would put a refused "
                "model over the live one"
            )
        return self

    @model_validator(mode="after")
    def _serving_names_filter_fields(self) -> Self:
        self.serving.check_fields(self.filter_kinds)
        return self

    @property
    def filter_kinds(self) -> dict[str, str]:
        """Return the kind of each filter field by its name."""
        return {} if self.item_metadata is None else self.item_metadata.filter_kinds

    @property
    def shown_columns(self) -> set[str]:
        """Return the columns with values that a server may show: metadata, filter fields and features."""
        metadata = () if self.item_metadata is None else (*self.item_metadata.fields, *self.filter_kinds)
        sides = () if self.features is None else (self.features.item, self.features.user)
        return {*metadata, *(column.name for side in sides if side is not None for column in side.columns)}

    def sources(self) -> dict[str, SourceSpec]:
        """Return every `source:` block by its field path."""
        return dict(_sources(self, ""))


def _sources(block: BaseModel, where: str) -> Iterator[tuple[str, SourceSpec]]:
    for name, value in block:
        if isinstance(value, SourceSpec):
            yield f"{where}{name}", value
        elif isinstance(value, BaseModel):
            yield from _sources(value, f"{where}{name}.")
