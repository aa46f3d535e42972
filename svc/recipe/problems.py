"""Messages for validation errors: the file, the field, its value and the allowed values.

The value is shown as written in the file, so the value of a variable never appears.
"""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from svc.logs import redact_text
from svc.names import NAME_PATTERN
from svc.recipe.schema import TIME_FORMAT_PATTERN, Cleansing, InteractionSchema, Output, Promotion, Recipe
from svc.recipe.serving_schema import FilterField, ItemMetadata, ServingBoost
from svc.recipe.source_options import (
    DELIMITER_PATTERN,
    DSN_PATTERN,
    SHA256_PATTERN,
    TYPES,
    BigQueryOptions,
    CsvOptions,
    ParquetOptions,
    SourceSpec,
    SqlOptions,
)
from svc.recipe.training_schema import AGE_PATTERN, HALF_LIFE_PATTERN, Scheme, Split, TimeDecay, Training
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
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_too_short": "must not be empty",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of keys to values",
    "dict_type": "must be a mapping of keys to values",
    "timezone_aware": "must have a zone, as in 2026-12-24T18:00:00Z or 2026-12-24T18:00:00+01:00",
}
PATTERNS_IN_WORDS: Mapping[str, str] = {
    NAME_PATTERN: "must be 1 to 64 letters, digits, hyphens and underscores",
    HALF_LIFE_PATTERN: "must be a number with its unit, such as 12h, 30d, 4w or 1.5y, or none",
    AGE_PATTERN: "must be a whole number with its unit, such as 90min, 36h, 30d, 4w or 1y",
    TIME_FORMAT_PATTERN: "must be a format such as %d.%m.%Y %H:%M, with a year (%Y or %y)",
    SHA256_PATTERN: "must be 64 hexadecimal digits, as `sha256sum` prints them",
    DELIMITER_PATTERN: "must be one ASCII character, or up to eight without a backslash, and no quote or line end",
    DSN_PATTERN: "must be the name of a variable that begins with SVC_RECIPE_",
}
_WRITTEN_OUT: Mapping[type[BaseModel], str] = {
    Split: "{{'scheme': {}}}",
    Promotion: "{{'mode': {}}}",
    Output: "{{'path': {}}}",
    SourceSpec: "{{'type': 'csv', 'path': {}}}",
    TimeDecay: "{{'half_life': {}}}",
    ItemMetadata: "{{'source': {{'type': 'csv', 'path': {}}}, 'id_column': 'item_id', 'fields': ['title']}}",
    FilterField: "{{'name': {}, 'kind': 'categorical'}}, or with kind multi_label or numerical",
}
"""The full form of each block that users often shorten to its main value, as YAML that is a Python expression too."""
_BOOST = "a boost names its items by a filter: {filter: {genres: {any: [Drama]}}, factor: 2}"
_TABLE = "a table belongs under `source`, as source: {type: csv, path: items.csv}"
_SPLIT_NAMES: Mapping[str, tuple[str, ...]] = {
    "heldout_ratio": ("test_size", "test_ratio", "holdout", "ratio"),
    "scheme": ("type", "method", "strategy", "kind", "by"),
}
"""Names in other products for keys of the block `split`."""
_DSN = "write dsn_env: SVC_RECIPE_DSN and export SVC_RECIPE_DSN=postgresql://..."
_ELSEWHERE: tuple[tuple[type[BaseModel], tuple[str, ...], str], ...] = (
    (ServingBoost, ("field", "value"), _BOOST),
    (ItemMetadata, ("item_id_column",), "here it is called `id_column`"),
    (ItemMetadata, ("type", "path"), _TABLE),
    (Split, _SPLIT_NAMES["heldout_ratio"], "the share of each history that is held out is `heldout_ratio`"),
    (Split, _SPLIT_NAMES["scheme"], "it is `scheme`"),
    (InteractionSchema, ("timestamp", "date", "datetime", "ts", "when"), "it is `time_column`"),
    (InteractionSchema, ("user_id", "customer", "customer_id"), "it is `user_column`"),
    (InteractionSchema, ("item_id", "product", "product_id"), "it is `item_column`"),
    (Cleansing, ("filter", "filters", "query"), "it is `where`"),
    (Training, ("n_jobs", "n_workers", "workers"), "it is `parallelism`"),
    (Training, ("random_state", "random_seed"), "it is `seed`"),
    (Training, ("k", "top_k", "topk", "n"), "it is `cutoff`"),
    (Training, ("epochs", "hyperparameters", "params", "parameters"), "`search_space` bounds what is searched"),
    (CsvOptions, ("sep", "separator"), "it is `delimiter`"),
    (CsvOptions, ("file", "filename", "url", "uri"), "it is `path`"),
    (ParquetOptions, ("file", "filename", "url", "uri"), "it is `path`"),
    (BigQueryOptions, ("table", "dataset"), "select from it in `query`"),
    (SqlOptions, ("table",), "select from it in `query`"),
    (SqlOptions, ("url", "dsn", "connection", "connection_string"), _DSN),
    (Output, ("file", "filename", "artifact"), "it is `path`"),
    (Recipe, ("data", "dataset", "input"), "it is `source`"),
    (Recipe, ("filter", "filters", "where"), "`cleansing.where` filters rows, `serving.filter` recommendations"),
)
_NAMES_ELSEWHERE = {(model, name): text for model, names, text in _ELSEWHERE for name in names}
"""svc's name for each key of other products, by block."""
_EXAMPLES: Mapping[tuple[type[BaseModel], str], str] = {
    (Recipe, "source"): "{'type': 'csv', 'path': 'data.csv'}",
    (Recipe, "schema"): "{'user_column': 'user_id', 'item_column': 'item_id'}",
    (SourceSpec, "type"): f"one of {TYPES}",
}
"""An example value for each key that is often missing."""
_UNITS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds", "unix", "epoch", "timestamp"), "s"),
    **dict.fromkeys(("milli", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("micro", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("nano", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
"""svc's units of time, by other names for them."""
_RANKED = re.compile("([a-z]+)@([0-9]+)")
_DURATION = re.compile("([0-9]+(?:[.][0-9]+)?) *(min|[hdwy])[a-z]*")


def explain(error: ValidationError, tree: Any, model: type[BaseModel], show: Callable[[Path], str]) -> str:
    """Return one line for each problem in `error`, or _MAX_LINES lines and the number of further problems.

    `model` describes the block that was validated, and `tree` has its values as the file writes them. `show` formats a
    location.
    """
    details = error.errors(include_url=False, include_context=True, include_input=False)
    by_place: dict[Path, list[ErrorDetails]] = {}
    for item in _causes(details, model):
        by_place.setdefault(_location_in_file(item, tree), []).append(item)
    lines = [_line(loc, items, tree, model, show) for loc, items in by_place.items()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return "\n".join(lines)


def _causes(details: list[ErrorDetails], model: type[BaseModel]) -> Iterable[ErrorDetails]:
    """Yield the problems that are not consequences of other problems.

    A list is not reported as too short if its entries are invalid. A misspelt key is not also reported as missing.
    """
    locs = [item["loc"] for item in details]
    unknown = [item["loc"] for item in details if item["type"] == "extra_forbidden"]
    for item in details:
        loc, block = item["loc"], item["loc"][:-1]
        if item["type"] == "too_short" and any(other != loc and other[: len(loc)] == loc for other in locs):
            continue
        beside = [str(other[-1]) for other in unknown if other[:-1] == block] if item["type"] == "missing" else []
        if not any(_means(key, str(loc[-1]), model_at(model, block)) for key in beside):
            yield item


def _location_in_file(item: ErrorDetails, tree: Any) -> Path:
    """Return the location in the file, without pydantic's parts for the alternatives of a union."""
    loc = item["loc"]
    for depth, part in enumerate(loc):
        if not _has(tree, part):
            return loc[: depth + 1] if part == "[key]" or item["type"] == "missing" else loc[:depth]
        tree = tree[part]
    return loc


def _has(tree: Any, part: int | str) -> bool:
    if isinstance(tree, Mapping):
        return part in tree
    return isinstance(tree, list | tuple) and isinstance(part, int) and part < len(tree)


def _means(key: str, missing: str, model: type[BaseModel] | None) -> bool:
    if model is None:
        return False
    return (model, key) in _NAMES_ELSEWHERE or nearest(key, _keys(model)) == missing


def field_path(loc: Path) -> str:
    """Return `("features", "item", "columns", 0)` as `features.item.columns[0]`."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part != "[key]":
            text += f".{part}" if text else part
    return text


def value_at(tree: Any, loc: Path) -> Any:
    """Return the value of `tree` at `loc`, or the deepest value on the way to it."""
    for part in loc:
        if not _has(tree, part):
            return tree
        tree = tree[part]
    return tree


def nearest(key: str, allowed: Iterable[str]) -> str | None:
    """Return the name in `allowed` that is most similar to `key`, or None."""
    names = {name.lower(): name for name in allowed}
    ending = key.lower().endswith(_COLUMN)  # the shared suffix would make all names of columns look similar
    if ending:
        names = {name.removesuffix(_COLUMN): real for name, real in names.items() if name.endswith(_COLUMN)}
    matches = difflib.get_close_matches(
        key.lower().removesuffix(_COLUMN) if ending else key.lower(), names, n=1, cutoff=0.6
    )
    return names[matches[0]] if matches else None


def shown(value: Any) -> str:
    """Return a short text of `value` for messages, without credentials."""
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
    """Return a note with the names of up to three letters outside ASCII, because some look like ASCII letters."""
    foreign = dict.fromkeys(letter for letter in text if not letter.isascii()) if isinstance(text, str) else {}
    names = [unicodedata.name(letter, f"U+{ord(letter):04X}") for letter in list(foreign)[:3]]
    return f" (with {', '.join(names)})" if names else ""


def _line(loc: Path, items: list[ErrorDetails], tree: Any, model: type[BaseModel], show: Callable[[Path], str]) -> str:
    item, where = items[0], show(loc)
    kind, block, value = item["type"], model_at(model, loc[:-1]), value_at(tree, loc)
    if kind == "extra_forbidden":
        return f"{where}: unknown key{_look_alikes(loc[-1])}; {_unknown_key(str(loc[-1]), value, block)}"
    if kind == "missing":
        return f"{where}: is missing{_example(str(loc[-1]), block)}"
    actual = f"set through {value}" if has_reference(value) and len(value) <= _MAX_SHOWN else f"found {shown(value)}"
    if kind == "value_error":
        reason = str(item["ctx"]["error"])
        sentence = reason if isinstance(value, Mapping) or loc == () else f"{actual}, which {reason}"
        return f"{where}: {sentence}".removeprefix(": ")
    hint = _look_alikes(value) if kind == "string_pattern_mismatch" else ""
    hint += _way_out(item, value, model_at(model, loc))
    wanted = _expectation(item, value) + "".join(
        f", or {_expectation(other, value).removeprefix('must be ')}" for other in items[1:]
    )
    return f"{where}: {wanted}; {actual}{hint}".removeprefix(": ")


def _example(key: str, model: type[BaseModel] | None) -> str:
    """Return a hint with a value for a missing key, or ""."""
    if model is SqlOptions and key == "dsn_env":
        return f"; {_DSN}"
    return f"; write {_EXAMPLES[model, key]}" if model is not None and (model, key) in _EXAMPLES else ""


def _expectation(item: ErrorDetails, value: Any) -> str:
    context = item.get("ctx", {})
    if item["type"] == "literal_error":
        return _one_of(str(context["expected"]), value)
    if item["type"] == "value_error":
        return str(context["error"])
    if item["type"] == "string_pattern_mismatch":
        return PATTERNS_IN_WORDS.get(context["pattern"], f"must match {context['pattern']}")
    bound = context.get("min_length", context.get("max_length"))
    if item["type"] in ("too_short", "too_long"):
        which = "least" if item["type"] == "too_short" else "most"
        return f"must have at {which} {'one entry' if bound == 1 else f'{bound} entries'}"
    message = item["msg"].replace("Input should", "must", 1).replace("must be a valid", "must be a")
    return _PLAIN_WORDS.get(item["type"], message)


def _one_of(expected: str, value: Any) -> str:
    allowed = expected.replace(" or ", ", ").replace("'", "").split(", ")
    near = _UNITS.get(str(value).lower()) if "ms" in allowed else nearest(str(value), allowed)
    wanted = f"must be one of {expected}" if len(allowed) > 1 else f"must be {expected}"
    return wanted + (f" (did you mean {near!r}?)" if near else "")


def _way_out(item: Any, value: Any, model: type[BaseModel] | None) -> str:
    """Return a hint with the correct form of the value, or "" if the value suggests none."""
    kind = item["type"]
    if isinstance(value, Mapping | list) or has_reference(value) or value is None:
        return ""
    text = redact_text(str(value))[:_MAX_SHOWN]
    if kind == "tuple_type":
        return f"; write [{text if isinstance(value, int | float) else _quoted(text)}]"
    if kind == "model_type" and model is not None and model in _WRITTEN_OUT:
        return f"; write {_WRITTEN_OUT[model].format(_quoted(_main_value(text, model)))}"
    if kind == "dict_type" and re.search("[<=>]", text):
        return "; write a filter as {'rating': {'gte': 4}}"
    if kind == "literal_error" and (ranked := _RANKED.fullmatch(text)):
        return f"; write `metric: {ranked[1]}` and `training.cutoff: {ranked[2]}`"
    duration = _DURATION.fullmatch(text.lower()) if kind == "string_pattern_mismatch" else None
    meant = "" if duration is None else f"{duration[1]}{duration[2]}"
    return f"; did you mean {meant}?" if meant and re.match(item["ctx"]["pattern"], meant) else ""


def _quoted(text: str) -> str:
    """Return `text` in quotes that YAML and Python read alike."""
    return repr(text) if repr(text)[1:-1] == text else json.dumps(text, ensure_ascii=False)


def _main_value(text: str, model: type[BaseModel]) -> str:
    """Return the value of a block's main key, as in _WRITTEN_OUT, that an author probably means by `text`.

    The author wrote `text` in place of the whole block that `model` describes. `True` for `promotion` means `enforce`,
    and a whole number for `time_decay` means days. For `split`, a word about time means `time_user`, because most
    authors mean the latest items of each user, and an unknown word means `random`. Any other text means itself.
    """
    if model is Promotion:
        return "enforce" if text == "True" else text
    if model is TimeDecay:
        return f"{text}d" if text.isdigit() else text
    if model is not Split:
        return text
    schemes = get_args(Scheme)
    if text in schemes:
        return text
    by_time = re.search("time|temp|chron|date|last|latest", text.lower())
    return nearest(text, schemes) or ("time_user" if by_time else "random")


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _unknown_key(key: str, value: Any, model: type[BaseModel] | None) -> str:
    if model is None:
        return "remove it"
    if (model, key) in _NAMES_ELSEWHERE:
        return _NAMES_ELSEWHERE[model, key]
    allowed = _keys(model)
    near = f"{key}{_COLUMN}" if f"{key}{_COLUMN}" in allowed else nearest(key, allowed)
    if near is None and (home := _home_of(key, Recipe, "")) is not None:
        return f"it belongs at `{home}`"
    hint = f"did you mean `{near}`? " if near else ""
    if near is None and model is InteractionSchema and _VALUED.search(key):
        column = redact_text(value)[:_MAX_SHOWN] if isinstance(value, str) else key
        hint = (
            f"svc learns choices: `weight_column: {column}` weighs a row, "
            f"`cleansing.where: {{{column}: {{gte: 4}}}}` keeps the rows that mean a choice. "
        )
    return f"{hint}allowed: {', '.join(allowed)}"


def name_elsewhere(model: type[BaseModel], key: str) -> str | None:
    """Return a sentence with svc's name for a key of other products, or None."""
    return _NAMES_ELSEWHERE.get((model, key))


def split_key(key: str) -> str | None:
    """Return the key of the block `split` that other products call `key`, or None."""
    return next((own for own, names in _SPLIT_NAMES.items() if key in names), None)


def _home_of(key: str, model: type[BaseModel], prefix: str) -> str | None:
    """Return the path of the first field called `key` inside a block of the recipe, or None."""
    for name, field in model.model_fields.items():
        own = field.alias or name
        inner = _model_in(field.annotation)
        if own == key and prefix:
            return prefix + own
        if inner is not None and (home := _home_of(key, inner, f"{prefix}{own}.")):
            return home
    return None


def model_at(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """Return the model that describes the block at `loc`, or None if no model does."""
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
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
