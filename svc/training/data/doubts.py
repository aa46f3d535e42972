"""Warnings about rows that can be trained on, but probably have another meaning than the recipe assumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pandas as pd

from svc.errors import MinDataViolation
from svc.recipe.schema import Recipe
from svc.training.data.dropped import looks_like_time
from svc.training.data.interactions import Interactions
from svc.training.data.weights import of_numbers

MANY_REPEATS: Final = 0.1
"""Share of rows that repeat an earlier choice from which a training warns."""
FAR_MORE: Final = 3
"""Ratio of items to users above which a single suspicious column name suffices for the warning of swapped columns."""
_PEOPLE = re.compile("user|customer|client|visitor|member|reader|account|buyer|listener|viewer|session", re.IGNORECASE)
_THINGS = re.compile("item|product|article|sku|book|movie|film|song|track|title|asin|isbn", re.IGNORECASE)


class Doubt(NamedTuple):
    """A warning: its code, the field of the recipe that it is about, and its text."""

    code: str
    field: str
    message: str


def doubts(frame: pd.DataFrame, interactions: Interactions, recipe: Recipe) -> Iterator[Doubt]:
    """Yield the warnings about the rows of `frame`, which became `interactions`.

    Raises MinDataViolation if no row has a weight.
    """
    yield from _repeats(interactions, recipe)
    yield from _swapped_columns(interactions, recipe)
    if recipe.schema_.weight_column is not None:
        yield from _weights(frame[recipe.schema_.weight_column], recipe.schema_.weight_column)


def _repeats(interactions: Interactions, recipe: Recipe) -> Iterator[Doubt]:
    """Warn of many repeated choices, unless the recipe says how to join them."""
    decided = "repeats" in recipe.training.model_fields_set or "dedup" in recipe.cleansing.model_fields_set
    n_repeats = interactions.dropped.get("duplicates", 0)
    share = n_repeats / max(n_repeats + len(interactions), 1)
    if not decided and share >= MANY_REPEATS:
        yield Doubt(
            "rows_repeat",
            "training.repeats",
            f"{share:.0%} of the rows repeat an earlier choice of their user and count once: `training.repeats: true` "
            "recommends chosen items again, `cleansing.dedup: count` weighs them, `dedup: keep_last` keeps it so",
        )


def _swapped_columns(interactions: Interactions, recipe: Recipe) -> Iterator[Doubt]:
    """Warn if the user and item columns seem to be swapped, judging by their names and their numbers of ids."""
    schema = recipe.schema_
    user_is_thing = bool(_THINGS.search(schema.user_column)) and not _PEOPLE.search(schema.user_column)
    item_is_person = bool(_PEOPLE.search(schema.item_column)) and not _THINGS.search(schema.item_column)
    n_users, n_items = len(interactions.user_ids), len(interactions.item_ids)
    if (user_is_thing and item_is_person) or ((user_is_thing or item_is_person) and n_items > FAR_MORE * n_users):
        yield Doubt(
            "columns_swapped",
            "schema",
            f"user_column is {schema.user_column!r} with {n_users} ids, item_column {schema.item_column!r} with "
            f"{n_items}: are they swapped? Items are recommended to users",
        )


def _weights(column: pd.Series, name: str) -> Iterator[Doubt]:
    """Warn of weights that look like times, and of values that are no weights. Raise if there are no others."""
    values = of_numbers(column).values
    n_unusable = int(pd.isna(values).sum())
    if n_unusable == len(values) > 0:
        raise MinDataViolation(
            f"no row has a {name!r} above 0: is it the weight? Leave schema.weight_column out, or name another column"
        )
    if n_unusable:
        yield Doubt(
            "weights_unusable",
            "schema.weight_column",
            f"{n_unusable} of {len(values)} rows are dropped, since their {name!r} is no number above 0: "
            "`cleansing.where` leaves out rows that are no choices, `cleansing.hide` also hides their items",
        )
    if looks_like_time(median := pd.Series(values).median()):
        yield Doubt(
            "weights_look_like_times",
            "schema.weight_column",
            f"{name!r} holds numbers around {median:.3g}, which look like times: is it `schema.time_column`?",
        )
