"""pydantic models of the answers, for the OpenAPI document only.

The server does not encode answers with these models. It joins lists of items from bytes that it has encoded when it
loaded the model.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from svc import errors
from svc.errors import ApiError

_CODES = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ApiError)}
ErrorCode = StrEnum("ErrorCode", {code: code for code in sorted(_CODES)})  # type: ignore[misc]
"""An enumeration of all error codes, so that generated clients have one type for them."""


def without_null(schema: dict[str, Any]) -> None:
    """Remove null from the types of optional keys in a JSON Schema, because answers leave such keys out."""
    for name in set(schema["properties"]) - set(schema.get("required", ())):
        field = schema["properties"][name]
        field.pop("default", None)
        kinds = [kind for kind in field.pop("anyOf", []) if kind != {"type": "null"}]
        field.update(kinds[0] if kinds else {})


class _Answer(BaseModel):
    # So that tests, which check all answers, find a field that the document lacks.
    model_config = ConfigDict(extra="forbid", json_schema_extra=without_null)


class _OpenAnswer(BaseModel):
    # For fields whose names the recipe or the artifact decides.
    model_config = ConfigDict(extra="allow", json_schema_extra=without_null)


class _Named(_Answer):
    name: str


Share = Annotated[
    float,
    Field(description="Share of all addends that raise the score: 0 to 1 in `because`, negative in `in_spite_of`."),
]


class ItemReason(_OpenAnswer):
    """An item that changed the score, with its metadata: an item of the user's history, a seed, or a disliked item."""

    item_id: str
    share: Share
    disliked: Annotated[Literal[True] | None, Field(description="Present if the request dislikes the item.")] = None


class FeatureReason(_Answer):
    """A feature of the user or of a described item, such as `genres=Comedy`."""

    feature: str
    share: Share


class PopularReason(_Answer):
    """The popularity of the recommended item as a reason for its place."""

    reason: Literal["popular"]
    share: Annotated[float | None, Field(description="Part of the score, absent if nothing else counts.")] = None


Reasons = list[ItemReason | FeatureReason | PopularReason] | None


class _Explained(BaseModel):
    """The reasons of an item, with `explain`."""

    because: Annotated[Reasons, Field(description="The strongest addends that raise the score, by size.")] = None
    in_spite_of: Annotated[Reasons, Field(description="The strongest addends that lower it. Absent without any.")] = (
        None
    )
    rest: Annotated[float | None, Field(description="1 less the shares in `because`.")] = None


class Item(_Explained, _OpenAnswer):
    """One item, with the metadata fields that the recipe declares. It has a score, a reason for its place, or both."""

    item_id: str
    score: Annotated[float | None, Field(description="Comparable within one answer.")] = None
    reason: Annotated[
        list[Literal["popular", "new", "pinned", "boosted", "rotated", "diversified"]] | None,
        Field(description="Reasons for the item's place other than its score."),
    ] = None


Profile = Literal["user", "user+history", "history", "features", "features+history", "popular"]


class IgnoredPin(_Answer):
    """A pin that is not shown, because its item is unknown, excluded by the request, seen by the user, or filtered."""

    item_id: str
    why: Literal["unknown", "excluded", "seen", "filtered"]


class Assignment(_Named):
    """The experiment of the recipe, and the arm that answered."""

    arm: str


class _Facts(_Answer):
    """The fields that answers of a recipe's verbs share."""

    experiment: Annotated[Assignment | None, Field(description="Present if the recipe has an experiment.")] = None
    ignored_features: Annotated[
        list[str] | None,
        Field(description="Features without effect: keys of no declared column, and column=value unknown to training."),
    ] = None


class _ItemFacts(_Facts):
    ignored_items: Annotated[
        list[str] | None, Field(description="Ids that the model does not know, and ids of pins that are not shown.")
    ] = None


class _Page(_ItemFacts):
    """The fields that answers with items share."""

    items: list[Item]
    ignored_pins: Annotated[list[IgnoredPin] | None, Field(description="Pins that are not shown, and why.")] = None
    profile: Annotated[Profile | None, Field(description="Information about the user that the ranking uses.")] = None
    fallback: Annotated[Literal["popular"] | None, Field(description="Present if the items are popular ones.")] = None


class _OfModel(_Answer):
    recipe: str
    model_version: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class _FromModel(_OfModel):
    request_id: str


class Recommendations(_FromModel, _Page):
    """Items, sorted by descending score."""


class PageRow(_Answer):
    """A row of a page. `why` tells why it has no items."""

    id: str
    items: list[Item]
    seed_item: Annotated[str | None, Field(description="The latest item, to which the row is related.")] = None
    label: Annotated[str | None, Field(description="The label of all items of the row.")] = None
    why: str | None = None


class _Arranged(_FromModel, _ItemFacts):
    profile: Annotated[
        Profile | Literal["none"], Field(description="Information about the user that the ranking uses.")
    ]


class Page(_Arranged):
    """Rows of items, in which no item stands twice. A row of labels becomes as many rows as there are labels."""

    rows: list[PageRow]


class RerankedItem(_Explained, _Answer):
    """An item of the list. `from` is its place there."""

    model_config = ConfigDict(populate_by_name=True)

    item_id: str
    score: Annotated[float | None, Field(description="The model's score, absent if it has none.")] = None
    from_: Annotated[int, Field(alias="from")]
    seen: Annotated[
        Literal[True] | None, Field(description="Present for items of the user's own history and hidden ones.")
    ] = None
    unavailable: Annotated[Literal[True] | None, Field(description="Present if the recipe does not permit it.")] = None


class Reranked(_Arranged):
    """The caller's list in its new order, with every item once."""

    items: list[RerankedItem]


class User(_Answer):
    """One user of the training data."""

    user_id: str
    score: Annotated[float, Field(description="Value of the requested order. Comparable within one answer.")]


class Users(_FromModel, _Facts):
    """Users, sorted by descending score."""

    users: list[User]


class Answered(_Page):
    """An element of a batch that was answered."""

    index: int
    status: Literal["ok"]
    model_version: Annotated[str | None, Field(description="Present if the recipe has an experiment.")] = None


class PopularItems(_FromModel):
    """Items, the most chosen first. With `serving.popular` in the recipe, recent choices count more."""

    items: list[Item]


class Failed(_Answer):
    """An element of a batch that failed."""

    index: int
    status: Literal["error"]
    code: ErrorCode
    detail: str


class BatchAnswer(_FromModel):
    """Results in the order of the requests."""

    results: list[Annotated[Answered | Failed, Field(discriminator="status")]]


class Status(_Answer):
    """The state of the server."""

    status: Literal["ok", "loading", "draining"]
    detail: Annotated[str | None, Field(description="Why the status is not ok.")] = None


class WorkersHealth(_Answer):
    """The numbers of worker processes. `failing` workers die at their start and are restarted after a pause."""

    total: int
    ready: int
    failing: int


class Health(_Answer):
    """The number of recipes and of loaded models."""

    status: Literal["ok", "degraded"]
    total: int
    loaded: int
    skipped: int | None = None
    workers: Annotated[WorkersHealth | None, Field(description="With `--workers`.")] = None


class ListHealth(_Answer):
    """The state of a list of available items. `age_seconds` is null until it has been read."""

    mode: Literal["allow", "deny"]
    age_seconds: float | None
    stale: bool


class NewItemsHealth(_Answer):
    """The state of a list of new items. `age_seconds` is null until it has been read."""

    age_seconds: float | None
    n_new: Annotated[int | None, Field(description="Items of the list that the model does not know.")]


class FewItems(_Answer):
    """How many of the model's items the table of `item_metadata` has, if these are fewer than half."""

    n_found: int
    n_items: int


class RecipeHealth(_Answer):
    """The state of one recipe, or of one skipped recipe file."""

    loaded: bool
    model_version: str | None = None
    best_class: str | None = None
    age_seconds: Annotated[int | None, Field(description="Seconds since the training of the model.")] = None
    error: str | None = None
    last_load_error: str | None = None
    skipped: bool | None = None
    metadata_few_items: FewItems | None = None
    availability: ListHealth | None = None
    new_items: NewItemsHealth | None = None


class HealthDetails(_Answer):
    """The state of each recipe by name, and of each skipped file by file stem."""

    status: Literal["ok", "degraded"]
    recipes: dict[str, RecipeHealth]


Verb = Literal[
    "recommend", "recommend-related", "recommend-users", "page", "rerank", "batch-recommend", "batch-recommend-related"
]
Kind = Annotated[Literal["user-item"], Field(description="The model relates users and items, as all models do.")]
LoadedAt = Annotated[
    str,
    Field(
        description="When this server began to serve the model. Other servers may differ.",
        json_schema_extra={"format": "date-time"},
    ),
]
SupportedVerbs = Annotated[list[Verb], Field(description="Verbs that the model can answer.")]
ScoreWithOrder = Annotated[
    float | None, Field(description="Present with a learned order: the score with it. `best_score` is without it.")
]


class RecipeSummary(_Named):
    """One recipe. Without a model it has only `name` and `loaded`."""

    loaded: bool
    kind: Kind | None = None
    model_version: str | None = None
    best_class: str | None = None
    loaded_at: LoadedAt | None = None
    supported_verbs: SupportedVerbs | None = None


class RecipeList(_Answer):
    """All recipes, by name."""

    recipes: list[RecipeSummary]


class LabelColumn(_Named):
    """A feature with one or several of the known texts. `values` has the first texts that training kept."""

    kind: Literal["categorical", "multi_label"]
    n_values: Annotated[int, Field(description="Number of values that training kept. Others have no effect.")]
    values: list[str]


class NumericalColumn(_Named):
    """A feature that is a number, with the range and the mean of the training data."""

    kind: Literal["numerical"]
    low: float | None = None
    high: float | None = None
    mean: float | None = None


class TextColumn(_Named):
    """A feature that is a text."""

    kind: Literal["text"]
    n_words: Annotated[int, Field(description="Number of words that training kept. Others have no effect.")]


class VectorColumn(_Named):
    """A feature that is a list of numbers, or a text with `delimiter` between them."""

    kind: Literal["vector"]
    dimensions: int
    delimiter: str


FeatureColumn = Annotated[LabelColumn | NumericalColumn | TextColumn | VectorColumn, Field(discriminator="kind")]


class LabelFilter(_Named):
    """A field of text. `values` are the most frequent values, up to 200."""

    kind: Literal["categorical", "multi_label"]
    values: list[str]


class NumberFilter(_Named):
    """A field of numbers, with its range, or null if no item has a number."""

    kind: Literal["numerical"]
    min: float | None
    max: float | None


class FeatureColumns(_Answer):
    """The columns of `user_features` and of `item_features`."""

    user: list[FeatureColumn]
    item: list[FeatureColumn]


class ItemDescription(_OpenAnswer):
    """One item, with the metadata fields that the recipe declares."""

    item_id: str


class FoundItems(_OfModel):
    """The item with the searched id, then other items, the most chosen first."""

    items: list[ItemDescription]
    more: Annotated[bool, Field(description="True if the search ended before the last item.")]


class Somebody(_OfModel):
    """One user of the training data, with the latest items of their history, or the most chosen without an order."""

    user_id: str
    n_history: Annotated[int, Field(description="Number of items in the whole history.")]
    history: list[ItemDescription]
    oldest_first: Annotated[
        Literal[True] | None,
        Field(description="Present if the model knows the order of histories. The history then has that order."),
    ] = None


class Refitted(BaseModel):
    """The version whose search a refit reused."""

    sha8: str
    searched_at: str


class Version(BaseModel):
    """One version of a recipe's model. Facts that the log of versions lacks are null."""

    model_config = ConfigDict(json_schema_extra=without_null)

    sha8: str
    trained_at: str | None
    best_class: str | None
    best_score: float | None
    rank_ms: Annotated[float | None, Field(description="Milliseconds of a single ranking on the training host.")]
    decision: str | None
    live: Annotated[bool, Field(description="True if servers load this version.")]
    held: Annotated[bool, Field(description="True if no training may replace it as the live version.")]
    reused_from: Annotated[Refitted | None, Field(description="Present for a refit.")] = None
    score_with_order: ScoreWithOrder = None


class RecipeVersions(_Answer):
    """Up to 100 versions of a recipe, newest first. The list is empty if the recipe's artifacts have no versions."""

    recipe: str
    versioning: str
    versions: list[Version]


class DataStats(_OpenAnswer):
    """Counts of the training data, and of the rows that each rule of cleansing dropped."""

    n_rows: int
    n_users: int
    n_items: int
    n_interactions: int
    density: float
    n_heldout_interactions: int


class Event(_OpenAnswer):
    """An event of the training data: its weight and rows, and whether it hides its item and was judged."""

    event: str
    weight: float
    seen: bool
    target: bool
    n_rows: int


class Recipe(_OpenAnswer):
    """The served model, from the header of its artifact."""

    name: str
    loaded: bool
    kind: Kind
    model_version: str
    loaded_at: LoadedAt
    supported_verbs: SupportedVerbs
    algorithms: list[str]
    metric: str
    cutoff: int
    best_class: Annotated[str, Field(description="The class of the model.")]
    best_params: Annotated[dict[str, Any] | None, Field(description="Parameters that the search chose.")] = None
    best_score: Annotated[float | None, Field(description="`metric` at `cutoff` on the held-out interactions.")] = None
    score_with_order: ScoreWithOrder = None
    trained_at: Annotated[str | None, Field(json_schema_extra={"format": "date-time"})] = None
    recipe_hash: str | None = None
    data_stats: DataStats | None = None
    evaluation: Annotated[
        dict[str, Any] | None, Field(description="Metrics on the held-out interactions by name, with their intervals.")
    ] = None
    features: Annotated[dict[str, Any] | None, Field(description="Statistics of the feature tables.")] = None
    parts: Annotated[list[dict[str, Any]] | None, Field(description="The models of a blend.")] = None
    feature_columns: Annotated[
        FeatureColumns | None, Field(description="Present if the model was trained with features.")
    ] = None
    filter_fields: Annotated[
        list[Annotated[LabelFilter | NumberFilter, Field(discriminator="kind")]] | None,
        Field(description="Fields for `filter`, if the recipe declares any."),
    ] = None
    fallback: Annotated[
        Literal["popular"] | None, Field(description="The recipe's answer for users without any information.")
    ] = None
    popular: Annotated[
        dict[str, str] | None, Field(description="Weights of choices by age in training: half_life and window.")
    ] = None
    events: Annotated[list[Event] | None, Field(description="Events of the training data with a weight.")] = None


class ErrorItem(_Answer):
    """One error in a request. The error never contains the invalid value."""

    loc: list[str | int]
    msg: str
    type: str


class Error(_Answer):
    """The body of every error."""

    request_id: str
    detail: str
    code: ErrorCode
    errors: list[ErrorItem] | None = None
