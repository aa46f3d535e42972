"""The shapes of files. `tests/tables/test_shapes.py` runs the queries."""

from __future__ import annotations

import pytest

from svc.sources.shapes import shape_hint

HEADER = ["user", *"abcdef"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEADER, ["u", *"010011"]], "a column of 0 and 1"),
        ([HEADER, ["u", *"tfttff"]], "a column of 0 and 1"),
        ([HEADER, ["u", *"010012"]], ""),
        ([HEADER[:4], ["u", *"010"]], ""),
        ([["a"], ["a", "b"], ["a", "b", "c"]], "1 to 3 fields, as lists"),
        ([["a", "b"], ["a", "b", "c"], []], ""),
        ([HEADER], ""),
        ([], ""),
    ],
)
def test_only_wide_tables_and_lists_are_named(lines: list[list[str]], words: str) -> None:
    """A line with a comma too many makes no list."""
    hint = shape_hint(lines, "rows.csv", ",", ("u", "i"))
    assert words in hint
    assert bool(hint) is bool(words)
