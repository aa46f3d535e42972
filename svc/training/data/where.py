"""Apply the filters `cleansing.hide` and `cleansing.where` to a fetched table, before all other cleansing.

A condition is either true or false, as in filters of requests and unlike SQL. A missing value (null, blank text, no
finite number) satisfies only the condition `exists: false`, and `not` turns false into true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from svc.errors import DataSourceError, RowFilterMismatch
from svc.model.ranking.filter_fields import COMPARE
from svc.recipe.filter_tree import NUMBER, Filter, RowFilter, either
from svc.sources.base import DataSource
from svc.sources.dtypes import WORDS_FOR_NOTHING

Flags = NDArray[np.bool_]
Column = Callable[[str, Any], Flags]
"""A function of an operator and its operand, which returns whether each row satisfies this condition, (n,)."""
_SHOWN_CHARACTERS = 40
_NO_NUMBER = "which is not a number: write numbers with a point, or compare texts by `any`, with a list of them"
_NO_TEXT = "which has no one spelling as text; compare numbers with gt, gte, lt, lte or eq"


@dataclass(frozen=True, slots=True, eq=False)
class KeptRows:
    """The rows of a table that the filters keep, in the order of the source. They are choices and hidden rows.

    - `positions`, (n,), is the position of each row in the source, None without `cleansing.where`.
    - `n_dropped` is the number of rows that `cleansing.where` dropped, None without `cleansing.where`.
    - `hides`, (n,), is True if a row satisfies `cleansing.hide`, None without that filter.
    """

    frame: pd.DataFrame
    positions: NDArray[np.int64] | None = None
    n_dropped: int | None = None
    hides: Flags | None = None


def fetch_kept(source: DataSource, where: RowFilter | None, hide: RowFilter | None = None) -> KeptRows:
    """Fetch the rows of `source` that satisfy `where` or `hide`, or all rows if there is no `where`.

    A source with `fetch_where` leaves out the other rows while it reads, which saves memory. Raise DataSourceError if
    the table cannot be fetched or lacks a column, and RowFilterMismatch as `kept_rows` does.
    """
    fetch_where = getattr(source, "fetch_where", None)
    if where is None or fetch_where is None:
        return kept_rows(source.fetch(), where, hide)
    hides = [np.empty(0, dtype=bool)]

    def keep(batch: pd.DataFrame) -> Flags:
        kept, hidden = _select(batch, where, hide)
        if hidden is not None:
            hides.append(hidden[kept])
        return kept

    frame, positions, n_rows = fetch_where(either(hide, where), keep)
    return KeptRows(frame, positions, n_rows - len(frame), None if hide is None else np.concatenate(hides))


def kept_rows(frame: pd.DataFrame, where: RowFilter | None, hide: RowFilter | None = None) -> KeptRows:
    """Return the rows of `frame` that satisfy `where` or `hide`, or all rows if there is no `where`.

    Raise DataSourceError if `frame` lacks a column, and RowFilterMismatch if a value cannot be compared.
    """
    frame = frame.reset_index(drop=True)  # errors count rows by the index, and a plug-in may return any
    keep, hides = _select(frame, where, hide)
    if where is None:
        return KeptRows(frame, hides=hides)
    positions = np.flatnonzero(keep)
    satisfying = frame.iloc[positions].reset_index(drop=True)
    for name in satisfying.columns:
        if isinstance(satisfying[name].dtype, pd.CategoricalDtype):
            # As if the source had left the rows out, so that both ways give equal tables.
            satisfying[name] = satisfying[name].cat.remove_unused_categories()
    n_dropped = len(keep) - len(positions)
    return KeptRows(satisfying, positions, n_dropped, None if hides is None else hides[positions])


def _select(frame: pd.DataFrame, where: RowFilter | None, hide: RowFilter | None) -> tuple[Flags, Flags | None]:
    """Return whether each row satisfies `where` or `hide`, (n,), and whether it satisfies `hide`, (n,), if it is given.

    Without `where`, all rows count as satisfying.
    """
    hidden = None if hide is None else _evaluate(frame, hide, "cleansing.hide")
    kept = np.ones(len(frame), dtype=np.bool_) if where is None else _evaluate(frame, where, "cleansing.where")
    return kept if hidden is None else kept | hidden, hidden


def _evaluate(frame: pd.DataFrame, wanted: RowFilter, key: str) -> Flags:
    """Return whether each row satisfies the filter, (n,). `key` is its place in the recipe, for errors."""
    columns: dict[str, Column] = {}
    for name, kind in wanted.kinds.items():
        if name not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise DataSourceError(f"{key}: the table has no column {name}; it has {there}")
        try:
            columns[name] = _column(frame[name], name, kind, is_compared=name in wanted.compared)
        except RowFilterMismatch as error:
            raise RowFilterMismatch(f"{key}: {error.message}", fields=error.fields) from None
    return _holds(wanted.tree, columns)


def _holds(node: Filter, columns: Mapping[str, Column]) -> Flags:
    """Return whether each row satisfies `node`, (n,)."""
    kind, *operands = node
    if kind == "not":
        return ~_holds(operands[0], columns)
    if kind == "field":
        parts = [columns[operands[0]](*condition) for condition in operands[1]]
    else:
        parts = [_holds(part, columns) for part in operands[0]]
    satisfied: Flags = np.any(parts, axis=0) if kind == "any" else np.all(parts, axis=0)
    return satisfied


def _column(column: pd.Series, name: str, kind: str, *, is_compared: bool) -> Column:
    """Return the function that evaluates conditions on a column, compared with numbers or with text as `kind` says.

    Numbers are converted to float64. In text, whole numbers become digits, and booleans "true" or "false". Each
    distinct value is tested once, for all rows with this value, except in a column of a numeric type.

    Raise RowFilterMismatch if the column `is_compared` and has a value that cannot be compared.
    """
    if kind == NUMBER and _is_numeric(column):  # may have as many distinct values as rows
        return partial(_satisfy_number, column.to_numpy(dtype=np.float64, na_value=np.nan))
    codes, values = _encode_values(column, name)

    def flags(tells: Callable[[Any], bool]) -> Flags:
        # A missing value has code −1, which selects the last element.
        of_rows: Flags = np.asarray([*map(tells, values), False], dtype=bool)[codes]
        return of_rows

    is_comparable, why = (_is_number_or_nothing, _NO_NUMBER) if kind == NUMBER else (_has_text, _NO_TEXT)
    if is_compared and (odd := flags(lambda value: not is_comparable(value))).any():
        _refuse(name, column, int(np.argmax(odd)), why)
    if kind == NUMBER:
        # Numbers may be text, as in a csv column that is also an id.
        return partial(_satisfy_number, np.asarray([*map(_as_number, values), np.nan])[codes])

    def satisfy(operator_name: str, operand: Any) -> Flags:
        if operator_name == "exists":
            exists = flags(lambda value: not _is_nothing(value))
            return exists if operand else ~exists
        wanted = frozenset(operand)  # a filter that compares with text has no other operator than `any`
        return flags(lambda value: not _is_nothing(value) and _text_of(value) in wanted)

    return satisfy


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)


def _satisfy_number(numbers: NDArray[np.float64], operator_name: str, operand: Any) -> Flags:
    exists = np.isfinite(numbers)
    satisfied: Flags = (
        exists == operand if operator_name == "exists" else exists & COMPARE[operator_name](numbers, operand)
    )
    return satisfied


def _encode_values(column: pd.Series, name: str) -> tuple[NDArray[Any], list[Any]]:
    """Return a code for each row, (n,), and the distinct values to which the codes refer. The code of null is −1.

    Raise RowFilterMismatch for a list or a mapping.
    """
    if isinstance(column.dtype, pd.CategoricalDtype):
        return np.asarray(column.cat.codes), list(column.cat.categories)
    try:
        codes, values = pd.factorize(column)
    except TypeError:  # lists and mappings cannot be compared with an operand
        row = next(i for i, value in enumerate(column) if isinstance(value, list | dict | set | np.ndarray))
        _refuse(name, column, row, "which is not a single value")
    return codes, list(values)


def _refuse(name: str, column: pd.Series, row: int, why: str) -> None:
    shown, number = repr(str(column.iloc[row])[:_SHOWN_CHARACTERS]), int(column.index[row]) + 1
    raise RowFilterMismatch(
        f"the column {name!r} holds {shown} in data row {number}, {why}", fields={"column": name, "row": number}
    )


def _as_number(value: Any) -> float:
    """Return `value` as a number, or NaN if it is neither a number nor text with a number. Booleans give NaN.

    An integer that is too large for float64 gives infinity.
    """
    # Python takes True for 1 and "1_000" for 1000, which readers of tables do not.
    if isinstance(value, bool | np.bool_) or (isinstance(value, str) and "_" in value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return math.nan


def _is_number_or_nothing(value: Any) -> bool:
    """Return whether `value` is a number or missing: NaN, infinity, or one of WORDS_FOR_NOTHING."""
    if isinstance(value, str) and value.strip() in WORDS_FOR_NOTHING:
        return True
    return not math.isnan(_as_number(value)) or (isinstance(value, float | np.floating) and math.isnan(value))


def _is_nothing(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, float | np.floating) and not math.isfinite(value)


def _text_of(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, int | np.integer) else None


def _has_text(value: Any) -> bool:
    return _text_of(value) is not None


def without_users(rows: KeptRows, column: str, gone: Collection[str]) -> KeptRows:
    """Return the rows of users who are not in `gone`."""
    if not gone:
        return rows
    kept = ~rows.frame[column].isin(gone).to_numpy()
    positions = None if rows.positions is None else rows.positions[kept]
    hides = None if rows.hides is None else rows.hides[kept]
    return replace(rows, frame=rows.frame[kept], positions=positions, hides=hides)
