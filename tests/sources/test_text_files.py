"""Lines of bounded length, and one character in place of a delimiter of several."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.sources.text_files import MARK, MAX_LINE_CHARACTERS, SingleDelimiter, bounded_lines


@given(text=st.text("a:|\n\ré", max_size=50), delimiter=st.sampled_from(["::", "||", ":|:"]), size=st.integers(1, 9))
def test_each_delimiter_becomes_one_character(text: str, delimiter: str, size: int) -> None:
    """Reading in pieces of any size gives the same bytes."""
    reader, pieces = SingleDelimiter(io.StringIO(text, newline=""), delimiter), []
    while piece := reader.read(size):
        pieces.append(piece)
    assert b"".join(pieces) == text.replace(delimiter, MARK).encode()


def test_the_character_itself_is_refused() -> None:
    """It could not be told from a delimiter."""
    with pytest.raises(csv.Error, match="control character"):
        SingleDelimiter(io.StringIO(f"a{MARK}b"), "::").read()


def test_lines_are_bounded() -> None:
    """A longer line is an error before all of it is read."""
    assert list(bounded_lines(io.StringIO("a\nb"))) == ["a\n", "b"]
    text = io.StringIO("x" * (MAX_LINE_CHARACTERS + 5))
    with pytest.raises(csv.Error, match="more than"):
        list(bounded_lines(text))
    assert text.tell() == MAX_LINE_CHARACTERS
