"""The permitted forms of names and addresses, and the names that users mean by other ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

RECIPE_NAME: Final = "[A-Za-z0-9_-]{1,64}"
NAME_PATTERN: Final = f"^{RECIPE_NAME}$"
ARM_MARK: Final = "@"
"""Stands between the names of a recipe and of an arm, because no recipe's name can contain it."""
KEY_ID: Final = "[A-Za-z0-9_.-]{1,64}"
"""The kid of a signing key or an API key."""
RUN_ID: Final = "[A-Za-z0-9_.-]{1,64}"

EXTRAS_OF_SCHEMES: Final = {"s3": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""The extra that installs the client for each object-store scheme."""
OBJECT_SCHEMES: Final = frozenset(EXTRAS_OF_SCHEMES)
HTTP_SCHEMES: Final = frozenset({"http", "https"})

METRIC_AT_CUTOFF: Final = re.compile("([a-z]+)@([0-9]+)")
"""A metric as papers write it, such as ndcg@10."""

Versioning = Literal["append_sha", "always_overwrite"]
Order = Literal["score", "lift", "balanced"]
"""How users are ranked for an item."""

SURROGATE: Final = re.compile("[\ud800-\udfff]")
"""A character that no UTF-8 text has. Python reads bytes that are not UTF-8 as such characters."""
NULL_LINE: Final = re.compile(rb"\n(?:\xef\xbb\xbf)?[ \t\r]*null")
"""A line of JSON that begins with null, behind a line break. Arrow crashes if a block that it parses begins with it."""

_COLUMN: Final = "_column"
MAX_ID_CHARACTERS: Final = 256
"""The longest id of a user or item in a request."""

OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("count", "n", "k", "num", "top_k", "topk", "at"), ("limit", "cutoff")),
    **dict.fromkeys(("size", "num_results", "numresults", "hitsperpage", "per_page", "perpage"), ("limit",)),
    **dict.fromkeys(("page_size", "pagesize"), ("limit",)),
    **dict.fromkeys(("skip", "start", "from"), ("offset",)),
    **dict.fromkeys(("query", "search", "text"), ("q", "where")),
    **dict.fromkeys(("filter", "filters"), ("filter", "where")),
    "where": ("filter",),
    **dict.fromkeys(("user", "userid", "visitor_id", "user_id", "customer", "customer_id"), ("user_id", "user_column")),
    **dict.fromkeys(("item_id", "product", "product_id"), ("seed_items", "item_column", "item")),
    **dict.fromkeys(("item_ids", "item", "items", "itemid"), ("seed_items", "item_column", "item_id", "items")),
    "item_id_column": ("id_column",),
    **dict.fromkeys(("test_size", "test_ratio", "holdout", "ratio", "heldout"), ("heldout_ratio", "heldout")),
    **dict.fromkeys(("type", "method", "strategy", "kind", "by"), ("scheme",)),
    **dict.fromkeys(("timestamp", "date", "datetime", "ts", "when"), ("time_column",)),
    **dict.fromkeys(("n_jobs", "n_workers", "workers"), ("parallelism",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("sep", "separator"), ("delimiter",)),
    **dict.fromkeys(("file", "filename", "url", "uri", "artifact"), ("path",)),
    **dict.fromkeys(("data", "dataset", "input"), ("source",)),
}
"""svc's names for the same thing, by the names of other products."""


def nearest(name: str, allowed: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name in `allowed` that has this meaning in other products, or else the most similar one, or None."""
    text = name[:64].lower()
    names = {own.lower(): own for own in allowed}
    if other := next((names[own] for own in OTHER_NAMES.get(text, ()) if own in names), None):
        return other
    if text.endswith(_COLUMN):  # the shared suffix would make all names of columns look similar
        names = {own.removesuffix(_COLUMN): real for own, real in names.items() if own.endswith(_COLUMN)}
    matches = difflib.get_close_matches(text.removesuffix(_COLUMN), names, n=1, cutoff=cutoff)
    return names[matches[0]] if matches else None


def did_you_mean(name: str, allowed: Iterable[str], quote: str = "'") -> str:
    """Return a question about the nearest name in `allowed`, with a blank behind it, or ""."""
    near = nearest(name, allowed)
    return f"did you mean {quote}{near}{quote}? " if near else ""


def is_float_text(name: str) -> bool:
    """Return whether a text is a whole number written as a floating point number: 7.0."""
    return name.endswith(".0") and name[:-2].removeprefix("-").isdecimal()


def stem_of(file: str) -> str:
    """Return the name of a recipe file without its ending."""
    return file.removesuffix(".yaml").removesuffix(".yml")


def arm_name(recipe: str, arm: str) -> str:
    """Return the name under which a server keeps the model of an arm."""
    return recipe + ARM_MARK + arm
