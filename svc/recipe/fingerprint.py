"""The recipe as parsed, in the one form that its hash is taken over.

Defaults are left out and variables stay unexpanded, so that neither an optional field added to the schema
later nor another injected date changes a hash. Types are those of the schema: 60 and 60.0 are one number of
seconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from svc.recipe.schema import Recipe
from svc.recipe.serving_schema import Serving
from svc.recipe.source_options import BUILT_IN_OPTIONS, SourceSpec
from svc.recipe.variables import contains_reference, has_reference

HASH_LENGTH = 12
NOT_HASHED = frozenset(
    {
        *(("serving", name) for name in Serving.model_fields if name != "popular"),
        ("promotion",),
        ("output", "expires_after"),
        ("cleansing", "max_change"),
        ("output", "keep"),
        ("item_metadata", "filter_fields"),
        ("training", "report_diversity"),
        ("training", "max_search_age"),
    }
)
"""Places of the recipe that say what is done with a model, not what it is: neither the hash nor artifacts hold them."""

_Place = tuple[str, ...]
_FORMER_DEFAULTS = {"parallelism": 1}


def unexpanded(recipe: Recipe, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parsed recipe as JSON values.

    It is made from the validated `recipe` and the normalized `tree` before expansion.
    """
    return _model(recipe, tree)


def recipe_hash(canonical: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the sha256 of canonical JSON: keys sorted, no blanks, ASCII."""
    text = json.dumps(_with_former_defaults_left_out(canonical), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _with_former_defaults_left_out(canonical: Mapping[str, Any]) -> dict[str, Any]:
    """Return `canonical` without training values that were once the default.

    A recipe that writes such a value out keeps the hash that it had then.
    """
    given = canonical.get("training")
    if not isinstance(given, Mapping):
        return dict(canonical)
    training = {key: value for key, value in given.items() if _FORMER_DEFAULTS.get(key) != value}
    rest = {key: value for key, value in canonical.items() if key != "training"}
    return {**rest, "training": training} if training else rest


def _model(model: BaseModel, tree: Mapping[str, Any], path: _Place = ()) -> dict[str, Any]:
    result = {}
    for name, field in type(model).model_fields.items():
        key = field.alias or name
        if key not in tree or (*path, key) in NOT_HASHED:
            continue
        value = _value(getattr(model, name), tree[key], (*path, key))
        default = None if field.is_required() else _json(field.get_default(call_default_factory=True))
        if field.is_required() or value not in (default, {}):
            result[key] = value
    return result


def _value(value: Any, raw: Any, path: _Place) -> Any:
    if isinstance(value, SourceSpec) and isinstance(raw, Mapping):
        return _source(raw)
    if isinstance(value, BaseModel) and isinstance(raw, Mapping):
        return _model(value, raw, path)
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel) and len(value) == len(raw):
        return [_value(item, raw_item, path) for item, raw_item in zip(value, raw, strict=True)]
    return raw if has_reference(raw) or contains_reference(raw) else _json(value)


def _source(raw: Mapping[str, Any]) -> dict[str, Any]:
    options = BUILT_IN_OPTIONS.get(raw["type"])
    if options is None:
        return {key: _json(value) for key, value in raw.items()}
    fields = options.model_fields
    return {
        key: _json(value)
        for key, value in raw.items()
        if key not in fields
        or fields[key].is_required()
        or value != fields[key].get_default(call_default_factory=True)
        or isinstance(value, bool)
    }


def _json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    return value
