"""Arrow arrays without pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from svc.sources import arrow


@given(values=st.lists(st.text(max_size=6), max_size=8))
def test_texts_equal_arrays_of_pyarrow(values: list[str]) -> None:
    """The array equals that of pyarrow's own constructor."""
    assert arrow.texts(values).equals(pa.array(values, pa.string()))


@given(values=st.lists(st.integers(-3, 1000), max_size=20))
def test_codes_reverse_integers(values: list[int]) -> None:
    """Negative numbers are null in the array and −1 when read back, also from a slice."""
    array = arrow.integers(np.array(values, dtype=np.int32))
    assert array.to_pylist() == [None if value < 0 else value for value in values]
    for start in range(min(len(values), 3)):
        assert arrow.codes(array[start:]).tolist() == [max(value, -1) for value in values[start:]]


def test_codes_are_writable_copies() -> None:
    """Codes outlive the table that they were read from."""
    values = np.array([1.5, 2.5])
    assert arrow.numbers(values).to_pylist() == [1.5, 2.5]
    codes = arrow.codes(arrow.integers(np.array([3], dtype=np.int32)))
    codes[0] = 4
    assert codes.tolist() == [4]


def test_constants_repeat_one_value_and_empty_tables_keep_their_schema() -> None:
    """A constant column has its text in memory once."""
    assert arrow.constant("x", 3).to_pylist() == ["x", "x", "x"]
    assert arrow.constant(None, 2).to_pylist() == [None, None]
    schema = pa.schema([("a", pa.int64())])
    assert arrow.empty(schema).schema == schema
