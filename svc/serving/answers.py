"""The answers as the OpenAPI document describes them. Answers are made of prebuilt bytes, not of these models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def _without_null(schema: dict[str, Any]) -> None:
    """A key that may be missing is never null."""
    for name in set(schema["properties"]) - set(schema.get("required", ())):
        field = schema["properties"][name]
        field.pop("default", None)
        kinds = [kind for kind in field.pop("anyOf", []) if kind != {"type": "null"}]
        field.update(kinds[0] if kinds else {})


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=_without_null)


class Item(BaseModel):
    """One item, with the metadata fields that the recipe declares."""

    model_config = ConfigDict(extra="allow")

    item_id: str
    score: Annotated[float, Field(description="Comparable within one answer.")]


class _FromModel(_Answer):
    request_id: str
    recipe: str
    model_version: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class Recommendations(_FromModel):
    """Items by falling score."""

    items: list[Item]
    ignored_features: Annotated[list[str] | None, Field(description="Keys that name no declared column.")] = None


class Answered(_Answer):
    """An element of a batch that was answered."""

    index: int
    status: Literal["ok"]
    items: list[Item]
    ignored_features: list[str] | None = None


class Failed(_Answer):
    """An element of a batch that failed."""

    index: int
    status: Literal["error"]
    code: str
    detail: str


class BatchAnswer(_FromModel):
    """Results in the order of the requests."""

    results: list[Answered | Failed]


class Status(_Answer):
    """One word."""

    status: str


class Health(_Answer):
    """Count-based health."""

    status: Literal["ok", "degraded"]
    total: int
    loaded: int
    skipped: int | None = None


class RecipeHealth(_Answer):
    """The state of one recipe or of one recipe file that is skipped."""

    loaded: bool
    best_class: str | None = None
    error: str | None = None
    last_load_error: str | None = None
    skipped: bool | None = None


class HealthDetails(_Answer):
    """The state of each recipe, by name; of a skipped file, by file stem."""

    status: Literal["ok", "degraded"]
    recipes: dict[str, RecipeHealth]


class RecipeSummary(_Answer):
    """One recipe of the list."""

    name: str
    loaded: bool
    model_version: str | None = None
    best_class: str | None = None


class RecipeList(_Answer):
    """All recipes, by name."""

    recipes: list[RecipeSummary]


class TextColumn(_Answer):
    """A feature that is one of some texts, or several of them. `values` are the first that training kept."""

    name: str
    kind: Literal["categorical", "multi_label"]
    n_values: Annotated[int, Field(description="How many values training kept; others say nothing.")]
    values: list[str]


class NumericalColumn(_Answer):
    """A feature that is a number, with the range and the mean of the training data."""

    name: str
    kind: Literal["numerical"]
    low: float | None = None
    high: float | None = None
    mean: float | None = None


class FeatureColumns(_Answer):
    """What `user_features` and `item_features` may say, by side."""

    user: list[TextColumn | NumericalColumn]
    item: list[TextColumn | NumericalColumn]


class ItemDescription(BaseModel):
    """One item, with the metadata fields that the recipe declares."""

    model_config = ConfigDict(extra="allow")

    item_id: str


class FoundItems(_Answer):
    """An item of exactly the searched id first, then others in training order."""

    recipe: str
    model_version: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    items: list[ItemDescription]
    more: Annotated[bool, Field(description="True when the search ended before the last item.")]


class Recipe(BaseModel):
    """What the served model was built from, out of the artifact's header."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_without_null)

    name: str
    loaded: bool
    model_version: str
    algorithms: list[str]
    metric: str
    cutoff: int
    feature_columns: Annotated[
        FeatureColumns | None, Field(description="Only for a model that was trained with features.")
    ] = None


class ErrorItem(_Answer):
    """One thing that is wrong with a request. Values are never repeated."""

    loc: list[str | int]
    msg: str
    type: str


class Error(_Answer):
    """The body of every error."""

    request_id: str
    detail: str
    code: str
    errors: list[ErrorItem] | None = None


ANSWERS: tuple[type[BaseModel], ...] = (
    Recommendations,
    BatchAnswer,
    Status,
    Health,
    HealthDetails,
    RecipeList,
    Recipe,
    FoundItems,
    Error,
)
DETAILS = {
    "AMBIGUOUS_LENGTH": "the request has both Content-Length and Transfer-Encoding",
    "HOST_NOT_ALLOWED": "this server does not answer for the host of the request; see SVC_ALLOWED_HOSTS",
    "FEATURES_NOT_SUPPORTED": "user_features: the model was not trained with features of that side",
    "FEATURE_VALUE_UNUSABLE": "feature 'year': the value is not a finite number",
    "MISSING_API_KEY": "this endpoint needs the header X-API-Key",
    "INVALID_API_KEY": "the value of X-API-Key is not a valid key",
    "RECIPE_NOT_FOUND": "no recipe of this name is served here",
    "UNKNOWN_USER": "user_id is not in the training data; user_features can stand in for it",
    "UNKNOWN_SEED_ITEMS": "none of the seed items is in the training data; item_features can stand in for them",
    "NO_CANDIDATES": "no item is left to recommend after exclusions",
    "REQUEST_TIMEOUT": "the body did not arrive within 30 seconds",
    "PAYLOAD_TOO_LARGE": "the body is larger than 134217728 bytes",
    "VALIDATION_ERROR": "request body: limit: Input should be a valid integer",
    "INTERNAL_ERROR": "the server failed to answer; its log has the request id",
    "RECIPE_UNAVAILABLE": "the recipe has no model now; /v1/health/details says why",
}
