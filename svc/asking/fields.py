"""pydantic types of the values in requests, with their bounds and JSON Schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, TypeAdapter, WithJsonSchema
from pydantic_core import PydanticCustomError, from_json

from svc.errors import ValidationFailed
from svc.model.ranking.query import EventOfItem, Interaction, Shown
from svc.names import MAX_ID_CHARACTERS
from svc.recipe.filter_tree import Filter, FilterProblem, parse_filter
from svc.recipe.training_schema import MAX_DIMENSIONS

MAX_LIMIT = 1000
MAX_FEATURES = 64
MAX_FEATURE_ITEMS = 100
MAX_TEXT_CHARACTERS = 8192
MAX_LABELS = 1000
MAX_WEIGHT = 1000.0
MAX_DISLIKE_WEIGHT = 10.0
MAX_TIMES = 100
LEAST_FACTOR, MOST_FACTOR = 0.1, 10.0
Part = Literal["body", "query", "header"]
_SHOWN_CHARACTERS = 256

_SCALARS = [{"type": "string", "maxLength": MAX_TEXT_CHARACTERS}, {"type": "number"}, {"type": ["boolean", "null"]}]
_VALUE_SCHEMA = {
    "anyOf": [
        *_SCALARS,
        {"type": "array", "items": {"anyOf": _SCALARS}, "maxItems": MAX_LABELS},
        {"type": "array", "items": {"type": "number"}, "maxItems": MAX_DIMENSIONS},
    ]
}
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
        return value - value == 0  # False for an infinity and for NaN
    return value is None or isinstance(value, bool | int)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_scalar(value)


def _feature_value(value: object) -> object:
    values = value if isinstance(value, list) else (value,)
    if len(values) <= MAX_LABELS and all(map(_is_scalar, values)):
        return value
    # A vector may be longer than a list of labels. One number more than permitted tells that it is too long.
    if all(map(_is_number, values[: MAX_DIMENSIONS + 1])):
        if len(values) <= MAX_DIMENSIONS:
            return value
        raise PydanticCustomError(
            "feature_value", "A vector should have at most {dimensions} numbers", {"dimensions": MAX_DIMENSIONS}
        )
    raise PydanticCustomError(
        "feature_value",
        "Input should be a finite number, a boolean, null, a string of at most {text} characters,"
        " or a list of at most {labels} of these",
        {"text": MAX_TEXT_CHARACTERS, "labels": MAX_LABELS},
    )


class Kind(StrEnum):
    """The content of a field, declared with its type. Hints and the conversion of Python values read it."""

    ID = "id"
    IDS = "ids"
    ITEMS = "items"
    """Ids, or objects with an id and a number."""
    OBJECTS = "objects"
    FILTER = "filter"


def kinds_of(schema: type[BaseModel]) -> dict[str, Kind]:
    """Return the kinds of the fields that have one, by name."""
    kinds = ((name, part) for name, field in schema.model_fields.items() for part in field.metadata)
    return {name: part for name, part in kinds if isinstance(part, Kind)}


Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARACTERS)]
# Not a union of types: pydantic reports an error for each of its members.
FeatureValue = Annotated[Any, PlainValidator(_feature_value), WithJsonSchema(_VALUE_SCHEMA)]
Features = Annotated[dict[Id, FeatureValue], Field(max_length=MAX_FEATURES), WithJsonSchema(_FEATURES_SCHEMA)]
FeaturesByItem = Annotated[dict[Id, Features], Field(max_length=MAX_FEATURE_ITEMS)]
_one_item: TypeAdapter[dict[str, Any]] = TypeAdapter(Features)
_several_items: TypeAdapter[dict[str, Any]] = TypeAdapter(FeaturesByItem)


def _item_features(value: object) -> dict[str, Any]:
    """Validate `item_features`: features of several items by id if every value is an object, else of one item."""
    if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
        return _several_items.validate_python(value)
    return _one_item.validate_python(value)


ItemFeatures = Annotated[
    dict[str, Any], PlainValidator(_item_features), WithJsonSchema({"anyOf": [_FEATURES_SCHEMA, _ITEMS_SCHEMA]})
]


def whole(value: object) -> object:
    """Convert 10.0 to the integer 10, because JSON has only one type of number. Other values stay unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def within(least: int, most: int, description: str) -> tuple[Any, ...]:
    """Return the metadata of a field that is a whole number within these bounds."""
    return Field(ge=least, le=most, description=description), BeforeValidator(whole)


def listed(kind: Kind, most: int, description: str, **more: Any) -> tuple[Any, ...]:
    """Return the metadata of a field that is a list of up to `most` elements.

    The first invalid id or item ends the validation, because a list may have a thousand of them.
    """
    return kind, Field(max_length=most, fail_fast=kind is not Kind.OBJECTS, description=description, **more)


Place = Annotated[int, Field(ge=0, lt=MAX_LIMIT), BeforeValidator(whole)]


def _entry(value: object, key: str, number: TypeAdapter[Any]) -> tuple[Any, ...]:
    """Validate an element of a list of items: an id, or an object with an id and perhaps a number at `key`.

    Returns the id, and the number if there is one.
    """
    if isinstance(value, str):
        # Other texts may hold lone surrogates, which pydantic refuses.
        if 0 < len(value) <= MAX_ID_CHARACTERS and value.isascii():
            return (value,)  # the usual id: 0.2 instead of 0.7 µs by the TypeAdapter
        return (_id.validate_python(value),)
    if isinstance(value, int | float):
        return (_id.validate_python(value),)  # always raises, with pydantic's message that an id must be a string
    if isinstance(value, dict) and "item_id" in value and value.keys() <= {"item_id", key}:
        item_id = _id.validate_python(value["item_id"])
        return (item_id, number.validate_python(value[key])) if key in value else (item_id,)
    raise PydanticCustomError(
        "interaction",
        'Input should be an item id, or an object {"item_id": ..., "{key}": ...} without other keys',
        {"key": key},
    )


def _interaction(value: object) -> Interaction | EventOfItem:
    if not isinstance(value, dict) or "event" not in value:
        return Interaction(*_entry(value, "weight", _weight))
    others = {key: own for key, own in value.items() if key != "event"}
    return EventOfItem(*Interaction(*_entry(others, "weight", _weight)), _id.validate_python(value["event"]))


def _dislike(value: object) -> Interaction:
    return Interaction(*_entry(value, "weight", _dislike_weight))


def _shown(value: object) -> Shown:
    return Shown(*_entry(value, "times", _times))


_Weight = Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)]
_id: TypeAdapter[str] = TypeAdapter(Id, config=ConfigDict(strict=True))
_weight: TypeAdapter[float] = TypeAdapter(_Weight, config=ConfigDict(strict=True))
_DislikeWeight = Annotated[float, Field(ge=0, le=MAX_DISLIKE_WEIGHT, allow_inf_nan=False)]
_dislike_weight: TypeAdapter[float] = TypeAdapter(_DislikeWeight, config=ConfigDict(strict=True))
_Times = Annotated[int, Field(ge=1, le=MAX_TIMES), BeforeValidator(whole)]
_times: TypeAdapter[int] = TypeAdapter(_Times, config=ConfigDict(strict=True))


def _entry_schema(key: str, number: TypeAdapter[Any], **more: object) -> WithJsonSchema:
    """Return the JSON Schema of a list's element: an id, or an object with an id and a number that is 1 by default.

    `more` are the schemas of further keys.
    """
    described = {
        "type": "object",
        "required": ["item_id"],
        "properties": {"item_id": _SHORT_TEXT, key: {**number.json_schema(), "description": "Default: 1."}, **more},
        "additionalProperties": False,
    }
    return WithJsonSchema({"anyOf": [_SHORT_TEXT, described]})


_EVENT = {**_SHORT_TEXT, "description": "An event of the training data. It multiplies the weight by its own."}
HistoryItem = Annotated[Any, PlainValidator(_interaction), _entry_schema("weight", _weight, event=_EVENT)]
Dislike = Annotated[Any, PlainValidator(_dislike), _entry_schema("weight", _dislike_weight)]
ShownItem = Annotated[Any, PlainValidator(_shown), _entry_schema("times", _times)]
Tree = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": True},
                {"type": "null"},
            ],
            "examples": [{"all": [{"genres": {"any": ["Comedy"]}}, {"not": {"year": {"lt": 1990}}}]}],
        }
    ),
]


def invalid(path: Sequence[str | int], message: str, type: str, *, part: Part = "body") -> ValidationFailed:
    """Return the error for the invalid value at `path` in `part` of the request.

    `message` is for people, and `type`, such as "repeated_pin", for programs.
    """
    where = ".".join(map(str, path))
    text = f"{where}: {message}" if part == "body" else f"{part}: {where}: {message}"
    return ValidationFailed(text, errors=[{"loc": [part, *path], "msg": message, "type": type}])


def digits(value: object) -> object:
    """Convert the text of a short integer to the integer, because all values of a query string are texts.

    Other values stay unchanged, and pydantic refuses them.
    """
    # At most nine digits, because `int` raises an error of its own above 4,300 digits.
    return int(value) if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value) else value


class Asked(BaseModel):
    """An object in a request body, or the whole body."""

    # Only keys are in pydantic's cache of strings. Most values are ids, which rarely repeat, so a look-up in the cache
    # is slower than creating a string.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, cache_strings="keys")


class LimitAsked(Asked):
    """At most `max` items with the same value of a field."""

    field: Id
    max: Annotated[int, Field(ge=1, le=MAX_LIMIT), BeforeValidator(whole)]


class BoostAsked(Asked):
    """A factor for the scores of items that satisfy a filter."""

    filter: Annotated[Tree, Field(description="As `filter` of the request.")]
    factor: Annotated[float, Field(ge=LEAST_FACTOR, le=MOST_FACTOR)]


class PinAsked(Asked):
    """An item at a fixed position of the whole ranking, counted from 0."""

    item_id: Annotated[Id, Kind.ID]
    position: Place


def filter_at(kinds: Mapping[str, str], path: Sequence[str | int], part: Part, tree: object) -> Filter:
    """Return the canonical form of the filter `tree`. Raises ValidationFailed.

    `path` is the place of the filter in the request, for the error. `kinds` has the kind of each field that filters may
    use, by name.
    """
    try:
        return parse_filter(tree, kinds)
    except FilterProblem as problem:
        raise invalid([*path, *problem.place], problem.message, problem.type, part=part) from None


_FILTER_EXAMPLE = '{"genres": {"any": ["Drama"]}}'


def filter_in_query(value: object) -> object:
    """Parse the JSON of a filter in a query string. A value that is not a text is returned unchanged.

    Raises PydanticCustomError if the text is not JSON, or if an object repeats a key.
    """
    if not isinstance(value, str):
        return value
    try:
        # First, because it refuses deep nesting by a ValueError, json by a RecursionError. It accepts repeated keys.
        tree = from_json(value, allow_inf_nan=False)
        json.loads(value, object_pairs_hook=_with_distinct_keys, parse_int=len, parse_float=len)
    except ValueError as error:
        reason = {"reason": str(error)[:_SHOWN_CHARACTERS]}
        words = "a filter in a query string is JSON, as in {example}: {reason}"
        raise PydanticCustomError("filter_json", words, {**reason, "example": _FILTER_EXAMPLE}) from None
    return tree


def _with_distinct_keys(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("an object names one key twice")
