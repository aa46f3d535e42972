"""Arrow arrays without pandas."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError
from svc.sources import arrow
from svc.sources.arrow import table_of_rows

IDS = (
    st.integers(-(2**80), 2**80)
    | st.text(max_size=5)
    | st.uuids()
    | st.dates()
    | st.decimals(-(10**9), 10**9, places=2)
)


@given(values=st.lists(st.text(max_size=6), max_size=8))
def test_texts_equal_arrays_of_pyarrow(values: list[str]) -> None:
    """`texts` makes the same array as pyarrow's own constructor."""
    assert arrow.texts(values).equals(pa.array(values, pa.string()))


@given(values=st.lists(st.integers(-3, 1000), max_size=20))
def test_codes_are_the_integers_of_an_array(values: list[int]) -> None:
    """Negative numbers are null in the array and −1 when read back, also from a slice."""
    array = arrow.integers(np.array(values, dtype=np.int32))
    assert array.to_pylist() == [None if value < 0 else value for value in values]
    for start in range(min(len(values), 3)):
        for end in range(start, len(values) + 1):
            assert arrow.codes(array[start:end]).tolist() == [max(value, -1) for value in values[start:end]]


def test_codes_are_writable_copies() -> None:
    """Codes that are read from an Arrow array can be changed."""
    values = np.array([1.5, 2.5])
    assert arrow.numbers(values).to_pylist() == [1.5, 2.5]
    codes = arrow.codes(arrow.integers(np.array([3], dtype=np.int32)))
    codes[0] = 4
    assert codes.tolist() == [4]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_a_repeated_value_of_a_dictionary_counts_each_time(kind: pa.DataType) -> None:
    """Repeated values within lists count each time, too.

    Missing values count only the bytes of their codes.
    """
    column = pa.DictionaryArray.from_arrays(pa.array([0, 0, None, 0], pa.int32()), pa.array(["x" * 100], kind))
    codes = column.indices.nbytes
    assert arrow.expanded_bytes(column) == codes + 300
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), column)
    assert arrow.expanded_bytes(nested) == 12 + codes + 300
    assert arrow.longest_text(column) == 100


def test_constants_repeat_one_value_and_empty_tables_keep_their_schema() -> None:
    """The repeated value may be null."""
    assert arrow.constant("x", 3).to_pylist() == ["x", "x", "x"]
    assert arrow.constant(None, 2).to_pylist() == [None, None]
    schema = pa.schema([("a", pa.int64())])
    assert arrow.empty(schema).schema == schema


def column(values: list[Any], *, text: bool) -> pa.Array:
    return table_of_rows([(value,) for value in values], {"c": 0}, frozenset({"c"} if text else ())).column("c")


@given(values=st.lists(st.none() | IDS, max_size=8))
def test_ids_of_any_type_become_text(values: list[Any]) -> None:
    """Integers of any size, dates and UUIDs keep every digit, and null stays null.

    Whole decimals become integers. A batch with another decimal has only this one, as a float, which is refused later.
    """
    found = column(values, text=True)
    decimals = [value for value in values if isinstance(value, decimal.Decimal)]
    if any(value != value.to_integral_value() for value in decimals):
        assert pa.types.is_floating(found.type)
    else:
        whole = [int(value) if isinstance(value, decimal.Decimal) else value for value in values]
        assert found.to_pylist() == [None if value is None else str(value) for value in whole]


@pytest.mark.parametrize("refused", [7.0, b"\xff", ["7"], {"id": 7}])
def test_values_that_are_no_ids_keep_their_type(refused: Any) -> None:
    """Such columns are refused later by name, as in Parquet files. For example, `7.0` is not the id `7`."""
    for other in (8, "eight", decimal.Decimal(8)):
        assert column([refused, None, other], text=True).chunks == [pa.array([refused, None, None])]


def test_decimals_become_numbers_and_uuids_become_text() -> None:
    """Training cannot use values of these types. Times become text, and integers beyond int64 numbers, too."""
    assert column([decimal.Decimal("1.5"), None], text=False).to_pylist() == [1.5, None]
    assert column([2**64 - 1, None, 7], text=False).to_pylist() == [2.0**64, None, 7.0]
    one = uuid.UUID(int=1)
    assert column([one], text=False).to_pylist() == [str(one)]
    assert column([datetime.time(3)], text=False).to_pylist() == ["03:00:00"]


def test_a_column_of_mixed_types_is_refused() -> None:
    """The error names the column of the query."""
    with pytest.raises(DataSourceError, match="column c mixes types"):
        column([1, "one"], text=False)


def test_a_result_without_rows_keeps_its_columns() -> None:
    """Without rows, all columns exist. With rows, each column has the values of its position."""
    assert table_of_rows([], {"a": 0, "b": 1}, frozenset({"a"})).column_names == ["a", "b"]
    batch = table_of_rows([(1, 2, 3)], {"b": 2, "a": 0}, frozenset())
    assert batch.to_pydict() == {"b": [3], "a": [1]}
