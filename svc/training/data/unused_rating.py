"""Find a numeric column that looks like a rating and that the recipe does not use, or does not hide by."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from svc.errors import SvcError
from svc.recipe.load import LoadedRecipe
from svc.recipe.row_filter import NUMBER, parse_row_filter
from svc.recipe.source_options import BUILT_IN_OPTIONS, Located
from svc.sources.base import SourceContext, build_source

if TYPE_CHECKING:
    import pandas

    from svc.recipe.schema import Cleansing

SAMPLED_ROWS: Final = 1000
MOST_VALUES: Final = 21
"""Most distinct values of a rating: 0 to 10 in steps of a half."""
LARGEST_VALUE: Final = 100
_HIGH_SHARE: Final = 0.6
"""The example keeps the values above this share of the distinct ones: 4 and 5 of five stars."""


@dataclass(frozen=True, slots=True)
class RatingHint:
    """A warning about a column and the keys that could use it, with its `code`."""

    code: str
    message: str


def rating_hint(loaded: LoadedRecipe, context: SourceContext) -> RatingHint | None:
    """Return a hint about the first rating column that the recipe does not use, or does not hide by.

    `context` names the columns that are used. Only the first rows are read, and only of a local file or a table in
    memory. Another request to a store or another query would cost more than the hint is worth. Return None if there is
    no such column.
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
        frame: pandas.DataFrame | None = sample(SAMPLED_ROWS)
        recipe = loaded.recipe
        used = {*(context.columns or ()), recipe.schema_.time_column}
        if frame is not None:
            not_hidden = _columns_not_hidden(recipe.cleansing)
            hints = (
                _hint(frame[name], str(name), is_used=name in used) for name in frame if name not in used - not_hidden
            )
            return next((hint for hint in hints if hint is not None), None)
    return None


def _columns_not_hidden(cleansing: Cleansing) -> set[str]:
    """Return the columns that `where` compares with numbers and that `hide` does not use."""
    if cleansing.where is None:
        return set()
    where = parse_row_filter(cleansing.where)
    hidden = frozenset() if cleansing.hide is None else parse_row_filter(cleansing.hide).compared
    return {name for name in where.compared - hidden if where.kinds[name] == NUMBER}


def _hint(column: pandas.Series, name: str, *, is_used: bool) -> RatingHint | None:
    """Return the hint about a column that is unused, or used by `where` alone.

    Return None if it is no rating.
    """
    import pandas

    if isinstance(column.dtype, pandas.CategoricalDtype):
        return None
    numbers = pandas.to_numeric(column.dropna().astype(str), errors="coerce")
    values = sorted(set(numbers))
    is_rating = 1 < len(values) <= MOST_VALUES and not numbers.isna().any() and values[0] >= 0
    if not is_rating or values[-1] > LARGEST_VALUE:
        return None
    if is_used:
        return RatingHint(
            "rating_not_hidden",
            f"`cleansing.where` compares the column {name!r} and forgets the rows that it drops, so what a user rated "
            f"low comes back to them; `cleansing.hide: {{{name}: {{lt: ...}}}}` with the same bound leaves it out",
        )
    high = values[int(_HIGH_SHARE * len(values))]
    return RatingHint(
        "rating_unused",
        f"the column {name!r} holds {len(values)} numbers from {values[0]:g} to {values[-1]:g} and is not used: every "
        f"row counts as a choice; `cleansing.where: {{{name}: {{gte: {high:g}}}}}` keeps the high ones and "
        f"`cleansing.hide: {{{name}: {{lt: {high:g}}}}}` never recommends the others to that user, "
        f"`schema.weight_column: {name}` weighs them",
    )
