"""A weaker filter keeps whatever the filter keeps."""

from __future__ import annotations

from typing import Any

import pytest

from svc.recipe.row_filter import parse_row_filter
from svc.sources.prefilter.weakened import weakened


@pytest.mark.parametrize(
    ("where", "term"),
    [
        ({"a": {"gte": 1}}, "a gte 1.0"),
        ({"a": {"gte": 1, "exists": True}}, "a gte 1.0"),
        ({"a": {"exists": True}}, None),
        ({"not": {"a": {"gte": 1}}}, None),
        ({"all": [{"a": {"gte": 1}}, {"not": {"a": {"lt": 3}}}]}, "a gte 1.0"),
        ({"any": [{"a": {"gte": 1}}, {"not": {"a": {"lt": 3}}}]}, None),
        ({"any": [{"a": {"lt": 1}}, {"all": [{"a": {"gt": 2}}, {"b": {"exists": True}}]}]}, "a gt 2.0 | a lt 1.0"),
    ],
)
def test_conditions_without_a_term_are_taken_for_true(where: dict[str, Any], term: str | None) -> None:
    """Within `all` the others count; within `any` nothing is left to say."""

    def translate(name: str, operator: str, operand: Any) -> str | None:
        return None if operator == "exists" else f"{name} {operator} {operand}"

    assert weakened(parse_row_filter(where).tree, translate, {"all": " & ".join, "any": " | ".join}) == term
