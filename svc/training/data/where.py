"""Apply the filters `cleansing.hide` and `cleansing.where` to a fetched table, before all other cleansing.

A condition is either true or false, as in filters of requests and unlike SQL. A missing value (null, blank text, no
finite number) satisfies only the condition `exists: false`, and `not` turns false into true.
"""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from svc.errors import DataSourceError, RowFilterMismatch
from svc.model.ranking.filter_fields import COMPARE
from svc.recipe.filter_tree import NUMBER, Filter, either, parse_row_filter
from svc.sources.base import DataSource
from svc.sources.csv import WORDS_FOR_NOTHING
from svc.sources.prefilter import Prefiltered

Flags = NDArray[np.bool_]
_SHOWN_CHARACTERS = 40
_NO_NUMBER = "which is no number: compare texts by `any`, with a list of them"


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


def fetch_kept(source: DataSource, where: Mapping[str, Any] | None, hide: Mapping[str, Any] | None = None) -> KeptRows:
    """Fetch the rows of `source` that satisfy `where` or `hide`, or all rows if there is no `where`.

    A source with `fetch_where` leaves out some of the other rows while it reads, which saves memory. Raise
    DataSourceError if the table cannot be fetched or lacks a column, and RowFilterMismatch as `kept_rows` does.
    """
    fetch_where = getattr(source, "fetch_where", None)
    fetched: Prefiltered | None = None
    if where is not None and fetch_where is not None:
        fetched = fetch_where(either(hide, where))
    if fetched is None:
        return kept_rows(source.fetch(), where, hide)
    rows = kept_rows(fetched.frame, where, hide)
    positions = fetched.positions[rows.positions]
    return replace(rows, positions=positions, n_dropped=fetched.n_rows - len(rows.frame))


def kept_rows(frame: pd.DataFrame, where: Mapping[str, Any] | None, hide: Mapping[str, Any] | None = None) -> KeptRows:
    """Return the rows of `frame` that satisfy `where` or `hide`, or all rows if there is no `where`.

    Both filters have already been validated. Raise DataSourceError if `frame` lacks a column, and RowFilterMismatch if
    a value cannot be compared.
    """
    hides = None if hide is None else _evaluate(frame, hide, "cleansing.hide")
    if where is None:
        return KeptRows(frame, hides=hides)
    keep = _evaluate(frame, where, "cleansing.where")
    if hides is not None:
        keep |= hides
    positions = np.flatnonzero(keep)
    satisfying = frame.iloc[positions].reset_index(drop=True)
    for name in satisfying.columns:
        if isinstance(satisfying[name].dtype, pd.CategoricalDtype):
            satisfying[name] = satisfying[name].cat.remove_unused_categories()
    n_dropped = len(keep) - len(positions)
    return KeptRows(satisfying, positions, n_dropped, None if hides is None else hides[positions])


def _evaluate(frame: pd.DataFrame, tree: Mapping[str, Any], key: str) -> Flags:
    """Return whether each row satisfies the filter `tree`, (n,). `key` is its place in the recipe, for errors."""
    wanted = parse_row_filter(tree)
    columns: dict[str, _Column] = {}
    for name, kind in wanted.kinds.items():
        if name not in frame.columns:
            there = ", ".join(map(str, frame.columns))
            raise DataSourceError(f"{key}: the table has no column {name}; it has {there}")
        try:
            columns[name] = _Numbers(frame[name], name) if kind == NUMBER else _Texts(frame[name], name)
            if name in wanted.compared:
                columns[name].check()
        except RowFilterMismatch as error:
            raise RowFilterMismatch(f"{key}: {error.message}", fields=error.fields) from None
    return _holds(wanted.tree, columns)


def _holds(node: Filter, columns: Mapping[str, _Column]) -> Flags:
    """Return whether each row satisfies `node`, (n,)."""
    kind, *operands = node
    if kind == "not":
        return ~_holds(operands[0], columns)
    if kind == "field":
        column = columns[operands[0]]
        return _all([column.satisfy(*condition) for condition in operands[1]])
    parts = [_holds(part, columns) for part in operands[0]]
    return _all(parts) if kind == "all" else ~_all([~part for part in parts])


def _all(parts: list[Flags]) -> Flags:
    return functools.reduce(operator.and_, parts)


class _Column(ABC):
    """A column on which conditions are evaluated. `exists`, (n,), is False for a missing value.

    Each distinct value is tested once, for all rows with this value, except in a column of a numeric type.
    """

    exists: Flags

    def __init__(self, column: pd.Series, name: str) -> None:
        self._column, self._name = column, name
        self._codes, self._values = _encode_values(column, name)

    def _flags(self, tells: Callable[[Any], bool]) -> Flags:
        """Return `tells(value)` for each row, (n,), and False for a missing value."""
        # A missing value has code −1, which selects the last element.
        of_values: Flags = np.asarray([*map(tells, self._values), False], dtype=bool)
        flags: Flags = of_values[self._codes]
        return flags

    def satisfy(self, name: str, operand: Any) -> Flags:
        """Return whether each row satisfies one condition, (n,)."""
        if name == "exists":
            return self.exists if operand else ~self.exists
        satisfied: Flags = np.logical_and(self.exists, self._compare(name, operand))
        return satisfied

    @abstractmethod
    def _compare(self, name: str, operand: Any) -> Flags: ...

    @abstractmethod
    def check(self) -> None:
        """Raise RowFilterMismatch for the first value that cannot be compared."""

    def _refuse_first(self, odd: Flags, why: str) -> None:
        if odd.any():
            _refuse(self._name, self._column, int(np.argmax(odd)), why)


class _Numbers(_Column):
    """A column that conditions compare with numbers. Its values are converted to float64."""

    def __init__(self, column: pd.Series, name: str) -> None:
        self._is_numeric = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        if self._is_numeric:  # may have as many distinct values as rows
            self._numbers = column.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            super().__init__(column, name)
            self._numbers = np.asarray([*map(_as_number, self._values), np.nan])[self._codes]
        self.exists = np.isfinite(self._numbers)

    def check(self) -> None:
        if not self._is_numeric:
            self._refuse_first(self._flags(lambda value: not _is_number_or_nothing(value)), _NO_NUMBER)

    def _compare(self, name: str, operand: Any) -> Flags:
        flags: Flags = COMPARE[name](self._numbers, operand)
        return flags


class _Texts(_Column):
    """A column that conditions compare with text. Whole numbers become digits, and booleans "true" or "false"."""

    def __init__(self, column: pd.Series, name: str) -> None:
        super().__init__(column, name)
        self.exists = self._flags(lambda value: not _is_nothing(value))

    def check(self) -> None:
        why = "which has no one spelling as text; compare numbers with gt, gte, lt, lte or eq"
        self._refuse_first(self._flags(lambda value: _text_of(value) is None), why)

    def _compare(self, name: str, operand: Any) -> Flags:
        assert name == "any", "a filter that compares with text has no other operator"
        wanted = frozenset(operand)
        return self._flags(lambda value: _text_of(value) in wanted)


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
    shown = repr(str(column.iloc[row])[:_SHOWN_CHARACTERS])
    raise RowFilterMismatch(
        f"the column {name!r} holds {shown} in data row {row + 1}, {why}",
        fields={"column": name, "row": row + 1},
    )


def _as_number(value: Any) -> float:
    """Return `value` as a number, or NaN if it is neither a number nor text with a number. Booleans give NaN.

    An integer that is too large for float64 gives infinity.
    """
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
