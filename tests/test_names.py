"""Patterns of names on which several parts of svc must agree."""

from __future__ import annotations

import re

import pytest

from svc.names import EXTRAS_OF_SCHEMES, HTTP_SCHEMES, KEY_ID, OBJECT_SCHEMES, RECIPE_NAME, RUN_ID, is_float_text


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (RECIPE_NAME, ["a", "A-1_b", "x" * 64], ["", "a.b", "a/b", "ä", "a b", "x" * 65, "a\n"]),
        (KEY_ID, ["k1", "2026-01.prod", "x" * 64], ["", "a:b", "a,b", "x" * 65, "a\n"]),
        (RUN_ID, ["nightly", "2026-01-01.1"], ["", "a b", "../x", "x" * 65]),
    ],
)
def test_names_are_short_and_plain(pattern: str, good: list[str], bad: list[str]) -> None:
    """Names of recipes, key ids and run ids have at most 64 plain characters."""
    assert [name for name in good if not re.fullmatch(pattern, name)] == []
    assert [name for name in bad if re.fullmatch(pattern, name)] == []


def test_each_scheme_is_http_or_an_object_store() -> None:
    """No scheme is both HTTP and an object store. Each object store has an extra that installs its client."""
    assert not OBJECT_SCHEMES & HTTP_SCHEMES
    assert EXTRAS_OF_SCHEMES.keys() == OBJECT_SCHEMES


@pytest.mark.parametrize(("text", "is_float"), [("7.0", True), ("-12.0", True), ("7", False), ("7.5", False)])
def test_whole_numbers_written_as_floats_are_detected(text: str, is_float: bool) -> None:
    """`7.0` is detected. `7`, `7.5`, `v7.0` and `.0` are not."""
    assert is_float_text(text) == is_float
    assert not is_float_text(f"v{text}")
    assert not is_float_text(".0")
