"""The request bodies of the four verbs: one set of models validates them and describes them in the OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from svc.errors import ValidationFailed
from svc.model.query import Prepared
from svc.serving.large_bodies import Longest, refused

if TYPE_CHECKING:
    from svc.model.model import Model

MAX_ID_CHARACTERS = 256
MAX_LIMIT = 1000
MAX_EXCLUDED = 1000
MAX_SEEDS = 100
MAX_BATCH = 256
MAX_FOUND = 20
MAX_FEATURES = 64
MAX_FEATURE_ITEMS = 100
MAX_TEXT_CHARACTERS = 8192
MAX_LABELS = 1000
MAX_ERRORS = 100
MAX_SHOWN_CHARACTERS = 256

LONGEST = Longest(
    items=max(MAX_EXCLUDED, MAX_LABELS),
    names=max(MAX_FEATURES, MAX_FEATURE_ITEMS),
    at_top={"requests": MAX_BATCH, "exclude_items": MAX_EXCLUDED, "seed_items": MAX_SEEDS},
)
_FEATURE_FIELDS = {"user_features", "item_features"}
_SCALAR = {"anyOf": [{"type": "string", "maxLength": MAX_TEXT_CHARACTERS}, {"type": ["number", "boolean", "null"]}]}
_VALUE_SCHEMA = {"anyOf": [*_SCALAR["anyOf"], {"type": "array", "items": _SCALAR, "maxItems": MAX_LABELS}]}
_SHORT_TEXT = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARACTERS}
_FEATURES_SCHEMA = {
    "type": "object",
    "maxProperties": MAX_FEATURES,
    "propertyNames": _SHORT_TEXT,
    "additionalProperties": _VALUE_SCHEMA,
}
_ITEMS_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": MAX_FEATURE_ITEMS,
    "propertyNames": _SHORT_TEXT,
    "additionalProperties": _FEATURES_SCHEMA,
}


def _is_scalar(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT_CHARACTERS
    if isinstance(value, float):
        return value - value == 0  # neither an infinity nor NaN
    return value is None or isinstance(value, bool | int)


def _feature_value(value: object) -> object:
    values = value if isinstance(value, list) else (value,)
    if len(values) <= MAX_LABELS and all(map(_is_scalar, values)):
        return value
    raise PydanticCustomError(
        "feature_value",
        "Input should be a finite number, a boolean, null, a string of at most {text} characters,"
        " or a list of at most {labels} of these",
        {"text": MAX_TEXT_CHARACTERS, "labels": MAX_LABELS},
    )


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
FeatureValue = Annotated[Any, PlainValidator(_feature_value), WithJsonSchema(_VALUE_SCHEMA)]
Features = Annotated[dict[Id, FeatureValue], Field(max_length=MAX_FEATURES), WithJsonSchema(_FEATURES_SCHEMA)]
FeaturesByItem = Annotated[dict[Id, Features], Field(max_length=MAX_FEATURE_ITEMS)]
_one_item: TypeAdapter[dict[str, Any]] = TypeAdapter(Features)
_several_items: TypeAdapter[dict[str, Any]] = TypeAdapter(FeaturesByItem)


def _item_features(value: object) -> dict[str, Any]:
    """Features of one item, or of several by id when every value is an object."""
    if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
        return _several_items.validate_python(value)
    return _one_item.validate_python(value)


ItemFeatures = Annotated[
    dict[str, Any], PlainValidator(_item_features), WithJsonSchema({"anyOf": [_FEATURES_SCHEMA, _ITEMS_SCHEMA]})
]


class Rejected(NamedTuple):
    """An element of a batch that is not valid, with the reasons."""

    error: ValidationFailed


def _whole(value: object) -> object:
    """JSON has one kind of number: 10.0 is the integer 10."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Request(BaseModel):
    """What the verbs share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Most items to return."), BeforeValidator(_whole)] = 10
    exclude_items: Annotated[
        list[Id], Field(max_length=MAX_EXCLUDED, description="Items that must not come back; unknown ones are ignored.")
    ] = []


def _needs_one_of(*names: str) -> dict[str, Any]:
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}


def _lacks(*names: str) -> ValidationFailed:
    message = f"give {' or '.join(names)}"
    return ValidationFailed(message, errors=[{"loc": ["body", names[0]], "msg": message, "type": "missing"}])


class RecommendRequest(Request):
    """Recommendations for one user: known by `user_id`, or described by `user_features`."""

    model_config = ConfigDict(
        json_schema_extra={
            **_needs_one_of("user_id", "user_features"),
            "examples": [{"user_id": "u42", "limit": 5}, {"user_features": {"country": "SE", "age": 34}}],
        }
    )

    user_id: Annotated[Id | None, Field(description="A user of the training data.")] = None
    user_features: Annotated[
        Features | None, Field(description="Stands in for a user whom training never saw; else not used.")
    ] = None
    include_seen: Annotated[bool, Field(description="Return items of the user's own history too.")] = False

    def prepare(self, model: Model) -> Prepared:
        """The query for `model`. Raises the ApiError that says why there is none."""
        if self.user_id is None and self.user_features is None:
            raise _lacks("user_id", "user_features")
        return model.prepare_recommend(
            user_id=self.user_id,
            user_features=self.user_features,
            limit=self.limit,
            exclude_items=self.exclude_items,
            include_seen=self.include_seen,
        )


class RelatedRequest(Request):
    """Items related to seeds: known ones by `seed_items`, unseen ones by `item_features`."""

    model_config = ConfigDict(
        json_schema_extra={
            **_needs_one_of("seed_items", "item_features"),
            "examples": [
                {"seed_items": ["b1", "b7"], "limit": 5},
                {"item_features": {"genres": "Action", "year": 1999}},
                {"item_features": {"new-1": {"genres": ["Action", "Drama"]}}, "user_features": {"country": "SE"}},
            ],
        }
    )

    seed_items: Annotated[
        list[Id] | None,
        Field(min_length=1, max_length=MAX_SEEDS, description="Items of the training data; they never come back."),
    ] = None
    item_features: Annotated[
        ItemFeatures | None, Field(description="Features of one unseen item, or of several by item id.")
    ] = None
    user_features: Annotated[Features | None, Field(description="A prior that is joined to the seeds.")] = None

    def prepare(self, model: Model) -> Prepared:
        """The query for `model`. Raises the ApiError that says why there is none."""
        if self.seed_items is None and self.item_features is None:
            raise _lacks("seed_items", "item_features")
        return model.prepare_related(
            seed_items=self.seed_items or (),
            item_features=self.item_features,
            user_features=self.user_features,
            limit=self.limit,
            exclude_items=self.exclude_items,
        )


AnyRequest = RecommendRequest | RelatedRequest


def _digits(value: object) -> object:
    """A query string has only text: plain decimal digits are a number, everything else stays what it is."""
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,4}", value) else value


class ItemSearch(BaseModel):
    """Items of the served model by id or metadata."""

    model_config = ConfigDict(strict=True, frozen=True)

    q: Annotated[
        str,
        Field(max_length=MAX_ID_CHARACTERS, description="Words that an item's id or metadata must all contain."),
    ] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_FOUND, description="Most items to return."), BeforeValidator(_digits)] = (
        MAX_FOUND
    )


def _by_itself(value: Any, validate: Callable[[Any], AnyRequest]) -> AnyRequest | Rejected:
    """Let an invalid element fail alone."""
    try:
        return validate(value)
    except ValidationError as error:
        return Rejected(failed(error, "request"))


def _described(example: dict[str, Any]) -> ConfigDict:
    """The schema of a batch says too that an invalid element does not make the batch invalid."""

    def extend(schema: dict[str, Any]) -> None:
        requests = schema["properties"]["requests"]
        requests["items"] = {"anyOf": [requests["items"], {"description": "Anything else fails by itself."}]}
        schema["examples"] = [example]

    return ConfigDict(json_schema_extra=extend)


_Elements = Field(min_length=1, max_length=MAX_BATCH)
_WithMetadata = Field(description="Join item metadata into the answers.")


class Batch(BaseModel):
    """What the batch verbs share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    include_metadata: Annotated[bool, _WithMetadata] = False


class RecommendBatch(Batch):
    """Up to 256 requests of `:recommend`, answered by one model, each failing by itself."""

    model_config = _described({"requests": [{"user_id": "u42"}, {"user_id": "u43"}], "include_metadata": True})

    requests: Annotated[list[Annotated[RecommendRequest, WrapValidator(_by_itself)]], _Elements]


class RelatedBatch(Batch):
    """Up to 256 requests of `:recommend-related`, answered by one model, each failing by itself."""

    model_config = _described({"requests": [{"seed_items": ["b1"]}, {"item_features": {"year": 1999}}]})

    requests: Annotated[list[Annotated[RelatedRequest, WrapValidator(_by_itself)]], _Elements]


AnyBatch = RecommendBatch | RelatedBatch
AnyBody = TypeVar("AnyBody", bound=BaseModel)


def elements(batch: AnyBatch) -> Sequence[AnyRequest | Rejected]:
    """The requests of a batch; those that are not valid stand as Rejected in their place."""
    return batch.requests


def parse(schema: type[AnyBody], body: bytes | Mapping[str, Any]) -> AnyBody:
    """The validated body, given as JSON or as what it says. Raises ValidationFailed, whatever bytes came."""
    try:
        return _parse_json(schema, body) if isinstance(body, bytes) else schema.model_validate(body)
    except ValidationError as error:
        raise failed(error, "request body") from None


def _parse_json(schema: type[AnyBody], body: bytes) -> AnyBody:
    parsed = schema.model_validate_json(body)
    if body.count(b":") != _keys(cast(AnyRequest | AnyBatch, parsed)):
        _refuse_repeated_keys(body)
    return parsed


def parse_query(schema: type[AnyBody], parameters: Mapping[str, str]) -> AnyBody:
    """The validated parameters of a query string; others are left alone. Raises ValidationFailed."""
    try:
        return schema.model_validate(parameters)
    except ValidationError as error:
        raise failed(error, "query", "query") from None


def failed(error: ValidationError, what: str, where: str = "body") -> ValidationFailed:
    """The errors of `error` without any value of the request; names that the client chose are cut."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_ERRORS]
    errors = [{"loc": [where, *map(_shown, item["loc"])], "msg": item["msg"], "type": item["type"]} for item in found]
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return ValidationFailed(f"{what}: {place + ': ' if place else ''}{first['msg']}", errors=errors)


def _shown(part: int | str) -> int | str:
    return part[:MAX_SHOWN_CHARACTERS] if isinstance(part, str) else part


def _keys(parsed: AnyRequest | AnyBatch | Rejected) -> int:
    """How many keys a valid body had if it repeated none; each stands before one colon."""
    if isinstance(parsed, Rejected):
        return 0
    given = parsed.model_fields_set
    if "requests" in given:
        return len(given) + sum(map(_keys, elements(cast(AnyBatch, parsed))))
    count = len(given)
    for name in given & _FEATURE_FIELDS:
        features: Mapping[str, Any] | None = getattr(parsed, name)
        if features:
            count += len(features) + sum(len(value) for value in features.values() if isinstance(value, dict))
    return count


def _refuse_repeated_keys(body: bytes) -> None:
    """Colons stand in strings too, so count exactly."""

    def check(pairs: list[tuple[str, object]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            raise refused("an object names one key twice", "duplicate_key")

    json.loads(body, object_pairs_hook=check, parse_int=len, parse_float=len)
