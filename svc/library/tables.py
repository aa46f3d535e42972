"""Check the tables that callers pass, and convert them to Arrow and pandas.

In this module `what` is the argument that holds the table, for messages.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from svc.errors import UsageError
from svc.names import did_you_mean

MAX_SHOWN_COLUMNS = 20


def is_table(data: object) -> TypeGuard[Any]:
    """Return whether `data` is a DataFrame, an Arrow table or record batch, or a dict of columns.

    Any other object with Arrow's C stream interface is a table too, except a Series.
    """
    # By name for polars, which need not be installed.
    if isinstance(data, pd.Series) or type(data).__name__ == "Series":
        return False
    kinds = (pd.DataFrame, pa.Table, pa.RecordBatch)
    return isinstance(data, kinds) or hasattr(data, "__arrow_c_stream__") or _is_of_columns(data)


def _is_of_columns(data: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether `data` is a dict of columns and not empty.

    A dict with a text, a number, a dict or None among its values is a recipe.
    """
    if not isinstance(data, Mapping) or not data:
        return False
    return not any(column is None or isinstance(column, str | int | float | Mapping) for column in data.values())


def as_table(data: Any, what: str, content: str = "one row per interaction") -> Any:
    """Return the table as an object that has texts as column names and can be read more than once.

    A stream of batches can be read only once, so it is read to its end. Raises UsageError, for a value that is no table
    with the `content` that it should have.
    """
    if not is_table(data):
        raise UsageError(f"{what}: give a DataFrame with {content}, not a {type(data).__name__}")
    if isinstance(data, pd.DataFrame):
        # A new frame: the caller's keeps its labels, such as the number 0.
        return data.set_axis(column_names(data, what), axis=1)
    if isinstance(data, pa.Table) or (hasattr(data, "columns") and not isinstance(data, pa.RecordBatch)):
        return data
    try:
        if _is_of_columns(data):
            return pa.table({str(name): _column(column) for name, column in data.items()})
        return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(f"{what}: cannot be read as a table: {error}") from None


def id_series(values: Sequence[str]) -> pd.Series[Any]:
    """Return ids as a column of the installed pandas' text type, so that callers can join it with their frames."""
    return pd.Series(values, dtype="str")


def _column(values: Any) -> pa.Array | pa.ChunkedArray:
    # Columns of polars and Arrow are passed on without a copy.
    return pa.chunked_array(values) if hasattr(values, "__arrow_c_stream__") else pa.array(values)


def column_names(data: Any, what: str) -> list[str]:
    """Return the names of the columns. Raises UsageError for a repeated name."""
    names = [str(name) for name in (data.column_names if isinstance(data, pa.Table) else data.columns)]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(f"{what}: two columns are named {repeated!r}; rename one of them")
    return names


def as_arrow(data: Any, columns: Sequence[str], what: str) -> pa.Table:
    """Return the named columns as an Arrow table. Raises UsageError for a column that Arrow cannot hold."""
    if isinstance(data, pd.DataFrame):
        return pa.table({name: _arrow_column(data[name], name, what) for name in columns})
    try:
        table = (data if isinstance(data, pa.Table) else pa.table(data)).select(columns)
        return pa.table({name: table.column(name).cast(_owned_type(table.schema.field(name).type)) for name in columns})
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(f"{what}: cannot be read as a table: {error}") from None


def _owned_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with string views replaced by strings, because few functions of Arrow accept string views."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _owned_type(kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_owned_type(kind.value_type))
    return kind


def as_pandas(data: Any, what: str) -> pd.DataFrame:
    """Return the table as a pandas frame. Raises UsageError."""
    if isinstance(data, pd.DataFrame):
        return data
    frame: pd.DataFrame = as_arrow(data, column_names(data, what), what).to_pandas()
    return frame


def _arrow_column(column: pd.Series[Any], name: str, what: str) -> pa.Array:
    try:
        return pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError):
        # Only for the message, and a column may have millions of rows.
        kinds = sorted({type(value).__name__ for value in column.head(10_000)})
        raise UsageError(
            f"{what}: the column {name!r} holds {', '.join(kinds)}; give it one type, such as "
            f"{what}[{name!r}].astype(str)"
        ) from None


def check_interactions(table: pa.Table, ids: Mapping[str, str], *, drop_missing: bool) -> None:
    """Raise UsageError for a table without rows or with ids that are not text.

    Also raises it for missing and blank ids, unless `drop_missing`. `ids` maps an argument, such as `user`, to its id
    column.
    """
    if not table.num_rows:
        raise UsageError("data: has no rows; there is nothing to train on")
    for argument, name in ids.items():
        check_id_type(table, name, argument)
        if drop_missing:
            continue
        column = table.column(name)
        texts = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        # The sum of no values is null.
        n_blank = pc.sum(pc.equal(texts, "")).as_py() or 0
        for count, fault, remedy in (
            (column.null_count, "no id", f".dropna(subset=[{name!r}])"),
            (n_blank, "a blank id", f"[data[{name!r}].str.strip() != '']"),
        ):
            if count:
                raise UsageError(
                    f"{argument}: {count} of {table.num_rows} rows have {fault} in {name!r}; drop them with "
                    f"data{remedy}, or give cleansing={{'drop_null_ids': True}}"
                )


def check_id_type(table: pa.Table, name: str, argument: str, what: str = "data") -> None:
    """Raise UsageError for a column of ids that are not text. `what` is the caller's name for the table."""
    column = table.column(name)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise UsageError(
            f"{argument}: ids are text, and the column {name!r} holds {_said(kind)}{_advice(name, column, kind, what)}"
        )


def _said(kind: pa.DataType) -> str:
    if pa.types.is_null(kind):
        return "nothing but missing values"
    if pa.types.is_integer(kind):
        return "whole numbers"
    if pa.types.is_floating(kind):
        return "floating point numbers"
    return "lists instead of single ids" if pa.types.is_nested(kind) else f"values of type {kind}"


def _advice(name: str, column: pa.ChunkedArray, kind: pa.DataType, what: str) -> str:
    """Return advice on how to convert the column to ids, for the end of a message.

    Floats and decimals become whole numbers first, because 1.0 would otherwise become the id "1.0".
    """
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_nested(kind):
        return f"; {what}.explode({name!r}) makes a row of each"
    convert = "astype(str)"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = column.cast(pa.float64())
        fractions = numbers.filter(pc.not_equal(pc.floor(numbers), numbers))
        if len(fractions):
            return f"; {fractions[0]} is not a whole number: is {name!r} the column of ids?"
        convert = "astype('Int64').astype(str)"
    return f"; write {what}[{name!r}] = {what}[{name!r}].{convert}"


def require(names: Mapping[str, str], there: Sequence[str], what: str) -> None:
    """Raise UsageError if an argument names a column that the table lacks. `names` maps arguments to columns."""
    for argument, name in names.items():
        if name not in there:
            shown = ", ".join(there[:MAX_SHOWN_COLUMNS]) or "no columns"
            hint = did_you_mean(name, there)
            raise UsageError(f"{argument}: {what} has no column {name!r}; {hint}{'It' if hint else 'it'} has {shown}")


def plain(value: Any) -> Any:
    """Convert values of numpy and pandas to Python numbers, lists and dicts. Missing values become None."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value
    # Compared by identity, because `pd.NA == value` is NA, which has no truth value.
    if value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, pd.Series) and value.index.inferred_type in ("string", "empty"):
        value = value.to_dict()  # labels of text are names of columns, so the Series is a row of a frame
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        # A set has no order, and the same call must make the same request.
        value = sorted(value, key=str)
    if isinstance(value, Sequence | np.ndarray | pd.Series | pd.Index) and not isinstance(value, bytes):
        return [plain(inner) for inner in value]
    return value


_CELL = "text-align:left;padding:0.2em 1em 0.2em 0"
_TABLE = '<table style="color:inherit;font:inherit"'
"""Inherits the text colour, because in pages without a doctype tables are black on any background."""


def facts_table(title: str, facts: Mapping[str, object], more: str = "") -> str:
    """Return HTML: a heading and a table with one row per fact. `more` is HTML that follows."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{html.escape(name)}</th>'
        f'<td style="{_CELL}">{html.escape(_shown(fact))}</td></tr>'
        for name, fact in facts.items()
    )
    tables = f"<table><tbody>{rows}</tbody></table>{more}".replace("<table", _TABLE)
    return f"<div><strong>{html.escape(title)}</strong>{tables}</div>"


def _shown(fact: object) -> str:
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, int):
        return f"{fact:,}"
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)
