"""The training block of a recipe and the features of users and items.

Two options weigh interactions by time. `time_decay` uses their age, and `recency` uses their order in a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from svc.recipe.algorithms import (
    BLEND,
    BLENDED,
    DEFAULT_ALGORITHMS,
    MOST_RECENCY,
    TAKES_TIMES,
    TOP_POP,
    TRANSITIONS,
    canonical_name,
    check_search_space,
)
from svc.recipe.filter_tree import Kind
from svc.recipe.source_options import (
    Block,
    Name,
    Number,
    Positive,
    SourceSpec,
    Whole,
    bare_off,
    each_once,
    no_word,
    unique_by_name,
    unique_names,
)
from svc.recipe.variables import contains_reference

Recency = Annotated[
    Literal["search", "off"] | Annotated[Number, Field(ge=0, le=MOST_RECENCY)], BeforeValidator(bare_off)
]

# A year has 365.25 days.
_SECONDS_OF_UNITS: Final = {"min": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_557_600}
AGE_PATTERN: Final = rf"^[1-9][0-9]{{0,5}}({'|'.join(_SECONDS_OF_UNITS)})$"
Age = Annotated[str, Field(pattern=AGE_PATTERN)]
HALF_LIFE_PATTERN = r"^(none|[0-9]{1,6}(\.[0-9]{1,6})?[hdwy])$"
Metric = Annotated[
    Literal["ndcg", "map", "recall", "hit"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
Scheme = Literal["random", "time_user", "time_global", "leave_one_out"]
Delimiter = Annotated[str, Field(min_length=1, max_length=8), BeforeValidator(no_word)]
# numpy's RandomState, which some algorithms take, accepts no larger seed.
Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
Seconds = Annotated[Number, Field(gt=0)]
Algorithm = Annotated[str, AfterValidator(canonical_name)]
Ranker = Annotated[Literal["search", "off"], BeforeValidator(bare_off)]
Searched = bool | Whole | Number | str
FeatureKind = Literal[Kind, "text", "vector"]
MAX_WORDS = 32_768
MAX_DIMENSIONS = 4096
_FIELDS_OF_KINDS = {
    **dict.fromkeys(("max_words", "min_items", "analyzer"), ("text",)),
    "dimensions": ("vector",),
    "delimiter": ("multi_label", "vector"),
    "min_frequency": ("categorical", "multi_label", "numerical"),
}
"""The kinds of feature columns that each field is for."""
_IGNORED_FIELDS = ("delimiter", "min_frequency")
"""Fields that all kinds except `text` and `vector` accept, even if they have no effect."""


def seconds(duration: str | None) -> float | None:
    """Return the length of `90min`, `12h`, `7d`, `4w` or `1.5y` in seconds, or None for None and `none`.

    The result is an int if the number has no point, so ages compare exactly.
    """
    if duration is None or duration == "none":
        return None
    # Patterns have already checked the number and its unit.
    number = duration.rstrip("abcdefghijklmnopqrstuvwxyz")
    return (int(number) if number.isdigit() else float(number)) * _SECONDS_OF_UNITS[duration.removeprefix(number)]


def _has_unit(half_life: object) -> object:
    if isinstance(half_life, int | float) and not isinstance(half_life, bool):
        raise ValueError(f"has no unit; write {half_life}d for days; the units are h, d, w and y")  # noqa: TRY004
    return half_life


def _above_zero(half_life: str) -> str:
    if seconds(half_life) == 0:
        raise ValueError("is a half-life of 0; write none for no decay")
    return half_life


HalfLife = Annotated[str, Field(pattern=HALF_LIFE_PATTERN), BeforeValidator(_has_unit), AfterValidator(_above_zero)]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | int | float) else value


class TimeDecay(Block):
    """An interaction's weight halves with each half-life by which it precedes the last event."""

    half_life: Annotated[
        tuple[HalfLife, ...],
        Field(min_length=1),
        # The JSON Schema would otherwise show the list alone, and editors would refuse a single half-life.
        BeforeValidator(_as_list, json_schema_input_type=HalfLife | tuple[HalfLife, ...]),
        AfterValidator(unique_names),
    ] = Field(description="Such as 12h, 30d, 4w, 1.5y, or none; of several the best is searched.")
    reference: Literal["last_event"] = "last_event"


def check_recency(recency: Literal["search", "off"] | float, *, time_column: object, scheme: str) -> None:
    """Raise ValueError, with the reason, if the time column or the split does not permit the recipe's recency."""
    if recency == "off":
        return
    if time_column is None:
        raise ValueError("training.recency needs schema.time_column: without times, histories have no order")
    if recency == "search" and scheme == "random":
        raise ValueError(
            "training.recency is `search`, which needs a split.scheme by time, such as leave_one_out. The scheme "
            "`random` holds out items from anywhere in a history, so it cannot show whether order matters"
        )


def with_default_split(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tree`, a normalized recipe, with the scheme `time_user` if it has a time column but no scheme.

    `time_user` shows whether order matters, which `random`, the default without a time column, cannot. The scheme is
    written into the tree, so that the recipe's hash differs from the hash with an explicit `random`.
    """
    schema, training = tree.get("schema"), or_empty(tree.get("training"))
    if not isinstance(schema, Mapping) or schema.get("time_column") is None or not isinstance(training, Mapping):
        return dict(tree)
    split = or_empty(training.get("split"))
    if not isinstance(split, Mapping) or "scheme" in split:
        return dict(tree)
    return {**tree, "training": {**training, "split": {**split, "scheme": "time_user"}}}


def or_empty(block: Any) -> Any:
    """Return a block of an unvalidated recipe, or an empty one if it is null or absent."""
    return {} if block is None else block


def with_default_algorithms(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the unvalidated `recipe`, which lists Transitions and the default algorithms if order counts.

    A recipe with algorithms is unchanged.
    """
    training, schema = recipe.get("training") or {}, recipe.get("schema") or {}
    # This runs before validation, so a block may be anything.
    if not isinstance(training, Mapping) or not isinstance(schema, Mapping) or "algorithms" in training:
        return recipe
    if not _uses_order(training, schema):
        return recipe
    return {**recipe, "training": {**training, "algorithms": (*DEFAULT_ALGORITHMS, TRANSITIONS)}}


def default_algorithms(tree: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the algorithms that a valid recipe, normalized and before expansion, would have without a list.

    Return None if they depend on a variable, because a server does not know its value.
    """
    training = tree.get("training") or {}
    if not isinstance(training, Mapping) or contains_reference([training.get("recency"), training.get("split")]):
        return None
    return (*DEFAULT_ALGORITHMS, TRANSITIONS) if _uses_order(training, tree["schema"]) else DEFAULT_ALGORITHMS


def _uses_order(training: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    """Return whether a recipe with these blocks, which need not be valid, searches recency or fixes one above 0."""
    split = training.get("split") or {}
    scheme = split.get("scheme", "random") if isinstance(split, Mapping) else "random"
    wanted = training.get("recency", "search")
    time_column = schema.get("time_column")
    return time_column is not None and recency_in_effect(wanted, time_column=time_column, scheme=scheme) != 0


def recency_in_effect(
    wanted: Literal["search", "off"] | float, *, time_column: object, scheme: str
) -> Literal["search"] | float:
    """Return "search", or the one recency of all models: 0 if it is off, or if it cannot be searched."""
    if isinstance(wanted, float | int):
        return float(wanted)
    can_be_judged = time_column is not None and scheme != "random"
    return "search" if wanted == "search" and can_be_judged else 0.0


class Split(Block):
    scheme: Scheme = Field(
        default="random",
        description="Default with a schema.time_column: time_user, else random. The time schemes need that column. "
        "leave_one_out holds out the latest item of each user.",
    )
    heldout_ratio: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    test_user_ratio: Annotated[Number, Field(gt=0, le=1)] = 1.0
    test: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="Share of the users with held-out items. Only the winner is scored on them, once.",
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
    target: Annotated[tuple[str, ...], Field(min_length=1), AfterValidator(each_once)] | None = Field(
        default=None, description="Events that are held out and judged. Default: all with a weight."
    )
    ranker: Ranker = Field(
        default="off",
        description="search: learn the order of the first page from all features of items. It is used only if it is "
        "better than the winner by more than chance.",
    )
    sample_users: Positive | None = Field(
        default=None, description="Most users to train on, drawn by the seed. The others get exact vectors afterwards."
    )
    weighted_metric: bool = Field(
        default=False, description="Held-out interactions count by their weight; without it all count alike."
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
        """Return whether `time_decay` or an algorithm makes a model depend on the times of interactions.

        `Recipe.trains_on_times` also considers the other settings that need times.
        """
        return self.time_decay is not None or bool({*TAKES_TIMES} & {*self.algorithms})

    @field_validator("algorithms")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        listed = each_once(names)
        parts = (*BLENDED, TOP_POP)
        if BLEND in listed and len(set(listed) & set(parts)) < 2:
            raise ValueError(f"lists {BLEND}, which needs two or more of {', '.join(parts)} beside it")
        return listed

    @field_validator("per_algorithm_trials")
    @classmethod
    def _only_listed(cls, trials: dict[str, int] | None, info: ValidationInfo) -> dict[str, int] | None:
        # An invalid list of algorithms is absent from `data`, and has an error of its own.
        listed = info.data.get("algorithms", ())
        for name in trials or {}:
            if listed and name not in listed:
                raise ValueError(f"names {name}, which `algorithms` does not list")
        if (trials or {}).get(BLEND):
            raise ValueError(f"gives {BLEND} trials, which it does not have: it is made of trials of the others")
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


class FeatureColumn(Block):
    name: Name
    kind: FeatureKind = Field(description="May be spelled `encoding`.")
    delimiter: Delimiter = Field(
        default="|", description="Between labels of multi_label, and between the numbers of a vector that is a text."
    )
    min_frequency: Positive = Field(default=1, description="Rarer values are left out of the vocabulary.")
    max_words: Annotated[Whole, Field(ge=1, le=MAX_WORDS)] = Field(
        default=8192, description="Of a text: most words to keep, those in most items."
    )
    min_items: Positive = Field(default=2, description="Of a text: words of fewer items are left out.")
    analyzer: Literal["word", "char"] = Field(
        default="word",
        description="Of a text: word takes runs of letters and digits, char runs of 3 to 5 characters, for languages "
        "without blanks.",
    )
    dimensions: Annotated[Whole, Field(ge=1, le=MAX_DIMENSIONS)] | None = Field(
        default=None, description="Of a vector: how many numbers it has."
    )

    @model_validator(mode="after")
    def _fields_of_its_kind(self) -> Self:
        if self.kind == "vector" and self.dimensions is None:
            raise ValueError("kind vector needs `dimensions`, how many numbers each vector has")
        for field, kinds in _FIELDS_OF_KINDS.items():
            is_ignored = field in _IGNORED_FIELDS and self.kind not in ("text", "vector")
            if field in self.model_fields_set and self.kind not in kinds and not is_ignored:
                instead = "; a text has min_items" if (field, self.kind) == ("min_frequency", "text") else ""
                raise ValueError(f"{field} is for kind {' and '.join(kinds)}, not for {self.kind}{instead}")
        return self


class FeatureSide(Block):
    """The feature table of one side, users or items."""

    source: SourceSpec
    id_column: Name
    columns: Annotated[tuple[FeatureColumn, ...], Field(min_length=1), AfterValidator(unique_by_name)]

    @model_validator(mode="after")
    def _ids_are_no_feature(self) -> Self:
        if self.id_column in [column.name for column in self.columns]:
            raise ValueError(
                f"columns names {self.id_column!r}, which is the id_column: ids tell nothing of new users and items"
            )
        return self


class Features(Block):
    item: FeatureSide | None = None
    user: FeatureSide | None = None

    @model_validator(mode="after")
    def _some_side(self) -> Self:
        if self.item is None and self.user is None:
            raise ValueError("needs `item`, `user` or both; leave the block out for a recipe without features")
        return self
