"""The canonical form of a parsed recipe, and its hash.

Defaults are left out, so that a new optional field in the schema changes no hash. Variables stay unexpanded, so that
another date in a variable changes no hash. Values have the types of the schema, so that 60 and 60.0 seconds have one
hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from svc.recipe.filter_tree import RowFilter
from svc.recipe.serving_schema import Serving
from svc.recipe.source_options import BUILT_IN_OPTIONS, SourceSpec
from svc.recipe.variables import contains_reference

HASH_LENGTH = 12
NOT_HASHED = frozenset(
    {
        *(("serving", name) for name in Serving.model_fields if name != "popular"),
        ("promotion",),
        ("output", "expires_after"),
        ("cleansing", "max_change"),
        ("cleansing", "forget"),
        ("output", "keep"),
        ("item_metadata", "filter_fields"),
        ("training", "max_search_age"),
    }
)
"""Fields that do not change the model, so they are not in the hash or in artifacts."""

_Place = tuple[str, ...]
_FORMER_DEFAULTS = {"parallelism": 1}


def recipe_hash(canonical: Mapping[str, Any]) -> str:
    """Return the first 12 hex digits of the sha256 of canonical JSON: keys sorted, no blanks, ASCII."""
    text = json.dumps(_without_former_defaults(canonical), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


def _without_former_defaults(canonical: Mapping[str, Any]) -> dict[str, Any]:
    """Return `canonical` without training values that are former defaults.

    A recipe with such a value keeps the hash that it had when the value was the default.
    """
    block = canonical.get("training")
    if not isinstance(block, Mapping):
        return dict(canonical)
    training = {key: value for key, value in block.items() if _FORMER_DEFAULTS.get(key) != value}
    rest = {key: value for key, value in canonical.items() if key != "training"}
    return {**rest, "training": training} if training else rest


def strip_defaults(
    model: BaseModel, tree: Mapping[str, Any], defaults: Mapping[_Place, Any], path: _Place = ()
) -> dict[str, Any]:
    """Return the canonical form of a recipe as JSON values, without defaults and without fields in NOT_HASHED.

    `model` is the recipe, or its block at `path`. `tree` is its normalized tree before expansion. `defaults` are those
    that depend on other fields of the recipe.
    """
    result = {}
    for name, field in type(model).model_fields.items():
        key = field.alias or name
        key_path = (*path, key)
        if key not in tree or key_path in NOT_HASHED:
            continue
        value = _value(getattr(model, name), tree[key], defaults, key_path)
        own = None if field.is_required() else field.get_default(call_default_factory=True)
        # A block of defaults alone has become {}, which means the same as no block.
        if field.is_required() or value not in (_json(defaults.get(key_path, own)), {}):
            result[key] = value
    return result


def _value(value: Any, raw: Any, defaults: Mapping[_Place, Any], path: _Place) -> Any:
    if isinstance(value, SourceSpec) and isinstance(raw, Mapping):
        return _source(raw)
    if isinstance(value, BaseModel) and isinstance(raw, Mapping):
        return strip_defaults(value, raw, defaults, path)
    if isinstance(value, tuple) and value and isinstance(value[0], BaseModel) and len(value) == len(raw):
        return [_value(item, raw_item, defaults, path) for item, raw_item in zip(value, raw, strict=True)]
    # The reference and not its value, which may differ at each run.
    return raw if contains_reference(raw) else _json(value)


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
        or isinstance(value, bool)  # True == 1 in Python, so a Boolean could pass for the default of a number
    }


def _json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, RowFilter):
        return _json(value.written)
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_json(item) for item in value]
    return value
