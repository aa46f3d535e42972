"""Convert any column of times to nanoseconds since 1970, and explain rows without a usable time or id."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from svc.errors import TimeMixture, TimeUnitRequired

Weights = NDArray[np.float64]
BAD_TIME = np.iinfo(np.int64).min
"""The value of a time that is missing, unreadable or out of range."""
NO_START = np.iinfo(np.int64).max
"""A start of training that is later than every row, for callers that need no check for times in the future."""

_DATES = (pd.Timestamp.min.tz_localize("UTC"), pd.Timestamp.max.tz_localize("UTC"))
"""The first and the last date that int64 holds in nanoseconds since 1970, in the years 1677 and 2262."""
_MIDNIGHT = re.compile(r" 00:00:00(?:\.0{1,9})?$")
"""The end of a date as text if its column holds dates with clock times."""
_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


_MOST_STRAYS = 0.01
"""Largest share of numbers in a column of dates, or of dates in a column of numbers, that are dropped as typing errors.
If a unit is given, a column with more is refused, because its format is unclear.
"""


def time_column(frame: pd.DataFrame, names: Sequence[str]) -> pd.Series:
    """Return the column of times, or the texts of a column of dates and one of clock times, joined by a blank.

    A joined value is missing if one of its parts is.
    """
    if len(names) == 1:
        return frame[names[0]]
    parts = []
    for name in names:
        values = frame[name].astype("category").cat
        # A column of dates is one of timestamps at midnight in pandas. No clock time has a blank before it.
        texts = pa.array([_MIDNIGHT.sub("", str(value)) for value in values.categories], pa.string())
        codes = values.codes.to_numpy()
        parts.append(texts.take(pa.array(codes, mask=codes < 0)))
    joined = pc.binary_join_element_wise(*parts, " ").dictionary_encode()
    names_of_times = joined.dictionary.to_numpy(zero_copy_only=False)
    times = pd.Categorical.from_codes(joined.indices.fill_null(-1), names_of_times)
    return pd.Series(times, index=frame.index)


def to_nanoseconds(column: pd.Series, unit: str | None, weights: Weights | None = None) -> NDArray[np.int64]:
    """Return the times of `column` in nanoseconds since 1970, UTC, (n,), with BAD_TIME for a value that is no time.

    - `unit` is the unit of numbers: s, ms, us or ns. If it is None, a column of a numeric type counts as ns.
      Or it is the format of texts, such as %d.%m.%Y. Then a number is the text of its digits.
    - Dates and times without a time zone count as UTC.
    - Text is read as ISO 8601, or as numbers if a unit is given and no more rows have dates than numbers.
    - `weights` has the number of rows for each value of `column`, if `column` has only the distinct values of a longer
      column. If it is None, each value is one row.

    Raise TimeMixture if text has numbers and dates, each in more than one percent of the readable rows, and a unit is
    given. Raise TimeUnitRequired if more rows of a text have numbers than dates, and no unit is given.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return _from_categories(column, unit)
    if _is_format(unit):
        return _from_dates(column.astype(str).where(column.notna()), unit)
    if pd.api.types.is_numeric_dtype(column.dtype):
        return _from_numbers(column, unit or "ns")
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _from_dates(column)
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return np.full(len(column), BAD_TIME)
    return _from_text(column, unit, np.ones(len(column)) if weights is None else weights)


def as_numbers(column: pd.Series) -> NDArray[np.float64]:
    """Return the numbers of a column of any type, (n,), with NaN for any other value."""
    plain = column.astype(object) if isinstance(column.dtype, pd.CategoricalDtype) else column
    numbers: NDArray[np.float64] = pd.to_numeric(plain, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return numbers


def usual_bounds(times: NDArray[np.int64]) -> tuple[int, int]:
    """Return the times between which `times`, (n,) with n > 0, usually lie.

    At each end, one row and another one for each 1,000 rows are left out. So no single row moves a bound further than
    to the next row. The earliest and the latest time are no such bounds: one row of a wrong clock made a learned order
    of film ratings worse than none (ndcg@20 .151 → .094).
    """
    n_outside = min(1 + len(times) // 1000, len(times) - 1)
    # A partition is linear in the rows. A sort is not.
    parts = np.partition(times, (n_outside, len(times) - 1 - n_outside))
    return int(parts[n_outside]), int(parts[-1 - n_outside])


def reference_time(times: NDArray[np.int64], started_ns: int) -> int:
    """Return the time from which ages count, in nanoseconds since 1970.

    It is the usual latest of `times`, (n,) (see `usual_bounds`). If this is after `started_ns`, the start of the
    training, it is the latest time that is not. If all times are in the future, return `started_ns`.
    """
    if not len(times):
        return started_ns
    latest = usual_bounds(times)[1]
    if latest > started_ns:
        return int(times.max(where=times <= started_ns, initial=BAD_TIME)) if times.min() <= started_ns else started_ns
    return latest


def from_reference(times: NDArray[np.int64], reference: int) -> NDArray[np.int64]:
    """Return nanoseconds from `reference` to each of `times`, (n,), clipped to the range of int64."""
    bounds = np.iinfo(np.int64)
    # Clipped before subtracting, because int64 wraps around silently.
    return np.clip(times, max(reference - bounds.max, bounds.min), min(reference + bounds.max, bounds.max)) - reference


def _from_text(column: pd.Series, unit: str | None, weights: Weights) -> NDArray[np.int64]:
    numbers = pd.to_numeric(column, errors="coerce")
    numeric = numbers.notna().to_numpy()
    # Without numbers, because 2024 would be read as a year and not in its unit.
    dates = _from_dates(column if unit is None else column.mask(numeric))
    dated = dates != BAD_TIME
    if unit is None:
        if weights[numeric & ~dated].sum() > weights[dated].sum():
            raise TimeUnitRequired(
                f"the time column holds numbers as text, such as {_examples(column, numeric & ~dated)}: "
                "say their unit in schema.time_unit (s, ms, us or ns)."
            )
        return dates
    n_numeric, n_dated = float(weights[numeric].sum()), float(weights[dated].sum())
    if min(n_numeric, n_dated) > _MOST_STRAYS * (n_numeric + n_dated):
        raise TimeMixture(
            f"the time column holds numbers in {n_numeric:.0f} rows, such as {_examples(column, numeric)}, and dates "
            f"in {n_dated:.0f}, such as {_examples(column, dated)}: write all of them in one form."
        )
    return dates if n_dated > n_numeric else _from_numbers(numbers, unit)


def _examples(column: pd.Series, which: NDArray[np.bool_]) -> list[str]:
    return [str(value)[:40] for value in column[which].head(3)]


def _from_numbers(column: pd.Series, unit: str) -> NDArray[np.int64]:
    scale = _NANOSECONDS[unit]
    limit = (np.iinfo(np.int64).max - 1) // scale
    if pd.api.types.is_integer_dtype(column.dtype) and not column.hasnans:
        whole = column.to_numpy(dtype=np.int64)
        usable = (whole <= limit) & (whole >= -limit)
        return np.where(usable, whole * scale, BAD_TIME)  # other products wrap around silently, and are not taken
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    # Strictly less, because the limit may round up to a float that int64 cannot hold.
    usable = np.isfinite(values) & (np.abs(values) < float(limit))
    return np.where(usable, (np.where(usable, values, 0.0) * scale).astype(np.int64), BAD_TIME)


def _from_categories(column: pd.Series, unit: str | None) -> NDArray[np.int64]:
    codes = column.cat.codes.to_numpy()
    categories = column.cat.categories
    if not len(categories):
        return np.full(len(codes), BAD_TIME)
    weights = np.bincount(codes[codes >= 0], minlength=len(categories)).astype(np.float64)
    values = to_nanoseconds(pd.Series(categories), unit, weights)
    return np.where(codes >= 0, values[codes], BAD_TIME)


def _is_format(unit: str | None) -> TypeGuard[str]:
    return unit is not None and "%" in unit


def _from_dates(column: pd.Series, form: str = "ISO8601") -> NDArray[np.int64]:
    dates = pd.to_datetime(column, utc=True, errors="coerce", format=form)
    try:
        # pandas 3 reads 9999-12-31 in a coarser unit, which nanoseconds cannot hold.
        in_nanoseconds = dates.dt.as_unit("ns")
    except pd.errors.OutOfBoundsDatetime:
        in_nanoseconds = dates.where(dates.between(*_DATES)).dt.as_unit("ns")
    # NaT is the least int64, which is BAD_TIME.
    return in_nanoseconds.to_numpy(dtype="datetime64[ns]").view(np.int64)


Rows = NDArray[np.int64] | None
"""The position of each row in the source, (n,), or None if all rows of the source are there."""
MANY = 0.05
"""A training warns if more than this share of rows has no usable id or time."""

_PLAUSIBLE_S = (631_152_000.0, 4_102_444_800.0)  # 1990 to 2100
_YEARS = (1900, 2100)
_SPREADSHEET_DAYS = (20_000, 75_000)
"""Days since 1899-12-30, from 1954 to 2105."""
_SHOWN_CHARACTERS = 40
_DAYS = (
    *("%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%Y/%m/%d", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")


def blank_ids(columns: dict[str, NDArray[np.bool_]], positions: Rows = None) -> str:
    """Return the message for blank ids, with their number and the first row for each id column that has any.

    `columns` has a mask of the blank rows for each id column.
    """
    counts = {name: int(np.count_nonzero(blank)) for name, blank in columns.items()}
    descriptions = [
        f"{name!r} is blank in {n} rows (first: data row {_data_row(_first(columns[name]), positions)})"
        for name, n in counts.items()
        if n
    ]
    return "the id column " + ", the id column ".join(descriptions)


def bad_times(column: pd.Series, bad: NDArray[np.bool_], name: str, unit: str | None, positions: Rows = None) -> str:
    """Return the message for unreadable times, with the value of the first such row."""
    value = column.iloc[_first(bad)]
    if column.isna().iloc[_first(bad)]:
        return f"the time column {name!r} is blank in data row {_data_row(_first(bad), positions)}"
    shown = _first_value(column, bad, name, positions)
    if unit is None:
        return f"{shown}, which is no ISO 8601 date or time, such as 2024-05-31T12:00:00Z{_format_hint(column, value)}"
    if _is_format(unit):
        return f"{shown}, which is not of the form {unit!r} (schema.time_format)"
    hint = _unit_hint(value) or _format_hint(column, value, " and no time_unit")
    return f"{shown}, which is not a time in {unit}{hint}"


def _format_hint(column: pd.Series, value: Any, more: str = "") -> str:
    """Return a hint at the format of `value`, if all texts of `column` have it, or "".

    Name two formats if day and month may be in either order.
    """
    forms = [f"{day}{clock}" for day in _DAYS for clock in _CLOCKS]
    # The one value first, because few of the 75 forms fit it, and each costs a pass over the column.
    for texts in (pd.Series([value]), column.dropna()):
        forms = forms and [form for form in forms if (_from_dates(texts.astype(str), form) != BAD_TIME).all()]
    return f" (set schema.time_format: {' or '.join(map(json.dumps, forms))}{more})" if forms else ""


def future_times(column: pd.Series, future: NDArray[np.bool_], name: str, positions: Rows = None) -> str:
    """Return the message for times after the start of the training, with the value of the first such row."""
    return f"{_first_value(column, future, name, positions)}, which is later than the start of the training"


def _first_value(column: pd.Series, mask: NDArray[np.bool_], name: str, positions: Rows) -> str:
    row = _first(mask)
    shown = repr(str(column.iloc[row])[:_SHOWN_CHARACTERS])
    return f"the time column {name!r} holds {shown} in data row {_data_row(row, positions)}"


def latest_is_old(times: NDArray[np.int64]) -> bool:
    """Return whether all readable `times`, (n,) in nanoseconds since 1970, lie before 1990, and there is one."""
    return BAD_TIME < int(times.max(initial=BAD_TIME)) < _PLAUSIBLE_S[0] * 1_000_000_000


def odd_years(column: pd.Series, unit: str | None) -> str | None:
    """Return a note if the first time is a number that lies between 1990 and 2100 in another unit than `unit`.

    Return None if it also lies there in `unit`, or lies there in no unit.
    """
    first = next(iter(column.dropna()), None)
    fitting = _fitting_units(first)
    if not fitting or unit in fitting:
        return None
    if unit is None:
        return f"{first} is a time near today in {fitting[0]}"
    return f"{first} is far from today when it counts {unit}{_unit_hint(first)}"


def calendar_hint(column: pd.Series) -> str | None:
    """Return a note on numbers that count no seconds: days as 20240131, years, or days of a spreadsheet, else None.

    Numbers that a spreadsheet rounded, as 1.70407E+09, get one, too. The note has the lines that mend them. All numbers
    of the column must fit.
    """
    plain = column.dropna()
    plain = plain.astype(object) if isinstance(plain.dtype, pd.CategoricalDtype) else plain
    if not len(plain) or not (pd.api.types.is_numeric_dtype(plain.dtype) or pd.api.types.is_object_dtype(plain.dtype)):
        return None
    numbers = as_numbers(plain)
    low, high = float(numbers.min()), float(numbers.max())
    shown = f"{numbers[0]:.0f}"
    if (numbers % 1 == 0).all():
        days, months = numbers % 100, numbers // 100 % 100
        are_days = (days >= 1).all() and (days <= 31).all() and (months >= 1).all() and (months <= 12).all()
        if low >= _YEARS[0] * 10_000 and high < (_YEARS[1] + 1) * 10_000 and are_days:
            return f'{shown} is a day of the calendar: write `schema.time_format: "%Y%m%d"` and no time_unit'
        if low >= _YEARS[0] and high <= _YEARS[1]:
            return f'{shown} is a year: write `schema.time_format: "%Y"` and no time_unit'
    if 1e9 <= low < high < 1e20 and (numbers % 10.0 ** (math.floor(math.log10(low)) - 5) == 0).all():
        return (
            f"all times have six digits, such as {low:.5E}, as a spreadsheet rounds them, so the order of choices "
            "within hours is lost: format the column as a number without decimals and save it again"
        )
    if low >= _SPREADSHEET_DAYS[0] and high <= _SPREADSHEET_DAYS[1]:
        return (
            f"{shown} is a day as spreadsheets count them: save the column as dates, such as 2024-01-31, or read it by "
            f"a query, `SELECT ({column.name} - 25569) * 86400 AS {column.name}, ...`, with `schema.time_unit: s`"
        )
    return None


def fitting_unit(value: float) -> str | None:
    """Return a unit in which `value` is a time between 1990 and 2100, or None if it is in none."""
    return next(iter(_fitting_units(value)), None)


def _unit_hint(value: Any) -> str:
    fitting = _fitting_units(value)
    return f" (set schema.time_unit: {fitting[0]}?)" if fitting else ""


def _fitting_units(value: Any) -> list[str]:
    """Return the units in which `value` is a time between 1990 and 2100, or none if it is no number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return []
    first, last = _PLAUSIBLE_S
    return [unit for unit, scale in _NANOSECONDS.items() if first <= number * (scale / 1e9) <= last]


def _data_row(row: int, positions: Rows) -> int:
    """Return the number of a row in the source, counted from 1."""
    return 1 + (row if positions is None else int(positions[row]))


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))
