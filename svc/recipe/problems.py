"""Validation errors in words: the file, the field, what was found and what is allowed.

What was found is shown as the file has it, so that the value of a variable never appears.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from svc.logs import redact_text
from svc.recipe.schema import InteractionSchema, Recipe
from svc.recipe.variables import has_reference

Path = tuple[int | str, ...]
_MAX_SHOWN = 80
_MAX_LINES = 20
_COLUMN = "_column"
_VALUED = re.compile("weight|rating|score|strength|value", re.IGNORECASE)
_PLAIN_WORDS = {
    "string_type": "must be text (in quotes if it looks like a number, yes or no)",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
}


def explain(error: ValidationError, tree: Any, model: type[BaseModel], show: Callable[[Path], str]) -> str:
    """One line for each problem in `error`; `tree` is what the file holds, `show` names a location."""
    details = error.errors(include_url=False, include_context=True, include_input=False)
    lines = [_line(item, tree, model, show) for item in details[:_MAX_LINES]]
    if len(details) > _MAX_LINES:
        lines.append(f"... and {len(details) - _MAX_LINES} more")
    return "\n".join(lines)


def field_path(loc: Path) -> str:
    """`("features", "item", "columns", 0)` as `features.item.columns[0]`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            text += f".{part}" if text else part
    return text


def value_at(tree: Any, loc: Path) -> Any:
    """The value of `tree` at `loc`; as deep as `tree` goes."""
    for part in loc:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return tree
    return tree


def nearest(key: str, allowed: Iterable[str]) -> str | None:
    """The name in `allowed` that `key` most likely meant."""
    names = {name.lower(): name for name in allowed}
    ending = key.lower().endswith(_COLUMN)  # what all of them share makes no two of them alike
    if ending:
        names = {name.removesuffix(_COLUMN): real for name, real in names.items() if name.endswith(_COLUMN)}
    found = difflib.get_close_matches(
        key.lower().removesuffix(_COLUMN) if ending else key.lower(), names, n=1, cutoff=0.6
    )
    return names[found[0]] if found else None


def shown(value: Any) -> str:
    """`value` as a person would name it, short and without credentials."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing (null)"
    text = redact_text(str(value).lower() if isinstance(value, bool) else str(value))
    text = text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
    return f"the text {text!r}" if isinstance(value, str) else text


def _look_alikes(text: object) -> str:
    """Names the first letters that are not ASCII: some look the same and are others."""
    foreign = dict.fromkeys(letter for letter in text if ord(letter) > 0x7F) if isinstance(text, str) else {}
    names = [unicodedata.name(letter, f"U+{ord(letter):04X}") for letter in list(foreign)[:3]]
    return f" (with {', '.join(names)})" if names else ""


def _line(item: ErrorDetails, tree: Any, model: type[BaseModel], show: Callable[[Path], str]) -> str:
    loc, kind = item["loc"], item["type"]
    where = show(loc)
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_look_alikes(loc[-1])}; {_unknown_key(str(loc[-1]), _model_at(model, loc[:-1]))}"
    if kind == "missing":
        return f"{where}: is missing"
    value = value_at(tree, loc)
    found = f"set through {value}" if has_reference(value) and len(value) <= _MAX_SHOWN else f"found {shown(value)}"
    if kind == "value_error":
        reason = str(item["ctx"]["error"])
        told = reason if isinstance(value, Mapping) or loc == () else f"{found}, which {reason}"
        return f"{where}: {told}".removeprefix(": ")
    foreign = _look_alikes(value) if kind == "string_pattern_mismatch" else ""
    return f"{where}: {_wanted(item, value)}; {found}{foreign}".removeprefix(": ")


def _wanted(item: ErrorDetails, value: Any) -> str:
    context = item.get("ctx", {})
    if item["type"] == "literal_error":
        allowed = str(context["expected"])
        near = nearest(str(value), allowed.replace(" or ", ", ").replace("'", "").split(", "))
        return f"must be one of {allowed}" + (f" (did you mean {near!r}?)" if near else "")
    if item["type"] == "string_pattern_mismatch":
        return f"must match {context['pattern']}"
    message = item["msg"].replace("Input should", "must", 1).replace("must be a valid", "must be a")
    return _PLAIN_WORDS.get(item["type"], message)


def _unknown_key(key: str, model: type[BaseModel] | None) -> str:
    if model is None:
        return "remove it"
    allowed = [field.alias or name for name, field in model.model_fields.items()]
    near = nearest(key, allowed)
    if near is None and (home := _home_of(key, Recipe, "")) is not None:
        return f"it belongs at `{home}`"
    hint = f"did you mean `{near}`? " if near else ""
    if near is None and model is InteractionSchema and _VALUED.search(key):
        hint = (
            "every row counts as one choice, unless `weight_column` names its weight; leave out rows that mean none. "
        )
    return f"{hint}allowed: {', '.join(allowed)}"


def _home_of(key: str, model: type[BaseModel], prefix: str) -> str | None:
    """Where else in the recipe a field called `key` stands."""
    for name, field in model.model_fields.items():
        own = field.alias or name
        inner = _model_in(field.annotation)
        if own == key and prefix:
            return prefix + own
        if inner is not None and (found := _home_of(key, inner, f"{prefix}{own}.")):
            return found
    return None


def _model_at(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    for part in loc:
        if isinstance(part, int):
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        inner = _model_in(fields[part].annotation) if part in fields else None
        if inner is None:
            return None
        model = inner
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
