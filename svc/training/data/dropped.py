"""Messages about unusable rows: the column, an example value, and the likely cause."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Rows = NDArray[np.int64] | None
"""(n,) the position of each row in the source, or None if the rows are all rows of the source."""
MANY = 0.05
"""Share of unusable rows from which a training warns. Duplicates are usable, because users may repeat a choice."""

_UNIT_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PLAUSIBLE_S = (631_152_000.0, 4_102_444_800.0)  # 1990 to 2100
_SHOWN_CHARACTERS = 40


def blank_ids(columns: dict[str, NDArray[np.bool_]], positions: Rows = None) -> str:
    """Return the message for blank ids.

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
    value, row = column.iloc[_first(bad)], _data_row(_first(bad), positions)
    if pd.isna(value):
        return f"the time column {name!r} is blank in data row {row}"
    shown = repr(str(value)[:_SHOWN_CHARACTERS])
    if unit is None:
        text = "no ISO 8601 date or time, such as 2024-05-31T12:00:00Z"
        return f"the time column {name!r} holds {shown} in data row {row}, which is {text}"
    where = f"the time column {name!r} holds {shown} in data row {row}"
    return f"{where}, which is no time in {unit}{_unit_hint(value)}"


def future_times(column: pd.Series, future: NDArray[np.bool_], name: str, positions: Rows = None) -> str:
    """Return the message for times after the start of the training, with the value of the first such row."""
    row = _data_row(_first(future), positions)
    shown = repr(str(column.iloc[_first(future)])[:_SHOWN_CHARACTERS])
    return f"the time column {name!r} holds {shown} in data row {row}, which is later than the start of the training"


def odd_years(column: pd.Series, unit: str | None) -> str | None:
    """Return a warning if the first time is plausible only in another unit, else None."""
    times = column.dropna()
    if unit is None or times.empty or _number(times.iloc[0]) is None:
        return None
    value = float(times.iloc[0])
    if _is_plausible(value, unit):
        return None
    hint = _unit_hint(value)
    return f"{times.iloc[0]} is far from today when it counts {unit}{hint}" if hint else None


def unit_of(column: pd.Series) -> str:
    """Return a note that names the unit in which the first number is a time near today, or an empty text."""
    numbers = column.dropna()
    fitting = None if numbers.empty else _fitting_unit(numbers.iloc[0])
    return f"; {numbers.iloc[0]} is a time near today in {fitting}" if fitting else ""


def looks_like_time(value: float) -> bool:
    """Return whether `value` is a time near today in some unit."""
    return _fitting_unit(value) is not None


def _unit_hint(value: Any) -> str:
    fitting = _fitting_unit(value)
    return f" (set schema.time_unit: {fitting}?)" if fitting else ""


def _fitting_unit(value: Any) -> str | None:
    """Return the unit in which `value` is a time near today, or None."""
    number = _number(value)
    return next((unit for unit in _UNIT_S if number is not None and _is_plausible(number, unit)), None)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_plausible(value: float, unit: str) -> bool:
    return _PLAUSIBLE_S[0] <= value * _UNIT_S[unit] <= _PLAUSIBLE_S[1]


def _data_row(row: int, positions: Rows) -> int:
    """Return the number of a row in the source, counted from 1."""
    return 1 + (row if positions is None else int(positions[row]))


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))
