"""The recipe as frozen models: every field with its type, bounds and default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from svc.names import RECIPE_NAME, Versioning
from svc.recipe.algorithms import (
    BLEND,
    BLENDED,
    DEFAULT_ALGORITHMS,
    FEATURE_AWARE,
    RECENCY,
    SELF_WEIGHT,
    TOP_POP,
    TRANSITIONS,
    canonical_name,
    check_search_space,
)
from svc.recipe.filter_tree import FilterProblem
from svc.recipe.promotion_schema import Promotion, bare_off
from svc.recipe.row_filter import Where, either
from svc.recipe.serving_schema import Popular, Serving
from svc.recipe.side_tables import Features, ItemMetadata
from svc.recipe.source_options import Block, Located, Name, Number, Positive, SourceSpec, Whole
from svc.recipe.time_schema import (
    Age,
    Recency,
    TimeDecay,
    check_recency,
    recency_in_effect,
    seconds,
    with_default_algorithms,
)

NAME_PATTERN = f"^{RECIPE_NAME}$"

Metric = Annotated[
    Literal["ndcg", "map", "recall", "hit"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
TimeUnit = Literal["s", "ms", "us", "ns"]
Scheme = Literal["random", "time_user", "time_global", "leave_one_out"]
Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
Seconds = Annotated[Number, Field(gt=0)]
Algorithm = Annotated[str, AfterValidator(canonical_name)]
Ranker = Annotated[Literal["search", "off"], BeforeValidator(bare_off)]
Searched = bool | Whole | Number | str


class InteractionSchema(Block):
    """The columns of the interaction table by their roles."""

    user_column: Name
    item_column: Name
    time_column: Name | None = None
    time_unit: TimeUnit | None = Field(default=None, description="Unit of a numeric time column.")
    weight_column: Name | None = Field(default=None, description="The weight of each row, a number above 0.")
    event_column: Name | None = Field(
        default=None, description="The kind of each row's event. cleansing.event_weights has its weight."
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        if self.user_column == self.item_column:
            raise ValueError("user_column and item_column name the same column")
        for name in ("weight_column", "event_column"):
            if getattr(self, name) in {self.user_column, self.item_column}:
                raise ValueError(f"{name} names an id column")
        if self.weight_column is not None and self.event_column is not None:
            raise ValueError("weight_column and event_column both say what a row counts: keep one of them")
        return self

    @property
    def is_weighted(self) -> bool:
        return self.weight_column is not None or self.event_column is not None


class MaxChange(Block):
    """The permitted change of the data since the last training, up or down: 0.5 allows 50%."""

    n_rows: Annotated[Number, Field(gt=0)] | None = None
    n_users: Annotated[Number, Field(gt=0)] | None = None
    n_items: Annotated[Number, Field(gt=0)] | None = None


class Cleansing(Block):
    where: Where | None = Field(
        default=None, description="A filter, as in requests, over columns of the table. Other rows are dropped."
    )
    hide: Where | None = Field(
        default=None,
        description="A filter over columns of the table, applied before `where`. Its rows are no interactions, and "
        "their items are not recommended to that user, as seen ones are not.",
    )
    drop_null_ids: bool = True
    event_weights: dict[str, Annotated[Number, Field(gt=0)] | Literal["exclude"]] | None = Field(
        default=None,
        description="Weight by event; `exclude`: no interaction, and that user never sees the item. Others drop.",
    )
    dedup: Literal["sum", "max", "count", "keep_last", "keep_first", "none"] = Field(
        default="keep_last",
        description="The result for several interactions of one user and item: one with the sum, the largest or the "
        "number of their weights, the last or the first of them, or all of them.",
    )
    min_rows: Positive | None = None
    min_users: Positive | None = None
    min_items: Positive | None = None
    max_change: MaxChange | None = Field(
        default=None, description="A larger change since the last training ends the run; no part of the hash."
    )

    @model_validator(mode="after")
    def _filters_agree(self) -> Self:
        try:
            either(self.hide, self.where)
        except FilterProblem as problem:
            raise ValueError(problem.message) from None
        return self


class Split(Block):
    scheme: Scheme = Field(
        default="random",
        description="Default with a schema.time_column: time_user, else random. The time schemes need that column. "
        "leave_one_out holds out the latest item of each user.",
    )
    heldout_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    test_user_ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    test: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Share of the users with held-out items to score only the winner on, once."
    )
    seed: Seed = 42


class Training(Block):
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = DEFAULT_ALGORITHMS
    metric: Metric = "ndcg"
    cutoff: Annotated[Whole, Field(ge=1, le=1_000_000)] = 20
    n_trials: Positive = Field(default=40, description="Budget of the whole search, divided among the algorithms.")
    per_algorithm_trials: dict[Algorithm, Annotated[Whole, Field(ge=0)]] | None = Field(
        default=None, description="Budget of single algorithms; 0 drops one."
    )
    search_space: dict[Algorithm, dict[str, tuple[Searched, ...]]] | None = Field(
        default=None, description="Bounds, [lowest, highest], or choices of single parameters, by algorithm."
    )
    parallelism: Annotated[Whole, Field(ge=1, le=256)] | None = Field(
        default=None, description="Trials at once, each in a process of its own; by default all cores."
    )
    timeout_seconds: Seconds | None = None
    per_trial_timeout_seconds: Seconds | None = None
    max_rank_ms: Annotated[Number, Field(gt=0, le=60_000)] | None = Field(
        default=None,
        description="Processor milliseconds of a single ranking above which a trial cannot win, on the training host.",
    )
    storage_path: str = Field(default="", description="Shared search: a file, or a database URL with its driver.")
    seed: Seed = 42
    split: Split = Field(default_factory=Split)
    time_decay: TimeDecay | None = None
    recency: Recency = Field(
        default="search",
        description="Higher weight of the latest items of a history: searched if there is a time column and the split "
        "is not random, off, or a number for all algorithms.",
    )
    repeats: bool = Field(
        default=False,
        description="Users may choose an item again, so seen items are held out and recommended too.",
    )
    ranker: Ranker = Field(
        default="off",
        description="search: learn the order of the first page from all features of items. It ships only if it is "
        "better than the winner by more than chance.",
    )
    sample_users: Positive | None = Field(
        default=None, description="Most users to train on, drawn by the seed. The others get exact vectors afterwards."
    )
    weighted_metric: bool = Field(
        default=False, description="Held-out interactions count by their weight; without it all count alike."
    )
    report_diversity: bool = Field(
        default=True, description="A training with --report measures the cost of diversity for its winner."
    )
    max_search_age: Age | None = Field(
        default=None,
        description="Age of the last search from which `svc train --refit` searches again: 36h, 7d; null: never.",
    )

    @property
    def max_search_age_s(self) -> float | None:
        return seconds(self.max_search_age)

    @property
    def trains_on_times(self) -> bool:
        """Return whether some model depends on the times of interactions, regardless of the split."""
        return self.time_decay is not None or TRANSITIONS in self.algorithms

    @field_validator("algorithms")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        listed = tuple(dict.fromkeys(names))
        parts = (*BLENDED, TOP_POP)
        if BLEND in listed and len(set(listed) & set(parts)) < 2:
            raise ValueError(f"lists {BLEND}, which needs two or more of {', '.join(parts)} beside it")
        return listed

    @field_validator("per_algorithm_trials")
    @classmethod
    def _only_listed(cls, trials: dict[str, int] | None, info: ValidationInfo) -> dict[str, int] | None:
        listed = info.data.get("algorithms", ())
        for name in trials or {}:
            if listed and name not in listed:
                raise ValueError(f"names {name}, which `algorithms` does not list")
        if (trials or {}).get(BLEND):
            raise ValueError(f"gives {BLEND} trials, which it does not have: it is made of those of the others")
        if trials and listed and all(trials.get(name) == 0 for name in listed if name != BLEND):
            raise ValueError("drops every algorithm; leave one with a budget")
        return trials

    @field_validator("search_space")
    @classmethod
    def _can_be_searched(
        cls, spaces: dict[str, dict[str, tuple[Searched, ...]]] | None, info: ValidationInfo
    ) -> dict[str, dict[str, tuple[Searched, ...]]] | None:
        listed = info.data.get("algorithms", ())
        for name, wanted in (spaces or {}).items():
            if listed and name not in listed:
                raise ValueError(f"names {name}, which `algorithms` does not list")
            check_search_space(name, wanted)
        return spaces

    @model_validator(mode="after")
    def _self_weights_need_repeats(self) -> Self:
        bounded = [name for name, bounds in (self.search_space or {}).items() if SELF_WEIGHT in bounds]
        if bounded and not self.repeats:
            raise ValueError(
                f"search_space.{bounded[0]}.self_weight bounds what is not searched here: it needs training.repeats: "
                "true, without which nobody is recommended what they have chosen before"
            )
        return self


class Output(Located):
    path: Name = Field(description="The artifact: local path or URI that ends in .svc.")
    versioning: Versioning = "always_overwrite"
    expires_after: Age | None = Field(
        default=None, description="Age from which servers do not load the artifact anew: 36h, 30d."
    )

    keep: Positive | None = Field(default=None, description="How many versions stay beside the pointer; null: all.")

    @model_validator(mode="after")
    def _versions_to_keep(self) -> Self:
        if self.keep is not None and self.versioning == "always_overwrite":
            raise ValueError("keep needs versioning: append_sha; always_overwrite leaves no older versions to keep")
        return self

    @property
    def expires_after_s(self) -> float | None:
        return seconds(self.expires_after)


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
    serving: Serving | None = None
    promotion: Promotion | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_algorithms(cls, recipe: Any) -> Any:
        return with_default_algorithms(recipe) if isinstance(recipe, Mapping) else recipe

    @model_validator(mode="after")
    def _time_for_time_schemes(self) -> Self:
        scheme = self.training.split.scheme
        if scheme in {"time_user", "time_global"} and self.schema_.time_column is None:
            raise ValueError(f"split.scheme {scheme} needs schema.time_column")
        return self

    @model_validator(mode="after")
    def _weights_have_columns(self) -> Self:
        if (self.schema_.event_column is None) != (self.cleansing.event_weights is None):
            if self.schema_.event_column is None:
                raise ValueError("cleansing.event_weights needs schema.event_column, the column whose values it weighs")
            raise ValueError("schema.event_column needs cleansing.event_weights, the weight of each of its values")
        if self.training.weighted_metric and not self.schema_.is_weighted:
            raise ValueError("training.weighted_metric needs schema.weight_column or schema.event_column")
        if self.training.time_decay is not None and self.schema_.time_column is None:
            raise ValueError("training.time_decay needs schema.time_column")
        if TRANSITIONS in self.training.algorithms and self.schema_.time_column is None:
            raise ValueError(f"{TRANSITIONS} learns which item follows which, so it needs schema.time_column")
        return self

    @model_validator(mode="after")
    def _recency_needs_order(self) -> Self:
        training = self.training
        recency = training.recency if "recency" in training.model_fields_set else "off"
        check_recency(recency, time_column=self.schema_.time_column, scheme=training.split.scheme)
        bounded = [name for name, bounds in (training.search_space or {}).items() if RECENCY in bounds]
        if bounded and self.recency != "search":
            raise ValueError(
                f"training.search_space.{bounded[0]}.recency bounds what is not searched here: it needs "
                "training.recency: search, schema.time_column and a split.scheme by time"
            )
        return self

    @property
    def recency(self) -> Literal["search"] | float:
        """Return "search", or the one recency of all models, which is 0 if recency is off."""
        return recency_in_effect(
            self.training.recency, time_column=self.schema_.time_column, scheme=self.training.split.scheme
        )

    @property
    def trains_on_times(self) -> bool:
        """Return whether a model, or the weights in its histories, depend on the times of interactions."""
        uses_recent = self.blends_recent_popularity or self.orders_pages
        return self.training.trains_on_times or self.recency != 0.0 or uses_recent

    @property
    def blends_recent_popularity(self) -> bool:
        """Return whether a blend may have recent popularity as a part.

        A random holdout is as old as the training data, so it cannot show whether recent choices count more.
        """
        listed, scheme = self.training.algorithms, self.training.split.scheme
        return {BLEND, TOP_POP} <= set(listed) and self.schema_.time_column is not None and scheme != "random"

    @property
    def orders_pages(self) -> bool:
        """Return whether the ranker uses times. It needs held-out rows that are later than the others."""
        has_times = self.schema_.time_column is not None and self.training.split.scheme != "random"
        return self.training.ranker == "search" and has_times

    @model_validator(mode="after")
    def _features_need_ials(self) -> Self:
        budget = (self.training.per_algorithm_trials or {}).get(FEATURE_AWARE)
        if self.features is not None and (FEATURE_AWARE not in self.training.algorithms or budget == 0):
            raise ValueError(f"features are learned by {FEATURE_AWARE} alone: list it in training.algorithms")
        return self

    @model_validator(mode="after")
    def _everybody_can_be_placed(self) -> Self:
        cannot = self.features is not None or "BPRFMRecommender" in self.training.algorithms
        if self.training.sample_users is not None and cannot:
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
        if self.serving is not None:
            self.serving.check_fields(self.filter_kinds)
        return self

    @model_validator(mode="after")
    def _popularity_needs_times(self) -> Self:
        if self.popular is not None and self.schema_.time_column is None:
            raise ValueError(
                "serving.popular needs schema.time_column: without times, nobody knows what was chosen lately"
            )
        return self

    @property
    def popular(self) -> Popular | None:
        """Return the weights of choices in popularity by age, or None if all count alike."""
        return None if self.serving is None else self.serving.popular

    @model_validator(mode="after")
    def _new_items_have_features(self) -> Self:
        declared = self.serving is not None and self.serving.new_items is not None
        if declared and (self.features is None or self.features.item is None):
            raise ValueError("serving.new_items needs features.item: new items are ranked by their features alone")
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
        sources = {"source": self.source}
        for side in ("item", "user"):
            block = getattr(self.features, side, None)
            if block is not None:
                sources[f"features.{side}.source"] = block.source
        if self.item_metadata is not None:
            sources["item_metadata.source"] = self.item_metadata.source
        if self.serving is not None and self.serving.availability is not None:
            sources["serving.availability.source"] = self.serving.availability.source
        if self.serving is not None and self.serving.new_items is not None:
            sources["serving.new_items.source"] = self.serving.new_items.source
        return sources
