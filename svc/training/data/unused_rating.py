"""Finds a numeric column that looks like a rating and that the recipe does not use."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.recipe.source_options import BUILT_IN_OPTIONS, Located
from svc.sources.base import SourceContext, build_source

if TYPE_CHECKING:
    import pandas

SAMPLED_ROWS: Final = 1000
MOST_VALUES: Final = 21
"""Distinct values of a rating at most: 0 to 10 in steps of a half."""
LARGEST_VALUE: Final = 100
_HIGH_SHARE: Final = 0.6
"""The example keeps the values above this share of the distinct ones: 4 and 5 of five stars."""


def unused_rating(loaded: LoadedRecipe, context: SourceContext) -> str | None:
    """A sentence about the first such column of the interaction table, and what the recipe could do with it.

    `context` names the columns that are used. Only the first rows are read, and only of a local file or a table in
    memory: another request to a store or another query would cost more than the hint is worth. None where there is no
    such column.
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
    with suppress(SvcError):  # the training reads the table next, and says what is wrong with it
        frame: pandas.DataFrame | None = sample(SAMPLED_ROWS)
        schema = loaded.recipe.schema_
        used = {*(context.columns or ()), schema.time_column}
        return None if frame is None else _described(frame, used)
    return None


def _described(frame: pandas.DataFrame, used: set[str | None]) -> str | None:
    import pandas

    for name in frame.columns:
        if name in used or isinstance(frame[name].dtype, pandas.CategoricalDtype):
            continue
        numbers = pandas.to_numeric(frame[name].dropna().astype(str), errors="coerce")
        values = sorted(set(numbers))
        is_rating = 1 < len(values) <= MOST_VALUES and not numbers.isna().any() and values[0] >= 0
        if is_rating and values[-1] <= LARGEST_VALUE:
            high = values[int(_HIGH_SHARE * len(values))]
            held = f"{len(values)} numbers from {values[0]:g} to {values[-1]:g}"
            return (
                f"the column {name!r} holds {held} and is not used: every row counts as a choice; "
                f"`cleansing.where: {{{name}: {{gte: {high:g}}}}}` keeps the high ones, "
                f"`schema.weight_column: {name}` weighs them"
            )
    return None
