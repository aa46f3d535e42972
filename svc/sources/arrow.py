"""Helpers for pyarrow that do not import pandas, which a server that reads item metadata has no need for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def texts(values: Sequence[str]) -> pa.Array:
    """An array of strings."""
    data = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def integers(values: NDArray[Any]) -> pa.Array:
    """A contiguous array of integers in which negative values become null. The data is not copied."""
    valid = np.packbits(values >= 0, bitorder="little")
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [pa.py_buffer(valid), pa.py_buffer(values)])


def numbers(values: NDArray[Any]) -> pa.Array:
    """A contiguous array of numbers. The data is not copied."""
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def codes(array: pa.Array) -> NDArray[np.int32]:
    """The values of an array of non-negative int32 as numpy, with −1 for null. The result is always a copy."""
    if not len(array):
        return np.empty(0, dtype=np.int32)
    missing, data = array.buffers()
    indices = np.frombuffer(data, dtype=np.int32)[array.offset : array.offset + len(array)].copy()
    if missing is not None:
        bits = np.unpackbits(np.frombuffer(missing, dtype=np.uint8), bitorder="little")
        indices[bits[array.offset : array.offset + len(array)] == 0] = -1
    return indices


def constant(value: str | None, count: int) -> pa.DictionaryArray:
    """An array that repeats `value`, or null for None, `count` times."""
    codes = np.full(count, -1 if value is None else 0, np.int32)
    return pa.DictionaryArray.from_arrays(integers(codes), texts([] if value is None else [value]))


def empty(schema: pa.Schema) -> pa.Table:
    """A table of no rows."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def expanded_bytes(column: pa.Array | pa.ChunkedArray) -> int:
    """Bytes of a column after its dictionaries are decoded: a repeated text counts each time."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return sum(_expanded_bytes(chunk) for chunk in chunks)


def _expanded_bytes(chunk: pa.Array) -> int:
    if not pa.types.is_dictionary(chunk.type):
        return int(chunk.nbytes)
    sizes = _text_bytes(chunk.dictionary)
    if sizes is None:
        return int(chunk.indices.nbytes)
    return int(chunk.indices.nbytes) + int(pc.sum(sizes.take(chunk.indices)).as_py() or 0)


def _text_bytes(values: pa.Array) -> pa.Array | None:
    """The length of each text in bytes, or None when the values are not text."""
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return pc.binary_length(values).cast(pa.int64()) if is_text else None
