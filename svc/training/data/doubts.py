"""Warn of data that can be trained on, but probably has another meaning than the recipe assumes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

import pandas as pd

from svc.errors import MinDataViolation, SvcError
from svc.recipe.filter_tree import NUMBER, parse_row_filter
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing, InteractionSchema, Recipe
from svc.recipe.source_options import BUILT_IN_OPTIONS, Located
from svc.sources.base import SourceContext, build_source
from svc.training.data.interactions import Interactions, check_unused_times
from svc.training.data.times import looks_like_time, odd_years, time_column
from svc.training.data.weights import of_numbers

MANY_REPEATS: Final = 0.1
"""A training warns if at least this share of rows repeats an earlier choice."""
MANY_UNLISTED: Final = 0.05
"""Share of the rows with an event that has no weight, above which a training warns."""
MOST_EVENTS: Final = 10
"""The most events that a warning names."""
FAR_MORE: Final = 3
"""Ratio of items to users above which one suspicious column name suffices for the warning of swapped columns."""
SAMPLED_ROWS: Final = 1000
"""Number of first rows in which `rating_hint` looks for a rating."""
MOST_VALUES: Final = 21
"""Maximum number of distinct values of a column that counts as a rating, as many as from 0 to 10 in steps of a half."""
LARGEST_VALUE: Final = 100
"""Largest value of a column that counts as a rating."""
_LOW_SHARE: Final = 0.6
"""Share of the distinct ratings, the lowest, that the example filter in a hint drops. Of five stars it keeps 4 and 5.
"""
_PEOPLE = re.compile("user|customer|client|visitor|member|reader|account|buyer|listener|viewer|session", re.IGNORECASE)
_THINGS = re.compile("item|product|article|sku|book|movie|film|song|track|title|asin|isbn", re.IGNORECASE)


class Doubt(NamedTuple):
    """A warning: its code, the field of the recipe that it is about, and its text."""

    code: str
    field: str
    message: str


def doubts(
    frame: pd.DataFrame, interactions: Interactions, recipe: Recipe, *, is_sample: bool = False
) -> Iterator[Doubt]:
    """Yield the warnings about the rows of `frame`, which became `interactions`. A sample is only the first rows.

    Raise MinDataViolation if the recipe has a weight column in which no number is above 0, and the errors of
    `check_unused_times` for a time column that the training does not use.
    """
    yield from _time_unit(frame, interactions, recipe.schema_)
    yield from _repeats(interactions, recipe)
    yield from _events(interactions, recipe, is_sample=is_sample)
    yield from _swapped_columns(interactions, recipe)
    if recipe.schema_.weight_column is not None:
        yield from _weights(frame[recipe.schema_.weight_column], recipe.schema_.weight_column)


def _time_unit(frame: pd.DataFrame, interactions: Interactions, schema: InteractionSchema) -> Iterator[Doubt]:
    """Warn if the unit of the time column seems wrong, also if the training does not use this column."""
    if schema.time_column is None:
        return
    if interactions.times is None:
        check_unused_times(frame, schema)
    message = schema.time_unit and odd_years(time_column(frame, schema.time_columns), schema.time_unit)
    if message:
        yield Doubt("time_unit_doubtful", "schema.time_unit", message)


def _repeats(interactions: Interactions, recipe: Recipe) -> Iterator[Doubt]:
    """Warn of many repeated choices, unless the recipe says how to join them."""
    decided = "repeats" in recipe.training.model_fields_set or "dedup" in recipe.cleansing.model_fields_set
    n_repeats = interactions.dropped.get("duplicates", 0)
    share = n_repeats / max(n_repeats + len(interactions), 1)
    if not decided and share >= MANY_REPEATS:
        # A count would lose the weights of events.
        weighs, kept = ("sum", "max") if recipe.schema_.event_column is not None else ("count", "keep_last")
        yield Doubt(
            "rows_repeat",
            "training.repeats",
            f"{share:.0%} of the rows repeat an earlier choice of their user and count once: `training.repeats: true` "
            f"recommends chosen items again, `cleansing.dedup: {weighs}` weighs them, `dedup: {kept}` keeps it so",
        )


def _events(interactions: Interactions, recipe: Recipe, *, is_sample: bool) -> Iterator[Doubt]:
    """Warn if all of several events hide their items, and if many rows or a listed event are of no use."""
    events, counts = recipe.cleansing.event_values, interactions.events
    best = max(events, key=events.__getitem__, default="")
    undecided = recipe.cleansing.seen is None and recipe.training.target is None and not recipe.training.repeats
    if undecided and len(set(events.values())) > 1:
        weakest = min(events, key=events.__getitem__)
        yield Doubt(
            "events_all_seen",
            "cleansing.seen",
            f"every event hides its item and is judged: an item with only a {weakest!r} is never recommended to that "
            f"user. If only {best!r} should do this, add `cleansing: {{seen: [{best}]}}` and "
            f"`training: {{target: [{best}]}}`",
        )
    listed = recipe.cleansing.event_weights or {}
    others = {event: count for event, count in counts.items() if event not in listed}
    absent = [] if is_sample or not counts else [event for event in listed if event not in counts]
    if sum(others.values()) > MANY_UNLISTED * sum(counts.values()) or absent:
        texts = [f"rows of events without a weight are dropped: {count_events(others)}"] if others else []
        texts += [f"no row is of {', '.join(map(repr, absent))}"] if absent else []
        yield Doubt("unlisted_events", "cleansing.event_weights", f"{'; '.join(texts)}: compare the spelling")


def count_events(counts: Mapping[str, int]) -> str:
    """Return the first events with their numbers of rows."""
    shown = [f"{event!r:.40} ({count:,})" for event, count in list(counts.items())[:MOST_EVENTS]]
    return ", ".join([*shown, *(["..."] if len(counts) > MOST_EVENTS else [])])


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
    """Warn of weights that look like times, and of values that are no finite numbers above 0.

    Raise MinDataViolation if no value is a finite number above 0.
    """
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
            f"{n_unusable} of {len(values)} rows are dropped, since their {name!r} is not a number above 0: "
            "`cleansing.where` leaves out rows that are no choices, `cleansing.hide` also hides their items",
        )
    if looks_like_time(median := pd.Series(values).median()):
        yield Doubt(
            "weights_look_like_times",
            "schema.weight_column",
            f"{name!r} holds numbers around {median:.3g}, which look like times: is it `schema.time_column`?",
        )


def rating_hint(loaded: LoadedRecipe, context: SourceContext) -> Doubt | None:
    """Return a hint about the first column that looks like a rating and is not used well, or None without one.

    Such a column is not used by the recipe, or is only compared with numbers by `cleansing.where` and not by
    `cleansing.hide`. `context` has the columns that the recipe uses.

    Only the first rows are read, and only if the source has a `sample` method and is not remote. From a remote store or
    a database, this would cost more than the hint is worth.
    """
    spec = loaded.recipe.source
    if spec.type in BUILT_IN_OPTIONS:
        options = BUILT_IN_OPTIONS[spec.type].model_validate(spec.options)
        if not isinstance(options, Located) or options.location.is_remote:
            return None
    source = build_source(spec, replace(context, columns=None, progress=None))
    sample = getattr(source, "sample", None)
    if sample is None:
        return None
    with suppress(SvcError):  # the training reads the table next and reports the error
        frame: pd.DataFrame | None = sample(SAMPLED_ROWS)
        recipe = loaded.recipe
        used = {*(context.columns or ()), *recipe.schema_.time_columns}
        if frame is not None:
            not_hidden = _columns_not_hidden(recipe.cleansing)
            hints = (
                _hint(frame[name], str(name), is_used=name in used) for name in frame if name not in used - not_hidden
            )
            return next((hint for hint in hints if hint is not None), None)
    return None


def _columns_not_hidden(cleansing: Cleansing) -> set[str]:
    """Return the columns that `cleansing.where` compares with numbers and that `cleansing.hide` does not use."""
    if cleansing.where is None:
        return set()
    where = parse_row_filter(cleansing.where)
    hidden = frozenset() if cleansing.hide is None else parse_row_filter(cleansing.hide).compared
    return {name for name in where.compared - hidden if where.kinds[name] == NUMBER}


def _hint(column: pd.Series, name: str, *, is_used: bool) -> Doubt | None:
    """Return the hint about a column, or None if its values do not look like ratings.

    `is_used` is True if `cleansing.where` uses the column, and False if the recipe does not use it.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return None
    numbers = pd.to_numeric(column.dropna().astype(str), errors="coerce")
    values = sorted(set(numbers))
    is_rating = 1 < len(values) <= MOST_VALUES and not numbers.isna().any() and values[0] >= 0
    if not is_rating or values[-1] > LARGEST_VALUE:
        return None
    if is_used:
        return Doubt(
            "rating_not_hidden",
            "source",
            f"`cleansing.where` compares the column {name!r} and forgets the rows that it drops, so items that a user "
            f"rated low are recommended to them; `cleansing.hide: {{{name}: {{lt: ...}}}}` with the same bound hides "
            "them",
        )
    high = values[int(_LOW_SHARE * len(values))]
    return Doubt(
        "rating_unused",
        "source",
        f"the column {name!r} holds {len(values)} numbers from {values[0]:g} to {values[-1]:g} and is not used: every "
        f"row counts as a choice; `cleansing.where: {{{name}: {{gte: {high:g}}}}}` keeps the high ones and "
        f"`cleansing.hide: {{{name}: {{lt: {high:g}}}}}` never recommends the others to that user, "
        f"`schema.weight_column: {name}` weighs them",
    )
