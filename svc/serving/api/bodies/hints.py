"""Hints for invalid requests: the most similar field name, quotes around ids, the verbs that exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from svc.errors import NotFound

_IDS = frozenset({"user_id", "seed_items", "exclude_items", "include_items"})
_BELOW_RECIPE = re.compile(r"/v1/recipes/[A-Za-z0-9_-]{1,64}[:/](.+)", re.DOTALL)


def unknown_field(name: object, known: Iterable[str]) -> str:
    """The message for a field that the body must not have. Only names of svc's own are repeated."""
    near = difflib.get_close_matches(str(name)[:64].lower(), sorted(known), n=1)
    return (
        f"unknown field; did you mean {near[0]}?" if near else "unknown field; the API reference lists those there are"
    )


def wrong_type(place: tuple[int | str, ...], message: str) -> str:
    """The message for a value of a wrong type; of an id, that ids are strings."""
    is_id = any(part in _IDS for part in place if isinstance(part, str))
    return f'{message}; ids are strings: "17", not 17' if is_id else message


def unknown_path(path: str, verbs: Iterable[str]) -> str:
    """A hint for a path that does not exist; "" when no verb was meant."""
    below = _BELOW_RECIPE.fullmatch(path)
    if below is None:
        return ""
    names = list(verbs)
    near = difflib.get_close_matches(below[1][:64], names, n=1)
    meant = f"did you mean :{near[0]}? " if near else ""
    return f"{NotFound.detail}; {meant}a recipe has {', '.join(f':{name}' for name in names)}"
