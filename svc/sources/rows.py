"""Conversion of rows from database drivers to Arrow batches, with types inferred from the values."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from svc.errors import DataSourceError


class RowTyper:
    """A converter of rows that infers the column types of each batch. TableBuilder unifies the types of all batches.

    In id columns (`text_columns`), integers, decimals, dates and UUIDs become text. Floats stay floats, which
    TableBuilder refuses.
    """

    def __init__(self, columns: Sequence[str], text_columns: frozenset[str]) -> None:
        self._columns = columns
        self._text_columns = text_columns

    def empty(self) -> pa.Table:
        """Return a table without rows, so that an empty result still has its columns."""
        return pa.table({name: pa.nulls(0) for name in self._columns})

    def batch(self, rows: Sequence[Sequence[Any]], positions: Sequence[int]) -> pa.Table:
        """Convert `rows` to a table. `positions[k]` is the index of column k in each row."""
        columns = {}
        for name, position in zip(self._columns, positions, strict=True):
            values = [row[position] for row in rows]
            columns[name] = _texts(values) if name in self._text_columns else _array(values, name)
        return pa.table(columns)


def _texts(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.large_string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # not all of them are text
        pass
    if any(isinstance(value, float) for value in values):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.large_string())


def _array(values: list[Any], name: str) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if decimal.Decimal in kinds:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if kinds & {uuid.UUID, datetime.timedelta, datetime.time}:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataSourceError(f"the query's column {name} mixes types: {error}") from None
