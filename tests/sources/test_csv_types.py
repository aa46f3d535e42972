"""Inferred types of csv columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.sources.csv_types import by_content, dtype_of, text_with_gaps


def texts(*values: str) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.string())])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (("1", "2"), [1, 2]),
        (("1", "NA"), [1, None]),
        (("1", "2.5"), [1.0, 2.5]),
        (("True", "false", ""), [True, False, None]),
        (("1", "x", ""), ["1", "x", None]),
        (("NA", "x"), ["NA", "x"]),
        (("", ""), [None, None]),
        (("007", "x"), ["007", "x"]),
    ],
)
def test_all_rows_decide_the_type(values: tuple[str, ...], expected: list[object]) -> None:
    """One value of another kind makes the column text, in which NA and null are words."""
    assert by_content(texts(*values)).to_pylist() == expected


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=10))
def test_integers_keep_every_digit(values: list[int]) -> None:
    """Integers of 64 bits are never read as floats, which have 53 bits."""
    assert by_content(texts(*map(str, values))).to_pylist() == values


def test_dtype_names_map_to_arrow_types() -> None:
    """Both names of a type mean the same."""
    assert dtype_of("str") == dtype_of("string") == pa.string()
    assert dtype_of("int") == dtype_of("int64") == pa.int64()


def test_blanks_in_text_columns_are_missing() -> None:
    """Words such as null stay text, because they may be names."""
    assert text_with_gaps(texts("null", "")).to_pylist() == ["null", None]
