"""The recipe as frozen models: every field with its type, bounds and default."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from svc.recipe.algorithms import DEFAULT_ALGORITHMS, FEATURE_AWARE, canonical_name
from svc.recipe.source_options import Block, Name, Number, SourceSpec, Whole

NAME_PATTERN = "^[A-Za-z0-9_-]{1,64}$"
RESERVED_FIELDS = frozenset({"item_id", "score"})  # keys that every recommended item already has

Metric = Literal["ndcg", "map", "recall", "hit"]
TimeUnit = Literal["s", "ms", "us", "ns"]
Scheme = Literal["random", "time_user", "time_global"]
Kind = Literal["categorical", "multi_label", "numerical"]
Versioning = Literal["append_sha", "always_overwrite"]
Positive = Annotated[Whole, Field(ge=1)]
Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
Seconds = Annotated[Number, Field(gt=0)]
Algorithm = Annotated[str, AfterValidator(canonical_name)]


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"names {repeated!r} twice")
    return names


class InteractionSchema(Block):
    """Which columns of the interaction table are which."""

    user_column: Name
    item_column: Name
    time_column: Name | None = None
    time_unit: TimeUnit | None = Field(default=None, description="Unit of a numeric time column.")

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        if self.user_column == self.item_column:
            raise ValueError("user_column and item_column name the same column")
        return self


class Cleansing(Block):
    drop_null_ids: bool = True
    dedup: Literal["keep_last", "keep_first", "none"] = Field(
        default="keep_last", description="Which of several interactions of one user with one item stays."
    )
    min_rows: Positive | None = None
    min_users: Positive | None = None
    min_items: Positive | None = None


class FeatureColumn(Block):
    name: Name
    kind: Kind = Field(description="May be spelled `encoding`.")
    delimiter: Annotated[str, Field(min_length=1, max_length=8)] = Field(
        default="|", description="Between labels of multi_label."
    )
    min_frequency: Positive = Field(default=1, description="Rarer values are left out of the vocabulary.")


class FeatureSide(Block):
    """The feature table of one side, users or items."""

    source: SourceSpec
    id_column: Name
    columns: Annotated[tuple[FeatureColumn, ...], Field(min_length=1)]

    @field_validator("columns")
    @classmethod
    def _named_once(cls, columns: tuple[FeatureColumn, ...]) -> tuple[FeatureColumn, ...]:
        _unique(tuple(column.name for column in columns))
        return columns


class Features(Block):
    item: FeatureSide | None = None
    user: FeatureSide | None = None

    @model_validator(mode="after")
    def _some_side(self) -> Self:
        if self.item is None and self.user is None:
            raise ValueError("needs `item`, `user` or both; leave the block out for a recipe without features")
        return self


class ItemMetadata(Block):
    """Fields that join each recommended item in an answer."""

    source: SourceSpec
    id_column: Name
    fields: Annotated[tuple[Name, ...], Field(min_length=1), AfterValidator(_unique)]
    on_field_missing: Literal["error", "null"] = "error"

    @field_validator("fields")
    @classmethod
    def _not_reserved(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in RESERVED_FIELDS:
                raise ValueError(f"names {name!r}, which every answer already has; rename the column in the table")
        return names


class Split(Block):
    scheme: Scheme = Field(default="random", description="The time schemes need schema.time_column.")
    heldout_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    test_user_ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    seed: Seed = 42


class Training(Block):
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = DEFAULT_ALGORITHMS
    metric: Metric = "ndcg"
    cutoff: Annotated[Whole, Field(ge=1, le=1_000_000)] = 20
    n_trials: Positive = Field(default=40, description="Budget of the whole search, divided among the algorithms.")
    per_algorithm_trials: dict[Algorithm, Annotated[Whole, Field(ge=0)]] | None = Field(
        default=None, description="Budget of single algorithms; 0 drops one."
    )
    parallelism: Annotated[Whole, Field(ge=1, le=256)] = 1
    timeout_seconds: Seconds | None = None
    per_trial_timeout_seconds: Seconds | None = None
    storage_path: str = Field(default="", description="Shared search: a file, or a database URL with its driver.")
    seed: Seed = 42
    split: Split = Field(default_factory=Split)

    @field_validator("algorithms")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names))

    @field_validator("per_algorithm_trials")
    @classmethod
    def _only_listed(cls, trials: dict[str, int] | None, info: ValidationInfo) -> dict[str, int] | None:
        listed = info.data.get("algorithms", ())
        for name in trials or {}:
            if listed and name not in listed:
                raise ValueError(f"names {name}, which `algorithms` does not list")
        if trials and listed and all(trials.get(name) == 0 for name in listed):
            raise ValueError("drops every algorithm; leave one with a budget")
        return trials


class Output(Block):
    path: Name = Field(description="The artifact: local path or URI that ends in .svc.")
    versioning: Versioning = "always_overwrite"


class Recipe(Block):
    """One recommender: its data, its search and its artifact."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="svc recipe")

    name: Annotated[str, Field(pattern=NAME_PATTERN, description="Stands in URLs.")]
    source: SourceSpec
    schema_: InteractionSchema = Field(alias="schema")
    cleansing: Cleansing = Field(default_factory=Cleansing)
    features: Features | None = None
    item_metadata: ItemMetadata | None = None
    training: Training = Field(default_factory=Training)
    output: Output

    @model_validator(mode="after")
    def _time_for_time_schemes(self) -> Self:
        scheme = self.training.split.scheme
        if scheme != "random" and self.schema_.time_column is None:
            raise ValueError(f"split.scheme {scheme} needs schema.time_column")
        return self

    @model_validator(mode="after")
    def _features_need_ials(self) -> Self:
        budget = (self.training.per_algorithm_trials or {}).get(FEATURE_AWARE)
        if self.features is not None and (FEATURE_AWARE not in self.training.algorithms or budget == 0):
            raise ValueError(f"features are learned by {FEATURE_AWARE} alone: list it in training.algorithms")
        return self

    def sources(self) -> dict[str, SourceSpec]:
        """Every `source:` block by its field path."""
        found = {"source": self.source}
        for side in ("item", "user"):
            block = getattr(self.features, side, None)
            if block is not None:
                found[f"features.{side}.source"] = block.source
        if self.item_metadata is not None:
            found["item_metadata.source"] = self.item_metadata.source
        return found
