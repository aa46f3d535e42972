"""Data for the console, the web page for trying out recipes: item search, sample users, feature columns, versions.

The functions may compute for long or read a store, so call them from a thread.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from svc.artifact.keys import SigningKeys
from svc.artifact.versions import Versions
from svc.errors import UnknownUser
from svc.model.columns.text_column import TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.features import Column, SideEncoder, TokenColumn
from svc.model.model import Model
from svc.recipe.load import LoadedRecipe
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.registry import Entry, Served
from svc.serving.models.threads import lower_priority
from svc.settings import Settings

MAX_VALUES = 200
"""Maximum number of values that `feature_columns` returns for a column."""
BLOCK_BYTES = 64 * 1024
"""Approximate length of the JSON that is searched in one step. Each step holds the GIL."""
LONGEST_SEARCH_S = 2.0


def find_items(
    served: Served, text: str, limit: int, longest_s: float = LONGEST_SEARCH_S
) -> tuple[list[dict[str, Any]], bool]:
    """Return up to `limit` items whose id and metadata together contain every word of `text`, ignoring case.

    The item whose id equals `text` without outer blanks comes first, then other items in the order of the model. New
    items are not searched. The second result is True if the search stopped early, because of `limit` or after
    `longest_s` seconds, so that more items may match.
    """
    lower_priority()
    fragments = served.fragments
    exact = served.model.item_ids.index(text.strip())
    columns = [exact] if exact >= 0 else []
    # Folded and not lowered, so that STRASSE finds Straße.
    words = text.casefold().split()
    until = time.perf_counter() + longest_s
    more = False
    for column in _candidates(fragments, words, until):
        if column is None or len(columns) == limit:
            more = True
            break
        if column != exact and _contains(json.loads(fragments.describe(column)), words):
            columns.append(column)
    return [json.loads(fragments.describe(column)) for column in columns], more


def _candidates(fragments: ItemFragments, words: Sequence[str], until: float) -> Iterator[int | None]:
    """Yield the columns (indices) of items whose JSON contains all words, ascending. Yields None once `until` is past.

    `until` is a time of `time.perf_counter`. The words may occur in field names, so the caller must check each item.
    """
    # Spelled as in the prepared JSON, which is searched as text: 0.08 s for 100,000 items. Decoding each takes 2.8 s.
    escaped = [to_json(word)[1:-1].decode().casefold() for word in words]
    stop = 0
    while stop < len(fragments):
        if time.perf_counter() > until:
            yield None
        start, stop = stop, fragments.block_end(stop, BLOCK_BYTES)
        block = fragments.text(start, stop).casefold()
        # Rules out whole blocks by one search for each word.
        if all(word in block for word in escaped):
            for column in range(start, stop):
                item = fragments.text(column, column + 1).casefold()
                if all(word in item for word in escaped):
                    yield column


def _contains(item: dict[str, Any], words: Sequence[str]) -> bool:
    """Return True if every word occurs in a value of the item. Names of fields do not count."""
    text = "\n".join(_texts(list(item.values()))).casefold()
    return all(word in text for word in words)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif value is not None:
        yield str(value)


def sample_user(served: Served, user_id: str | None, limit: int) -> dict[str, Any]:
    """Return a user of the training data with up to `limit` items of their history.

    Without `user_id` the user is random. If the model knows the order of histories, the items are the latest ones,
    oldest first. Raises UnknownUser.
    """
    model = served.model
    row = random.randrange(len(model.user_ids)) if user_id is None else model.user_ids.index(user_id)
    if row < 0:
        raise UnknownUser(f"{UnknownUser.bare}; leave user_id out for a random user")
    columns = model.history.items(row)
    is_ordered = model.history.is_ordered
    shown = columns[-limit:] if is_ordered else columns[:limit]
    return {
        "user_id": model.user_ids.at(row),
        "n_history": len(columns),
        "history": [json.loads(served.fragments.describe(int(column))) for column in shown],
        **({"oldest_first": True} if is_ordered else {}),
    }


def feature_columns(model: Model, is_denied: Callable[[str], bool]) -> dict[str, list[dict[str, Any]]] | None:
    """Return the feature columns of users and items as JSON objects, or None if the model has no features.

    The object of a column of tokens has the first MAX_VALUES values. The object of a column of numbers has their range
    and mean. These facts are left out if `is_denied` returns True for the column's name (SVC_METADATA_FIELD_DENY).
    """
    if model.features is None:
        return None
    return {"user": _side(model.features.user, is_denied), "item": _side(model.features.item, is_denied)}


def _side(encoder: SideEncoder | None, is_denied: Callable[[str], bool]) -> list[dict[str, Any]]:
    columns = encoder.encoders if encoder else ()
    return [_column(column, open_values=not is_denied(column.name)) for column in columns]


def _column(column: Column, *, open_values: bool) -> dict[str, Any]:
    named = {"name": column.name, "kind": column.kind}
    if isinstance(column, TokenColumn):
        shown = min(len(column.tokens), MAX_VALUES) if open_values else 0
        return {**named, "n_values": len(column.tokens), "values": [column.tokens.at(row) for row in range(shown)]}
    if isinstance(column, TextColumn):
        return {**named, "n_words": column.width}
    if isinstance(column, VectorColumn):
        return {**named, "dimensions": column.dimensions, "delimiter": column.delimiter}
    if not open_values:
        return named
    return {**named, "low": column.low, "high": column.high, "mean": column.mean}


MOST = 100
"""Maximum number of versions that `read_versions` returns."""

ReadVersions = Callable[[str], dict[str, Any]]
"""A function that returns the result of `read_versions` for the recipe of a given name.

Raises LookupError for an unknown name.
"""


def read_versions(
    recipe: LoadedRecipe, keys: SigningKeys, settings: Settings, entry: Entry | None = None
) -> dict[str, Any]:
    """Return `{"versioning": ..., "versions": [...]}` with the newest MOST versions, newest first.

    Without the versioning `append_sha` there are no versions. They have the form of `svc history --json`. Reads the log
    of versions but no artifact, so a version without a line in the log has no score and no time of training, unless
    `entry` serves it. Raises ArtifactError.
    """
    versioning = recipe.recipe.output.versioning
    if versioning != "append_sha":
        return {"versioning": versioning, "versions": []}
    served = entry and entry.served
    # Its header is verified and in memory, so the live version costs no read. Others have facts only by the log.
    headers = {served.model_version.removeprefix("sha256:")[:8]: served.header} if served else {}
    history = Versions(recipe.output_uri, keys, settings, recipe=recipe.recipe.name).history(headers)
    return {"versioning": versioning, "versions": [version.as_fields() for version in history[:MOST]]}
