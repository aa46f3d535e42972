"""Warn of data that can be trained on, but probably has another meaning than the recipe assumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pandas as pd

from svc.errors import MinDataViolation, SvcError
from svc.recipe.filter_tree import NUMBER
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing, InteractionSchema, Recipe
from svc.recipe.source_options import BUILT_IN_OPTIONS, Located
from svc.sources.base import SourceContext, build_source
from svc.training.data.id_doubts import PLACEHOLDERS, yaml_key
from svc.training.data.interactions import Interactions, check_unused_times
from svc.training.data.times import (
    calendar_hint,
    fitting_unit,
    latest_is_old,
    odd_years,
    time_column,
    to_nanoseconds,
)
from svc.training.data.weights import of_numbers
from svc.training.data.where import KeptRows

MANY_REPEATS: Final = 0.1
"""A training warns if at least this share of rows repeats an earlier choice."""
MANY_UNLISTED: Final = 0.05
"""Share of the rows with an event that has no weight, above which a training warns."""
MOST_EVENTS: Final = 10
"""The most events that a warning names."""
FAR_MORE: Final = 3
"""Ratio of items to users above which one suspicious column name suffices for the warning of swapped columns."""
SAMPLED_ROWS: Final = 1000
"""Number of first rows in which `column_hints` looks for columns."""
MOST_VALUES: Final = 21
"""Maximum number of distinct values of a column that counts as a rating, as many as from 0 to 10 in steps of a half."""
LARGEST_VALUE: Final = 100
"""Largest value of a column that counts as a rating. Its median is above 1, unless it only holds 0 and 1 or the like:
counts are mostly 1 with a long tail, and a filter for their upper half would drop nearly all rows."""
FEW_BELOW: Final = 0.2
"""Share of numbers below 0 under which these are returns among amounts."""
HEAVY_TAIL: Final = 20
"""Ratio of the 99th percentile of raw weights to their median above which a training warns."""
TOP: Final = 0.99
_DECIMAL: Final = re.compile(r"\s*[+-]?[0-9]*,(?![0-9]{3}\s*$)[0-9]+\s*")
"""A number with a decimal comma. In 1,234 the comma may group thousands."""
_CELLS: Final = 1000  # `label_doubts` looks at these: of more names, even the parts repeat
_SHOWN_CHARACTERS = 40
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


def doubts(rows: KeptRows, interactions: Interactions, recipe: Recipe, *, is_sample: bool = False) -> Iterator[Doubt]:
    """Yield the warnings about `rows`, which became `interactions`. A sample is only the first rows.

    Raise MinDataViolation if the recipe has a weight column in which no number is above 0, and the errors of
    `check_unused_times` for a time column that the training does not use.
    """
    yield from _time_unit(rows.frame, interactions, recipe.schema_)
    yield from _repeats(interactions, recipe)
    yield from _events(interactions, recipe, is_sample=is_sample)
    yield from _swapped_columns(interactions, recipe)
    if not is_sample:  # the first rows of a large catalogue often have different items
        yield from _ids_of_rows(interactions, recipe, len(rows.frame))
    if recipe.schema_.weight_column is not None:
        is_raw = recipe.cleansing.weight_scale == "raw"
        column = rows.frame[recipe.schema_.weight_column]
        counting = column if rows.hides is None else column[~rows.hides]  # a hidden row needs no weight
        yield from _weights(counting, recipe.schema_.weight_column, is_raw=is_raw)


def _time_unit(frame: pd.DataFrame, interactions: Interactions, schema: InteractionSchema) -> Iterator[Doubt]:
    """Warn if the unit of the time column seems wrong, also if the training does not use this column."""
    if schema.time_column is None:
        return
    if interactions.times is None:
        check_unused_times(frame, schema)
    column, times = time_column(frame, schema.time_columns), interactions.times
    message = schema.time_unit and (calendar_hint(column) or odd_years(column, schema.time_unit))
    if times is None and not message:
        times = to_nanoseconds(column.head(SAMPLED_ROWS), schema.time_form)
    if not message and times is not None and latest_is_old(times):
        latest = pd.Timestamp(int(times.max())).date()
        message = (
            f"all times lie before 1990, the last on {latest}: correct schema.time_unit or schema.time_format, or "
            f"leave schema.time_column out if {schema.time_name!r} holds no times"
        )
    if message:
        yield Doubt("time_unit_doubtful", "schema.time_unit", message)


def _repeats(interactions: Interactions, recipe: Recipe) -> Iterator[Doubt]:
    """Warn of many repeated choices, unless the recipe says how to join them."""
    decided = "repeats" in recipe.training.model_fields_set or "dedup" in recipe.cleansing.model_fields_set
    n_repeats = interactions.dropped.get("duplicates", 0)
    share = n_repeats / max(n_repeats + len(interactions), 1)
    if not decided and share >= MANY_REPEATS:
        weighs = "sum" if recipe.schema_.is_weighted else "count"  # a count would lose the weights
        kept = "keep_last" if recipe.schema_.event_column is None else "max"
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
    key = yaml_key(best)
    undecided = recipe.cleansing.seen is None and recipe.training.target is None and not recipe.training.repeats
    if undecided and len(set(events.values())) > 1:
        weakest = min(events, key=events.__getitem__)
        yield Doubt(
            "events_all_seen",
            "cleansing.seen",
            f"every event hides its item and is judged: an item with only a {weakest!r} is never recommended to that "
            f"user. If only {best!r} should do this, add `cleansing: {{seen: [{key}]}}` and "
            f"`training: {{target: [{key}]}}`",
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
            f"{n_items}: are they swapped? Items are recommended to users: `schema: {{user_column: "
            f"{yaml_key(schema.item_column)}, item_column: {yaml_key(schema.user_column)}}}`",
        )


def _ids_of_rows(interactions: Interactions, recipe: Recipe, n_rows: int) -> Iterator[Doubt]:
    """Warn if each row has another user or item, so that no choice tells anything about another one."""
    schema = recipe.schema_
    sides = {"user": (schema.user_column, interactions.user_ids), "item": (schema.item_column, interactions.item_ids)}
    for side, (name, ids) in sides.items():
        if len(ids) == n_rows >= 20:  # fewer rows may differ by chance
            yield Doubt(
                "ids_of_rows",
                f"schema.{side}_column",
                f"each of the {n_rows} rows has another id in {name!r}, as numbers of orders or rows are: name the "
                f"column of the {side}",
            )


def _weights(column: pd.Series, name: str, *, is_raw: bool) -> Iterator[Doubt]:
    """Warn of weights that look like times, of values that are no finite numbers above 0, and of raw heavy tails.

    Raise MinDataViolation if no value is a finite number above 0.
    """
    values, key = of_numbers(column).values, yaml_key(name)
    unusable = pd.isna(values)
    n_unusable = int(unusable.sum())
    texts = [text for text in column[unusable].dropna().astype(str).unique() if text.strip() and not _is_number(text)]
    expression = f"`SELECT CAST(REPLACE({name}, ',', '.') AS DOUBLE) AS {name}, ...`"
    as_text = f", such as the text {texts[0][:_SHOWN_CHARACTERS]!r}: write numbers with a point" if texts else ""
    is_decimal = texts and all(_DECIMAL.fullmatch(text) for text in texts)
    as_text += f", or read them by a query, {expression}" if is_decimal else ""
    if n_unusable == len(values) > 0:
        mend = as_text or ": is it the weight? Leave schema.weight_column out, or name another column"
        raise MinDataViolation(f"no row has a {name!r} above 0{mend}")
    if n_unusable:
        mend = as_text or (
            f": `cleansing.where: {{{key}: {{gt: 0}}}}` leaves them out, `cleansing.hide: {{{key}: {{lte: 0}}}}` also "
            "hides their items"
        )
        yield Doubt(
            "weights_unusable",
            "schema.weight_column",
            f"{n_unusable} of {len(values)} rows are dropped, since their {name!r} is not a number above 0{mend}",
        )
    unit = fitting_unit(median := pd.Series(values).median())
    if unit is not None:
        yield Doubt(
            "weights_look_like_times",
            "schema.weight_column",
            f"{name!r} holds numbers around {median:.3g}, which look like times: is it "
            f"`schema: {{time_column: {key}, time_unit: {unit}}}` without weight_column?",
        )
    # A quantile, because a single typing error makes any maximum large.
    top = pd.Series(values).quantile(TOP)
    if is_raw and top > HEAVY_TAIL * median:
        yield Doubt(
            "weights_heavy_tailed",
            "cleansing.weight_scale",
            f"the 99th percentile of {name!r}, {top:g}, is {top / median:.3g} times the median, {median:g}. Raw "
            "weights with such a tail make most models worse than none: `cleansing.weight_scale: search` tries scales",
        )


def _is_number(text: str) -> bool:
    return not pd.isna(pd.to_numeric(text, errors="coerce"))


def column_hints(loaded: LoadedRecipe, context: SourceContext) -> list[Doubt]:
    """Return hints about columns that the recipe does not use well: the first rating, and the first amounts below 0.

    A rating is not used by the recipe, or is only compared with numbers by `cleansing.where` and not by
    `cleansing.hide`. `context` has the columns that the recipe uses.

    Only the first rows are read, and only if the source has a `sample` method and is not remote. From a remote store or
    a database, this would cost more than the hints are worth.
    """
    spec = loaded.recipe.source
    if spec.type in BUILT_IN_OPTIONS:
        options = BUILT_IN_OPTIONS[spec.type].model_validate(spec.options)
        if not isinstance(options, Located) or options.location.is_remote:
            return []
    # All columns, because the hints are about those that the recipe does not name.
    source = build_source(spec, replace(context, columns=None, progress=None))
    sample = getattr(source, "sample", None)
    hints: dict[str, Doubt] = {}
    if sample is None:
        return []
    with suppress(SvcError):  # the training reads the table next and reports the error
        frame: pd.DataFrame | None = sample(SAMPLED_ROWS)
        if frame is None:
            return []
        used = {*(context.columns or ()), *loaded.recipe.schema_.time_columns}
        compared = _columns_not_hidden(loaded.recipe.cleansing)
        # A column that `cleansing.where` compares is looked at again, because it may hold ratings to hide.
        schema = loaded.recipe.schema_
        ids = [frame[name] for name in (schema.user_column, schema.item_column) if name in frame]
        for column in (column for name, column in frame.items() if name not in used - compared):
            if hint := _hint(column, str(column.name), ids, is_used=column.name in used):
                hints.setdefault(hint.code, hint)
    return list(hints.values())


def label_doubts(frame: pd.DataFrame, columns: Iterable[Any], field: str) -> Iterator[Doubt]:
    """Yield a hint for each column of a table whose cells seem to hold several labels each, as `a|b|c`.

    The column is `categorical`, or `multi_label` with a delimiter that no cell has. Labels are at most half as many as
    the distinct cells. Parts of names, such as `Austin, TX`, are more. Numbers are labels only between `|`: else they
    are parts of dates and decimals. `field` is the recipe's list of `columns`.
    """
    for column in [column for column in columns if column.kind in ("categorical", "multi_label")]:
        name = column.name
        texts = (cell.strip() for cell in frame[name] if isinstance(cell, str))
        # Distinct ones, because a common cell would outweigh all others.
        cells = [text for text in dict.fromkeys(texts) if text][:_CELLS]
        is_split = column.kind == "multi_label" and any(column.delimiter in cell for cell in cells)
        for delimiter in "" if is_split else "|;,/":
            labels = {label.strip() for cell in cells for label in cell.split(delimiter)} - {""}
            is_text = delimiter == "|" or not any(label[0] in "[{" or label.isdigit() for label in labels)
            if 0 < 2 * len(labels) <= len(cells) and is_text:
                cell = max(cells, key=lambda cell: cell.count(delimiter))
                line = f'`{{name: {yaml_key(name)}, kind: multi_label, delimiter: "{delimiter}"}}`'
                fault = f"each cell of {name!r} is one label, such as {cell!r:.60}"
                yield Doubt("labels_within_cells", field, f"{fault}; {line} in {field} splits it")
                break


def feature_doubts(frame: pd.DataFrame, columns: Iterable[Any], field: str) -> Iterator[Doubt]:
    """Yield the hints of `label_doubts`, and one for each numerical column with texts that are no numbers."""
    yield from label_doubts(frame, columns, field)
    for name in [column.name for column in columns if column.kind == "numerical"]:
        values = frame[name].dropna().astype(object)
        texts = values[pd.to_numeric(values, errors="coerce").isna()].astype(str)
        texts = texts[[bool(text.strip()) and text.strip().lower() not in PLACEHOLDERS for text in texts]]
        if len(texts):
            message = (
                f"{len(texts)} cells of {name!r} are no numbers and count as missing, such as {texts.iloc[0]!r:.60}"
            )
            yield Doubt("numbers_unreadable", field, f"{message}: write numbers with a point and without a unit")


def _columns_not_hidden(cleansing: Cleansing) -> set[str]:
    """Return the columns that `cleansing.where` compares with numbers and that `cleansing.hide` does not use."""
    where, hide = cleansing.where, cleansing.hide
    if where is None:
        return set()
    hidden = frozenset() if hide is None else hide.compared
    return {name for name in where.compared - hidden if where.kinds[name] == NUMBER}


def _describes(column: pd.Series, ids: pd.Series) -> bool:
    """Return whether the column has one value for each of the users or items `ids`, unlike a rating."""
    groups = column.groupby(ids, observed=True)
    return bool(groups.size().max() > 1 and groups.nunique().max() <= 1)


def _hint(column: pd.Series, name: str, ids: Sequence[pd.Series], *, is_used: bool) -> Doubt | None:
    """Return the hint about a column, or None if its values look neither like ratings nor like amounts.

    `ids` has the columns of users and items. `is_used` is True if `cleansing.where` uses the column, and False if the
    recipe does not use it.
    """
    # Sources return ids alone as categories.
    if isinstance(column.dtype, pd.CategoricalDtype):
        return None
    numbers = pd.to_numeric(column.dropna().astype(str), errors="coerce")
    if not len(numbers) or numbers.isna().any():
        return None
    values, key = sorted(set(numbers)), yaml_key(name)
    n_below = int((numbers < 0).sum())
    if 0 < n_below < FEW_BELOW * len(numbers):
        return None if is_used else _amounts_below_zero(name, n_below, len(numbers))
    median = float(numbers.median())
    is_count = (median <= 1 and values[-1] > 2) or (median == 0 and len(values) > 2)  # the second: mostly no discount
    is_rating = 1 < len(values) <= MOST_VALUES and values[0] >= 0 and values[-1] <= LARGEST_VALUE
    if not is_rating or is_count or any(_describes(column, own) for own in ids):
        return None
    if is_used:
        return Doubt(
            "rating_not_hidden",
            "source",
            f"`cleansing.where` compares the column {name!r} and forgets the rows that it drops, so items that a user "
            f"rated low are recommended to them; `cleansing.hide: {{{key}: {{lt: ...}}}}` with the same bound hides "
            "them",
        )
    high = values[int(_LOW_SHARE * len(values))]
    return Doubt(
        "rating_unused",
        "source",
        f"the column {name!r} holds {len(values)} numbers from {values[0]:g} to {values[-1]:g} and is not used: every "
        f"row counts as a choice; `cleansing.where: {{{key}: {{gte: {high:g}}}}}` keeps the high ones and "
        f"`cleansing.hide: {{{key}: {{lt: {high:g}}}}}` never recommends the others to that user, "
        f"`schema.weight_column: {key}` weighs them",
    )


def _amounts_below_zero(name: str, n_below: int, n_rows: int) -> Doubt:
    return Doubt(
        "amounts_below_zero",
        "source",
        f"the column {name!r} is below 0 in {n_below} of {n_rows} rows and above in the others, as for returns, and is "
        f"not used: every row counts as a choice; `cleansing.where: {{{yaml_key(name)}: {{gt: 0}}}}` drops these rows",
    )
