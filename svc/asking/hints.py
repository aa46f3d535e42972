"""Messages for invalid requests, with hints such as the most similar name of a field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

from pydantic import BaseModel

from svc.errors import NotFound
from svc.names import OTHER_NAMES, did_you_mean, nearest

NOT_AN_OBJECT = (
    'Input should be an object, as in {"user_id": "u1"}, {"seed_items": ["i1"]} or,'
    ' for a batch, {"requests": [{"user_id": "u1"}]}'
)
_INSTEAD = {
    **dict.fromkeys(
        ("exclude_seen", "hide_seen", "filter_seen"), "seen items are left out unless include_seen is true"
    ),
    **dict.fromkeys(
        ("include_metadata", "metadata", "fields"), "answers carry the fields of the recipe's item_metadata"
    ),
    **dict.fromkeys(("sort", "sort_by", "order", "order_by"), "scores decide the order, and boosts and pins change it"),
}
"""svc's way, by the names that other products use for a field that svc does not have."""
_PAGES = "svc counts items, not pages: the third page of 10 items is offset 20 with limit 10"
_OTHER_VERBS = {"user_id": ":recommend", "seed_items": ":recommend-related", "requests": ":batch-recommend"}
_BOOST = '{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}'
_ELEMENTS = {
    "boosts": _BOOST,
    "limits": '{"field": "genres", "max": 3}',
    "pins": '{"item_id": "i1", "position": 0}',
    **dict.fromkeys(("history", "seed_items", "exclude_items", "include_items", "dislikes", "shown"), '"i1"'),
}
"""An example element for each list, by field."""
_BELOW_RECIPE = re.compile(r"/v1/recipes/[A-Za-z0-9_-]{1,64}[:/](.+)", re.DOTALL)
_CONDITION = '; a condition on items belongs in filter, as in {"genres": {"any": ["Drama"]}}'
NO_HINT = "unknown field; the API reference lists the valid fields"
"""The message for an unknown field that resembles no field."""


# `bool` of a name is always true, so by default every value fits.
def unknown_field(name: object, fields: Collection[str], fits: Callable[[str], bool] = bool) -> str:
    """Return the message for an unknown field of the body. The message never repeats text of the client.

    `fits` tells whether the field's value is valid for another field.
    """
    # Clients choose the length of a name, and comparing two names takes time with the product of their lengths.
    text = str(name)[:64].lower()
    if text in _INSTEAD or (text == "page" and "offset" in fields):
        return f"unknown field; {_INSTEAD.get(text, _PAGES)}"
    if text in ("field", "value") and "factor" in fields:
        return f"unknown field; a boost names its items by a filter: {_BOOST}"
    if text in ("user_ids", "userids", "users") and "user_id" in fields:
        return 'unknown field; one user per request; :batch-recommend takes {"requests": [{"user_id": "u1"}]}'
    others, meant = OTHER_NAMES.get(text, ()), nearest(text, fields)
    # Only a whole request has these fields. A boost, for example, belongs to no verb.
    whole = bool({"limit", "history"} & {*fields})
    elsewhere = next((name for name in (text, *others) if name in _OTHER_VERBS and whole), None)
    if meant is not None and (meant in others or (fits(meant) and elsewhere is None and _is_typo(text, meant))):
        return f"unknown field; did you mean {meant}?{'' if fits(meant) else ' its value has another form'}"
    if elsewhere is not None and elsewhere not in fields:
        return f"unknown field of this verb; {_OTHER_VERBS[elsewhere]} takes {elsewhere}"
    return f"{NO_HINT}{_CONDITION}" if "filter" in fields else NO_HINT


def _is_typo(text: str, field: str) -> bool:
    """Return whether each word of two names is similar: `exclude_users` is no misspelt `exclude_items`."""
    words, own = text.split("_"), field.split("_")
    return len(words) != len(own) or all(nearest(word, [other]) for word, other in zip(words, own, strict=True))


def unknown_parameter(name: str, parameters: Collection[str]) -> str:
    """Return the message for an unknown query parameter. The message never repeats text of the client."""
    listed = f"this endpoint has {', '.join(parameters)}" if parameters else "this endpoint has no parameters"
    if name == "page" and "offset" in parameters:
        listed = _PAGES
    meant = nearest(name, parameters)
    return f"unknown parameter; {listed if meant is None else f'did you mean {meant}?'}"


def parameter_of_body(name: str, fields: Collection[str]) -> str:
    """Return the message for a query parameter of an endpoint that reads a body with these fields instead."""
    meant = nearest(name, fields)
    field = "fields" if meant is None else meant
    return f"unknown parameter; this endpoint reads {field} from the JSON body, not from the address"


def whole_number(description: str | None) -> str:
    """Return the message for a value that is not a whole number, such as "10" in quotes.

    `description` is that of the field, for a hint at its purpose.
    """
    purpose = f": {description[0].lower()}{description[1:].rstrip('.')}" if description else ""
    return f"Input should be a whole number without quotes, such as 3{purpose}"


def wrong_id(path: tuple[int | str, ...], message: str, value: object) -> str:
    """Return the message for an id that is not a string, with an example."""
    if isinstance(value, list):
        several = "; :batch-recommend takes several users" if path[-1] == "user_id" else ""
        return f"one id belongs here, not a list{several}"
    return f'{message}; ids are strings: "17", not 17'


def wrong_value(path: tuple[int | str, ...], message: str, kind: str, value: object, *, is_id: bool) -> str:
    """Return the message for a value that pydantic refuses. `kind` is pydantic's type of the error."""
    match kind:
        case "string_type" if is_id:
            return wrong_id(path, message, value)
        case "bool_type":
            return "Input should be true or false, without quotes"
        case "greater_than" if path[0] == "history":
            return "weight must be above 0; items that the user dislikes belong in dislikes"
        case "greater_than_equal" if path[-1] == "explain":
            return f"{message}; leave explain out for no reasons"
    return message


def wrong_shape(path: tuple[int | str, ...], message: str, schema: type[BaseModel]) -> str:
    """Return the message for a missing value, or for a value that must be an object or a list.

    Adds an example if there is one for `path`.
    """
    if not path:
        return NOT_AN_OBJECT
    if path == ("requests",):
        shape = _body(schema)
    elif path == ("user_features",):
        shape = '{"age": 30}'
    else:
        element = _ELEMENTS.get(str(path[0]), "")
        shape = f"[{element}]" if element and len(path) == 1 else element
    return f"{message}, as in {shape}" if shape else message


def invalid_json(message: str, schema: type[BaseModel]) -> str:
    """Return the message for a body that is not JSON, with an example if its first byte is missing or wrong."""
    # These are texts of pydantic's parser (2.14). The tests of mistakes fail if it changes them.
    if message.endswith("EOF while parsing a value at line 1 column 0"):
        return f"the body is empty; send JSON such as {_body(schema)}"
    if message.endswith("expected value at line 1 column 1"):
        return f"this is not JSON (a form?); send JSON such as {_body(schema)}"
    return f"{message}; JSON takes double quotes" if "key must be a string" in message else message


def _body(schema: type[BaseModel]) -> str:
    """Return the first example of a body in the OpenAPI document, as JSON."""
    documented: Any = schema.model_config["json_schema_extra"]
    return json.dumps(documented["examples"][0])


def unknown_path(path: str, verbs: Iterable[str]) -> str:
    """Return the message for an unknown path, with a hint at a verb for one below a recipe."""
    below = _BELOW_RECIPE.fullmatch(path.rstrip("/"))
    if below is None:
        return f"{NotFound.detail}; there are /v1/recipes/NAME:recommend and /v1/health/ready, without a slash behind"
    names = list(verbs)
    # Sorted, so that `related-recommend` finds `recommend-related`.
    words = sorted(re.split("[-_]", below[1][:64].lower()))
    same = [name for name in names if sorted(name.split("-")) == words]
    # Paths have a colon before a verb, and the table of endpoints does not.
    meant = did_you_mean(same[0] if same else below[1], names, "").replace("mean ", "mean :")
    listed = ", ".join(f":{name}" for name in names)
    return f"{NotFound.detail}; {meant}a recipe has {listed}, GET /popular, /items, /somebody"
