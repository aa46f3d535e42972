"""Messages for validation errors: the file, the field, its value and the allowed values.

The value is shown as written in the file, so the value of a variable never appears.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from svc.errors import RecipeError
from svc.logs import redact_text
from svc.names import METRIC_AT_CUTOFF, NAME_PATTERN, OTHER_NAMES, nearest
from svc.recipe.filter_tree import meant_condition
from svc.recipe.schema import TIME_FORMAT_PATTERN, Cleansing, InteractionSchema, Promotion, Recipe
from svc.recipe.serving_schema import ItemMetadata, Serving, ServingBoost
from svc.recipe.source_options import (
    BUILT_IN_OPTIONS,
    DELIMITER_PATTERN,
    DSN_PATTERN,
    SHA256_PATTERN,
    TYPES,
    CsvOptions,
    FileOptions,
    QueryOptions,
    SourceSpec,
    SqlOptions,
)
from svc.recipe.training_schema import AGE_PATTERN, HALF_LIFE_PATTERN, Scheme, Split, Training, seconds
from svc.recipe.variables import contains_reference, has_reference

Path = tuple[int | str, ...]
Checked = TypeVar("Checked", bound=BaseModel)
_MAX_SHOWN = 80
_MAX_LINES = 20
_MAX_HOMES = 4
_COLUMN = "_column"
_VALUED = re.compile("weight|rating|score|strength|value", re.IGNORECASE)
_PLAIN_WORDS = {
    "string_type": "must be text (in quotes if it looks like a number, yes or no)",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_too_short": "must not be empty",
    "too_short": "must have at least one entry",
    "tuple_type": "must be a list",
    **dict.fromkeys(("model_type", "dict_type"), "must be a mapping of keys to values"),
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
_SHORTENED = ("split", "promotion", "training", "max_change")
"""The blocks that users often shorten to the value of one of their first keys, besides those with one required key."""
_LABELS = "{'name': 'genres', 'kind': 'categorical'}"
_ITEM_TABLE = "{'source': {'type': 'csv', 'path': 'items.csv'}, 'id_column': 'item_id', "
_SIDE = f"{_ITEM_TABLE}'columns': [{_LABELS}]}}"
_FORMS: Mapping[str, str] = {
    "source": "{'type': 'csv', 'path': 'data.csv'}",
    "schema": "{'user_column': 'user_id', 'item_column': 'item_id'}",
    **dict.fromkeys(("where", "hide", "filter"), "{'genres': {'any': ['Drama']}}"),
    "forget": "{'source': {'type': 'csv', 'path': 'forget.csv'}, 'id_column': 'user_id'}",
    "event_weights": "{'view': 1, 'buy': 3}",
    "item_metadata": f"{_ITEM_TABLE}'fields': ['title']}}",
    "filter_fields": f"{_LABELS}, or with kind multi_label or numerical",
    **dict.fromkeys(("item", "user"), _SIDE),
    "features": f"{{'item': {_SIDE}}}",
    "columns": f"{_LABELS}, or with kind multi_label, numerical, text or vector",
    "search_space": "{'IALS': {'n_components': [16, 64]}}",
    "per_algorithm_trials": "{'IALS': 20}",
    "availability": f"{_ITEM_TABLE}'mode': 'allow'}}",
    "new_items": "{'source': {'type': 'csv', 'path': 'new.csv'}}",
    "popular": "{'half_life': '7d'}, or with window",
    "limits": "{'field': 'genres', 'max': 3}",
    "boosts": "{'filter': {'genres': {'any': ['Drama']}}, 'factor': 2}",
    "pins": "{'item_id': 'b0342', 'position': 0}",
    "dtype": "{'year': 'int'}",
}
"""An example of each block and mapping by its key, as YAML that is a Python expression too."""
_AUTOMATIC = re.compile("all|any|auto|automatic|default|every|everything|max|[*]|-1", re.IGNORECASE)
"""Words for an automatic choice, which svc makes if the key is left out."""
_OFF = ("none", "off", "always_overwrite")
"""Values that leave something out. `false` means one of them, and `true` none."""
_BOOST = "a boost names its items by a filter: {filter: {genres: {any: [Drama]}}, factor: 2}"
_KEPT = "`where` keeps the rows that mean a choice, as where: {rating: {gte: 4}}"
_TABLE = "a table belongs under `source`, as source: {type: csv, path: items.csv}"
_DSN = "write dsn_env: SVC_RECIPE_DSN and export SVC_RECIPE_DSN=postgresql://..."
_ELSEWHERE: tuple[tuple[type[BaseModel], tuple[str, ...], str], ...] = (
    (Cleansing, ("min_rating", "min_score", "min_value", "threshold"), _KEPT),
    (ServingBoost, ("field", "value"), _BOOST),
    (ItemMetadata, ("type", "path"), _TABLE),
    (Training, ("epochs", "hyperparameters", "params", "parameters"), "`search_space` bounds what is searched"),
    (CsvOptions, ("names", "column_names"), "`header: null` numbers the columns, so `item_column: '1'` is the second"),
    (FileOptions, ("columns", "usecols"), "svc reads only the columns that the recipe names"),
    (Serving, ("limit", "k", "top_k", "n"), "each request gives its own `limit`; `limits` bounds items of one kind"),
    (QueryOptions, ("table", "dataset"), "select from it in `query`"),
    (SqlOptions, ("url", "dsn", "connection", "connection_string"), _DSN),
    (Recipe, ("filter", "filters", "where"), "`cleansing.where` filters rows, `serving.filter` recommendations"),
)
_NAMES_ELSEWHERE = {(model, name): text for model, names, text in _ELSEWHERE for name in names}
"""svc's name for each key of other products, by block."""
_UNITS = {
    **dict.fromkeys(("sec", "secs", "second", "seconds", "unix", "epoch", "timestamp"), "s"),
    **dict.fromkeys(("milli", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("micro", "micros", "microsecond", "microseconds"), "us"),
    **dict.fromkeys(("nano", "nanos", "nanosecond", "nanoseconds"), "ns"),
}
"""svc's units of time, by other names for them."""
_DURATION = re.compile(r"([0-9]+(?:[.][0-9]+)?) *(min|m\b|[shdwy])[a-z]*")
_MAX_CHANGED = 400
"""Longest value that a message shows in another form."""
_CSV = (".csv", ".tsv", ".txt", ".gz", ".zip")
TYPES_OF_TABLES = {**dict.fromkeys(_CSV, "csv"), ".jsonl": "jsonl", ".parquet": "parquet"}
"""The source type that reads each kind of table, by file extension."""


def explain(error: ValidationError, tree: Any, model: type[BaseModel], show: Callable[[Path], str]) -> str:
    """Return one line for each problem in `error`, or _MAX_LINES lines and the number of further problems.

    `model` describes the block that was validated, and `tree` has its values as the file writes them. `show` formats a
    location.
    """
    # Without inputs, because a message must not show the value of a variable.
    details = error.errors(include_url=False, include_context=True, include_input=False)
    by_place: dict[Path, list[ErrorDetails]] = {}
    for item in _causes(details, model):
        by_place.setdefault(_location_in_file(item, tree), []).append(item)
    lines = [_line(loc, items, tree, model, show) for loc, items in by_place.items()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
    return "\n".join(lines)


def checked_options(spec: SourceSpec, options: type[Checked], where: str, written: Any = None) -> Checked:
    """Return the options of a source. Raises RecipeError, which shows the values in `written`, by default in `spec`."""
    try:
        return options.model_validate(spec.options)
    except ValidationError as error:
        tree = spec.options if written is None else written
        raise RecipeError(explain(error, tree, options, lambda loc: field_path((where, *loc)))) from None


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
        # Also a key one block too high or too low, whose home is the one that lacks it.
        beside = [str(other[-1]) for other in unknown if other[:-1] == block or other[-1] == loc[-1]]
        if item["type"] != "missing" or not any(_means(key, str(loc[-1]), model_at(model, block)) for key in beside):
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
    if model is None or key == missing:
        return key == missing
    return name_elsewhere(model, key) is not None or nearest(key, _fields(model)) == missing


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
        return f"{where}: unknown key{_look_alikes(loc[-1])}; {_unknown_key(loc, tree, model)}"
    if kind == "missing":
        return f"{where}: is missing{_example(str(loc[-1]), block)}"
    actual = f"set through {value}" if has_reference(value) and len(value) <= _MAX_SHOWN else f"found {shown(value)}"
    if kind == "value_error":
        reason = str(item["ctx"]["error"])
        sentence = reason if isinstance(value, Mapping) or loc == () else f"{actual}, which {reason}"
        return f"{where}: {sentence}".removeprefix(": ")
    hint = _look_alikes(value) if kind == "string_pattern_mismatch" else ""
    hint += _way_out(item, loc, tree, model)
    # A union gives one problem for each alternative. They become one line.
    wanted = _expectation(item, value) + "".join(
        f", or {_expectation(other, value).removeprefix('must be ')}" for other in items[1:]
    )
    return f"{where}: {wanted}; {actual}{hint}".removeprefix(": ")


def _example(key: str, model: type[BaseModel] | None) -> str:
    """Return a hint with a value for a missing key, or ""."""
    if model is SourceSpec or (model is SqlOptions and key == "dsn_env"):
        return f"; write one of {TYPES}" if key == "type" else f"; {_DSN}"
    return f"; write {_FORMS[key]}" if model is Recipe and key in _FORMS else ""


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


def accepts(tree: Any, model: type[BaseModel], loc: Path, value: Any) -> bool:
    """Return whether `value` is valid at `loc` of `tree`, perhaps beside keys that are still missing."""
    try:
        model.model_validate(_replace(tree, loc, value))
    except ValidationError as error:
        # A message repairs one place. Keys that are still missing have lines of their own.
        places = [item["loc"] for item in error.errors(include_url=False) if item["loc"] and item["type"] != "missing"]
        # Above and below `loc`, because validators of a whole block report the block.
        return not any(at[: len(loc)] == loc[: len(at)] for at in places)
    return True


def _replace(tree: Any, loc: Path, value: Any) -> Any:
    """Return a copy of `tree` with `value` at `loc`."""
    if not loc:
        return value
    inner = _replace(tree[loc[0]] if _has(tree, loc[0]) else {}, loc[1:], value)
    if isinstance(loc[0], int):
        return [*tree[: loc[0]], inner, *tree[loc[0] + 1 :]]
    return {**(tree if isinstance(tree, Mapping) else {}), loc[0]: inner}


def without(tree: Any, locs: Sequence[Path]) -> Any:
    """Return a copy of `tree` without the values at `locs`."""
    if not isinstance(tree, list | dict):
        return tree
    kept = [(key, value) for key, value in _items(tree) if (key,) not in locs]
    inner = {key: without(value, [loc[1:] for loc in locs if loc[:1] == (key,)]) for key, value in kept}
    return inner if isinstance(tree, dict) else list(inner.values())


def _items(tree: list[Any] | dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return tree.items() if isinstance(tree, dict) else enumerate(tree)


def _way_out(item: ErrorDetails, loc: Path, tree: Any, model: type[BaseModel]) -> str:
    """Return a hint with a valid value that means the same, or else with an example, or ""."""
    value, kind, block = value_at(tree, loc), item["type"], model_at(model, loc)
    key = next((part for part in reversed(loc) if isinstance(part, str)), "")
    # The value is unknown here, or nothing.
    if contains_reference(value) or value is None:
        return ""
    if kind == "literal_error" and (ranked := METRIC_AT_CUTOFF.fullmatch(str(value))):
        return f"; write `metric: {ranked[1]}` and `training.cutoff: {ranked[2]}`"
    if not isinstance(value, Mapping | list) and _AUTOMATIC.fullmatch(str(value)):
        words = "name each column" if key == "fields" else "leave it out for the default"
        return f"; {words}" if loc[-1] == key else ""
    parent = model_at(model, loc[:-1])
    field = None if parent is None or loc[-1] != key else _fields(parent).get(key)
    # Tried before it is shown, because advice that fails at once costs more than none.
    for meant in _candidates(value, kind, block, key, field):
        if accepts(tree, model, loc, meant):
            # Kinds of errors about a bound, such as less_than_equal, have "than" in their names.
            note = " for days" if meant == f"{value}d" else f" for {value}%" if "than" in kind else ""
            return f"; did you mean {meant}?" if "pattern" in kind else f"; write {_written(meant)}{note}"
    form, note, more = _FORMS.get(key, "").partition(", or with ")
    if not form or kind not in ("tuple_type", "model_type", "dict_type"):
        about = f"; its keys are {', '.join(_fields(block))}" if block is not None and kind == "model_type" else ""
        return f"; `{key}`: {field.description}" if field and field.description and "pattern" not in kind else about
    if isinstance(value, str) and PurePath(value).suffix in TYPES_OF_TABLES and redact_text(value) == value:
        form = re.sub("(?:items|new|forget)[.]csv", lambda _: value, form)
    return f"; as in {f'[{form}]' if kind == 'tuple_type' else form}{note}{more}"


def _candidates(
    value: Any, kind: str, model: type[BaseModel] | None, key: str, field: FieldInfo | None
) -> Iterator[Any]:
    """Yield values that an author may mean by a `value` of another type, most probable first."""
    # A value that looks like a secret is not written in another form either.
    if len(str(value)) > _MAX_CHANGED or redact_text(str(value)) != str(value):
        return
    text = str(value).strip()
    if isinstance(value, bool) and field is not None and kind != "model_type":
        # `true` means to switch the key on, so a default that is off is no candidate.
        on = reversed(get_args(field.annotation)) if field.default in _OFF else (field.default,)
        yield from (choice for choice in on if choice not in (None, *_OFF)) if value else (*_OFF, None)
    elif kind == "tuple_type":
        yield from _as_lists(value, model)
    elif kind == "model_type" and model is not None:
        yield from _as_blocks(value, model, key)
    elif kind == "dict_type" and isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        yield {name: inner for part in value for name, inner in part.items()}
        yield {"all": value}
    elif kind == "dict_type" and (compared := re.fullmatch(r"(\w{1,64}) ?([<>=]{1,2} ?-?[0-9.]{1,20})", text)):
        yield meant_condition(compared[1], compared[2])[0]
    elif kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        yield from (text, f"{text}d")
    # 20 or 20% in place of 0.2.
    elif kind.startswith(("less_than", "greater_than", "float")) and re.fullmatch("-?[0-9]{0,4}[.]?[0-9]{1,5}%?", text):
        yield float(text.rstrip("%")) / 100
    elif kind.startswith("string_pattern"):
        yield from _durations(text)
    elif kind.startswith(("float", "int")) and key.endswith("seconds"):
        yield from map(seconds, _durations(text.replace(" ", "")))


def _durations(text: str) -> Iterator[str]:
    """Yield the duration of a recipe that an author means by a text such as `30 days`, if it is one."""
    if duration := _DURATION.fullmatch(text.lower()):
        yield f"{duration[1]}{'min' if duration[2] == 'm' else duration[2]}"


def _as_lists(value: Any, model: type[BaseModel] | None) -> Iterator[Any]:
    """Yield lists of `model`, or of plain values, that an author may mean by a mapping, a text or a number."""
    yield [part.strip() for part in value.split(",")] if isinstance(value, str) else [value]
    if isinstance(value, int | float):
        yield [value, value]  # bounds of a parameter with one possible value
    elif isinstance(value, Mapping) and model is not None:
        yield [dict(zip(_required(model), pair, strict=False)) for pair in value.items()]
    elif isinstance(value, Mapping) and value.keys() in ({"low", "high"}, {"min", "max"}):
        yield [value[key] for key in sorted(value, key=["low", "min", "high", "max"].index)]
    if isinstance(value, Mapping):
        yield [*value]


def _as_blocks(value: Any, model: type[BaseModel], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield blocks that an author may mean by the value of their main key, or by a list of columns."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], Mapping):
        yield value[0]
    if model is SourceSpec and isinstance(value, str):
        table = TYPES_OF_TABLES.get(PurePath(value).suffix.lower())
        yield {"type": table, "path": value} if table else {"type": value if value in BUILT_IN_OPTIONS else None}
    if model is SourceSpec:
        return
    # `schema: user_id, item_id` names the columns in the order of the fields.
    names = value.split(",") if isinstance(value, str) else value
    if model is InteractionSchema and isinstance(names, list) and len(names) > 1:
        yield dict(zip(_fields(model), (str(name).strip() for name in names), strict=False))
    required, main = _required(model), _main_value(value, model)
    keys = tuple(_fields(model))[:3] if key in _SHORTENED else required if len(required) == 1 else ()
    for meant in (main, [main], f"{main}d", *_durations(str(main))) if keys else ():
        yield dict.fromkeys(keys, meant)
        yield from ({key: meant} for key in keys[:2])


def _required(model: type[BaseModel]) -> tuple[str, ...]:
    return tuple(name for name, field in model.model_fields.items() if field.is_required())


def _written(value: Any) -> str:
    """Return `value` as YAML. A text has quotes that Python reads alike."""
    if not isinstance(value, str):
        return "null" if value is None else f"{value}"
    return repr(value) if repr(value)[1:-1] == value else json.dumps(value, ensure_ascii=False)


def _main_value(value: Any, model: type[BaseModel]) -> Any:
    """Return the value of a block's main key that an author probably means by `value` in place of the whole block.

    `true` for `promotion` means `enforce`. For `split`, a word about time means `time_user`, because most authors mean
    the latest items of each user. Any other value means itself.
    """
    if model is Promotion:
        return "enforce" if value is True else value
    if model is not Split or not isinstance(value, str):
        return value
    by_time = re.search("time|temp|chron|date|last|latest", value.lower())
    return nearest(value, get_args(Scheme)) or ("time_user" if by_time else value)


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a block by their keys in a recipe."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _unknown_key(loc: Path, tree: Any, model: type[BaseModel]) -> str:
    """Return a hint at the key that an author means by the unknown one at `loc`, if the value is valid there."""
    key, block, value = str(loc[-1]), model_at(model, loc[:-1]), value_at(tree, loc)
    if block is None:
        return "remove it"
    if elsewhere := name_elsewhere(block, key):
        return elsewhere
    allowed = _fields(block)
    # `user` means `user_column`, however similar other keys are.
    near = f"{key}{_COLUMN}" if f"{key}{_COLUMN}" in allowed else nearest(key, allowed)
    if near is not None and near in OTHER_NAMES.get(key.lower(), ()):
        return f"it is {_renamed(loc, near, tree, model, certain=True)}"
    # Without the misplaced key, which would otherwise seem to take its right place.
    # Only if no key of this block is nearly the same, because a typing error is more frequent.
    homes = [*_homes_of(key, value, without(tree, [loc]))] if nearest(key, allowed, 0.85) is None else []
    if homes:
        # Places within the same block first, because a key is most often one level off.
        homes.sort(key=lambda home: home[: len(loc) - 1] != loc[:-1])
        return f"it belongs at {' or '.join(f'`{field_path(home)}`' for home in homes[:_MAX_HOMES])}"
    renamed = "" if near is None else _renamed(loc, near, tree, model, certain=nearest(key, allowed, 0.85) is not None)
    hint = f"did you mean {renamed}? " if renamed else ""
    if near is None and block is InteractionSchema and _VALUED.search(key):
        column = redact_text(value)[:_MAX_SHOWN] if isinstance(value, str) else key
        hint = (
            f"svc learns choices: `weight_column: {column}` weighs a row, "
            f"`cleansing.where: {{{column}: {{gte: 4}}}}` keeps the rows that mean a choice. "
        )
    return f"{hint}allowed: {', '.join(allowed)}"


def _renamed(loc: Path, near: str, tree: Any, model: type[BaseModel], *, certain: bool = False) -> str:
    """Return the key `near`, if the value at `loc` is valid there, or the key with a value that means the same, or "".

    If `certain`, return the key also for another value, and what it takes.
    """
    new = (*loc[:-1], near)
    tree = _replace(without(tree, [loc]), new, value_at(tree, loc))
    if accepts(tree, model, new, value_at(tree, new)):
        return f"`{near}`"
    try:
        model.model_validate(tree)
    except ValidationError as error:
        item = next((item for item in error.errors(include_url=False) if item["loc"][: len(new)] == new), None)
        way = "" if item is None else _way_out(item, new, tree, model)
        if way.startswith("; write "):
            return f"`{near}: {way.removeprefix('; write ')}`"
        if certain and item is not None:
            return f"`{near}`, which {_expectation(item, value_at(tree, new))}{way}"
    return f"`{near}`" if certain else ""


def name_elsewhere(model: type[BaseModel], key: str) -> str | None:
    """Return a sentence with svc's name for a key of other products, or None."""
    # Keys of a base class, such as FileOptions, are explained once for all its blocks.
    return next((text for base in model.__mro__ if (text := _NAMES_ELSEWHERE.get((base, key)))), None)


def advice(key: str, value: Any, model: type[BaseModel]) -> str:
    """Return a hint at the key of `model` that an author means by an unknown one, or ""."""
    return _unknown_key((key,), {key: value}, model).partition("allowed: ")[0].strip()


def _homes_of(key: str, value: Any, tree: Any) -> Iterator[Path]:
    """Yield the free places of the recipe `tree` that are called `key` or mean it, and at which `value` is valid."""
    source = value_at(tree, ("source", "type"))
    options = BUILT_IN_OPTIONS.get(source) if isinstance(source, str) else None
    if any(key in model.model_fields for model in BUILT_IN_OPTIONS.values()):
        if options is not None and not _has(tree["source"], key) and accepts({}, options, (key,), value):
            yield ("source", key)
        return
    for home in _homes(Recipe, ()):
        named = home[-1] == key or home[-1] in OTHER_NAMES.get(key.lower(), ())
        if named and not _has(value_at(tree, home[:-1]), home[-1]) and accepts({}, Recipe, home, value):
            yield home


def _homes(model: type[BaseModel], block: Path) -> Iterator[Path]:
    """Yield the place of each field of a recipe that is not in a list."""
    for own, field in _fields(model).items():
        inner = _model_in(field.annotation)
        yield (*block, own)
        # An entry of a list has no path without an index.
        if inner is not None and tuple not in [
            get_origin(part) for part in (field.annotation, *get_args(field.annotation))
        ]:
            yield from _homes(inner, (*block, own))


def model_at(model: type[BaseModel], loc: Path) -> type[BaseModel] | None:
    """Return the model that describes the block at `loc`, or None if no model does."""
    for part in loc:
        if isinstance(part, int):
            continue
        fields = _fields(model)
        inner = _model_in(fields[part].annotation) if part in fields else None
        if inner is None:
            return None
        model = inner
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)
