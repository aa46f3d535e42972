"""Types of columns of text: by their content, and as `dtype` names them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import DataSourceError
from svc.sources.dtypes import DTYPES, by_content, text_with_gaps, whole_numbers


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
        (("0x10", "10"), ["0x10", "10"]),
        (("0XFF", ""), ["0XFF", None]),
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
    """`str` and `string` mean the same type, and so do `int` and `int64`."""
    assert DTYPES["str"] == DTYPES["string"] == pa.string()
    assert DTYPES["int"] == DTYPES["int64"] == pa.int64()


def test_blanks_in_text_columns_are_missing() -> None:
    """Words such as null stay text, because they may be names."""
    assert text_with_gaps(texts("null", "")).to_pylist() == ["null", None]


@given(values=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=10), zeros=st.integers(0, 3))
def test_whole_numbers_keep_every_digit(values: list[int | None], zeros: int) -> None:
    """With or without decimals of zero, each value is that integer. Blanks and words for nothing are missing."""
    ending = f".{'0' * zeros}" if zeros else ""
    texts = pa.array(["NaN" if value is None else f"{value}{ending}" for value in values], pa.string())
    assert whole_numbers(texts, "id", "a.csv", 0).to_pylist() == values


@pytest.mark.parametrize("text", ["1.5", "1.05", "x", "1e3", "9223372036854775808", "1.0.0"])
def test_other_texts_are_refused_with_their_row(text: str) -> None:
    """Rows before this batch count."""
    with pytest.raises(
        DataSourceError, match=rf"^a\.csv, data row 12: the column id holds '{text}', which is no whole"
    ):
        whole_numbers(pa.chunked_array([["1.0", text]]), "id", "a.csv", 10)
