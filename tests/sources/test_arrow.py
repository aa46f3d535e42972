"""Arrays that are made and read without pandas."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from svc.sources import arrow


@given(values=st.lists(st.text(max_size=6), max_size=8))
def test_texts_are_those_that_were_given(values: list[str]) -> None:
    """As pyarrow's own constructor makes them."""
    assert arrow.texts(values).equals(pa.array(values, pa.string()))


@given(values=st.lists(st.integers(-3, 1000), max_size=20))
def test_integers_and_codes_are_each_other_s_inverse(values: list[int]) -> None:
    """Negative numbers are missing in the array, and −1 when read back; also in a slice of it."""
    array = arrow.integers(np.array(values, dtype=np.int32))
    assert array.to_pylist() == [None if value < 0 else value for value in values]
    for start in range(min(len(values), 3)):
        assert arrow.codes(array[start:]).tolist() == [max(value, -1) for value in values[start:]]


def test_numbers_are_views_and_codes_are_not() -> None:
    """Codes outlive the table that they were read from."""
    values = np.array([1.5, 2.5])
    assert arrow.numbers(values).to_pylist() == [1.5, 2.5]
    codes = arrow.codes(arrow.integers(np.array([3], dtype=np.int32)))
    codes[0] = 4
    assert codes.tolist() == [4]


def test_constants_and_empty_tables() -> None:
    """A column of one value takes no memory for each row's text; an empty table keeps its schema."""
    assert arrow.constant("x", 3).to_pylist() == ["x", "x", "x"]
    assert arrow.constant(None, 2).to_pylist() == [None, None]
    schema = pa.schema([("a", pa.int64())])
    assert arrow.empty(schema).schema == schema
