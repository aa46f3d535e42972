"""Functions that build and measure Arrow data without pandas, which a server need not import for item metadata."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from svc.errors import DataSourceError

_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def texts(values: Sequence[str]) -> pa.Array:
    """Return `values` as an array of strings."""
    # pa.array would import pandas if it is installed.
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def integers(values: NDArray[Any]) -> pa.Array:
    """Return contiguous integers as an Arrow array in which negative values are null. The data is not copied."""
    # Arrow's bitmap of valid values begins with the lowest bit of each byte.
    valid = np.packbits(values >= 0, bitorder="little")
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(valid), pa.py_buffer(values)])


def numbers(values: NDArray[Any]) -> pa.Array:
    """Return contiguous numbers as an Arrow array. The data is not copied."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def codes(array: pa.Array) -> NDArray[np.int32]:
    """Return a numpy copy of an array of non-negative int32, with −1 for null."""
    filled: Any = array.fill_null(_MISSING_CODE)
    return np.array(np.from_dlpack(filled), np.int32)  # `to_numpy` would import pandas


_MISSING_CODE = numbers(np.array([-1], np.int32))[0]


def constant(value: str | None, count: int) -> pa.DictionaryArray:
    """Return an array that repeats `value`, or null for None, `count` times."""
    codes = np.full(count, -1 if value is None else 0, np.int32)
    return pa.DictionaryArray.from_arrays(integers(codes), texts([] if value is None else [value]))


def empty(schema: pa.Schema) -> pa.Table:
    """Return a table of no rows."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def expanded_bytes(column: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes that a column takes after its dictionaries are decoded. A repeated value counts each time.

    If the values of a dictionary are neither text nor binary, only its codes are counted. Arrow creates no such
    dictionaries when it reads Parquet files.
    """
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(_expanded_bytes(chunk) for chunk in chunks)


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    """Return `kind` without dictionary encoding, also within lists, maps and structs."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_dictionaries(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(without_dictionaries(kind.key_type), without_dictionaries(kind.item_type))
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(kind):
            return make(kind.value_field.with_type(without_dictionaries(kind.value_type)))
    return kind


def _expanded_bytes(chunk: pa.Array) -> int:
    if pa.types.is_struct(chunk.type):
        return sum(map(_expanded_bytes, chunk.flatten()))
    if pa.types.is_map(chunk.type):
        return int(chunk.nbytes) + _expanded_bytes(chunk.keys) + _expanded_bytes(chunk.items)
    if pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
        return int(chunk.offsets.nbytes) + _expanded_bytes(chunk.flatten())
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    sizes = _text_bytes(chunk.dictionary)
    if sizes is None:
        return int(chunk.indices.nbytes)
    return int(chunk.indices.nbytes) + int(pc.sum(sizes.take(chunk.indices)).as_py() or 0)


def _text_bytes(values: pa.Array) -> pa.Array | None:
    """Return the length in bytes of each text or binary value, or None if the values are of another type."""
    return pc.binary_length(values).cast(pa.int64()) if values.type in _TEXTS else None


def longest_text(column: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes of the longest text or binary value in a column or in its dictionary, or 0 for other types."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    values = [chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk for chunk in chunks]
    sizes = [size for each in values if (size := _text_bytes(each)) is not None]
    return max((int(pc.max(size).as_py() or 0) for size in sizes), default=0)


def table_of_rows(
    rows: Sequence[Sequence[Any]],
    positions: Mapping[str, int],
    text_columns: frozenset[str],
    padded: frozenset[int] = frozenset(),
) -> pa.Table:
    """Convert a batch of rows to a table, whose columns have the indexes `positions` in each row.

    Column types are inferred from the batch. TableBuilder unifies the types of all batches.

    In id columns (`text_columns`), all values become text, and whole decimals become integers first. But if a batch has
    floats, other decimals, bytes, lists or mappings, its column has only these, and TableBuilder refuses it.

    Texts at the positions `padded` lose the blanks at their end, which a database adds to texts of fixed length.
    """
    columns = {}
    for name, position in positions.items():
        values = [row[position] for row in rows]
        if position in padded:
            values = [value.rstrip(" ") if isinstance(value, str) else value for value in values]
        columns[name] = _texts(values) if name in text_columns else _array(values, name)
    return pa.table(columns)


def _texts(values: list[Any]) -> pa.Array:
    try:
        # Nearly all ids are text, so the whole column is tried before any value is looked at.
        return pa.array(values, pa.large_string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # some values are not text
        pass
    values = [_whole(value) if isinstance(value, decimal.Decimal) else value for value in values]
    for refused in (float, bytes, list, dict):
        if any(isinstance(value, refused) for value in values):
            return pa.array([value if isinstance(value, refused) else None for value in values])
    return pa.array([None if value is None else str(value) for value in values], pa.large_string())


def _whole(value: decimal.Decimal) -> int | float:
    """Return a whole number as an integer, which has no decimal places as text, and any other number as a float."""
    return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)


def _array(values: list[Any], name: str) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds & {uuid.UUID, datetime.timedelta, datetime.time}:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if decimal.Decimal not in kinds:
        try:
            return pa.array(values)
        except OverflowError:  # a whole number beyond int64
            pass
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataSourceError(f"the query's column {name} mixes types: {error}") from None
    return pa.array([None if value is None else float(value) for value in values], pa.float64())
