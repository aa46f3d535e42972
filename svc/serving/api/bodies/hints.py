"""Hints in the errors of invalid requests, such as the most similar name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from svc.errors import NotFound

_IDS = frozenset(
    {"user_id", "item_id", "seed_items", "exclude_items", "include_items", "include_users", "exclude_users"}
)
_OTHER_NAMES = {
    **dict.fromkeys(("count", "n", "k", "num", "top_k", "topk", "size", "num_results", "numresults"), "limit"),
    **dict.fromkeys(("hitsperpage", "per_page", "perpage", "page_size", "pagesize"), "limit"),
    **dict.fromkeys(("skip", "start", "from"), "offset"),
    **dict.fromkeys(("query", "search", "text"), "q"),
    **dict.fromkeys(("user", "userid", "visitor_id"), "user_id"),
    **dict.fromkeys(("item_id", "item_ids", "item", "items", "itemid"), "seed_items"),
}
"""svc's names of fields, by their names in other products."""
_PAGES = "svc counts items, not pages: the third page of 10 items is offset 20 with limit 10"
_OTHER_VERBS = {"user_id": ":recommend", "seed_items": ":recommend-related"}
_BOOST = '{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}'
_BELOW_RECIPE = re.compile(r"/v1/recipes/[A-Za-z0-9_-]{1,64}[:/](.+)", re.DOTALL)


def unknown_field(name: object, fields: Collection[str]) -> str:
    """Return the message for an unknown field of the body. Repeats only svc's own names."""
    text = str(name)[:64].lower()
    if text in ("field", "value") and "factor" in fields:
        return f"unknown field; a boost names its items by a filter: {_BOOST}"
    if likely := _likely(text, fields):
        return f"unknown field; {likely}"
    for wanted, verb in _OTHER_VERBS.items():
        if _OTHER_NAMES.get(text, text) == wanted and "limit" in fields:
            return f"unknown field of this verb; {verb} takes {wanted}"
    return "unknown field; the API reference lists those there are"


def unknown_parameter(name: str, parameters: Collection[str]) -> str:
    """Return the message for an unknown parameter of the endpoint. Repeats only svc's own names."""
    listed = f"this endpoint has {', '.join(parameters)}" if parameters else "this endpoint has no parameters"
    return f"unknown parameter; {_likely(name[:64].lower(), parameters) or listed}"


def parameter_of_body(name: str, fields: Collection[str]) -> str:
    """Return the message for a parameter of an endpoint that has a body and no parameters."""
    meant = meant_field(name, fields)
    field = "fields" if meant is None else meant
    return f"unknown parameter; this endpoint reads {field} from the JSON body, not from the address"


def _likely(text: str, fields: Collection[str]) -> str:
    """Return a hint at the field that a client most likely meant, or ""."""
    if text == "page" and "offset" in fields:
        return _PAGES
    meant = meant_field(text, fields)
    return "" if meant is None else f"did you mean {meant}?"


def meant_field(name: object, fields: Collection[str]) -> str | None:
    """Return the field that a client most likely meant, by its name in other products or by similarity, or None."""
    text = str(name)[:64].lower()
    if text in ("field", "value") and "factor" in fields:
        return "filter"
    if _OTHER_NAMES.get(text) in fields:
        return _OTHER_NAMES[text]
    near = difflib.get_close_matches(text, sorted(fields), n=1)
    return near[0] if near else None


def whole_number(description: str | None) -> str:
    """Return the message for a value that is not a whole number, such as "10" in quotes."""
    purpose = f": {description[0].lower()}{description[1:].rstrip('.')}" if description else ""
    return f"Input should be a whole number without quotes, such as 3{purpose}"


def wrong_type(path: tuple[int | str, ...], message: str) -> str:
    """Return the message for a value of a wrong type, with an example if it is an id."""
    is_id = any(part in _IDS for part in path if isinstance(part, str))
    return f'{message}; ids are strings: "17", not 17' if is_id else message


def unknown_path(path: str, verbs: Iterable[str]) -> str:
    """Return the message for an unknown path below a recipe, with a hint at a verb, or "" for other paths."""
    below = _BELOW_RECIPE.fullmatch(path)
    if below is None:
        return ""
    names = list(verbs)
    words = sorted(re.split("[-_]", below[1][:64].lower()))
    near = [name for name in names if sorted(name.split("-")) == words]
    near = near or difflib.get_close_matches(below[1][:64], names, n=1)
    meant = f"did you mean :{near[0]}? " if near else ""
    return f"{NotFound.detail}; {meant}a recipe has {', '.join(f':{name}' for name in names)}"
