"""`cleansing.where` in a recipe: kinds follow from operators; what the recipe alone shows to be wrong is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.recipe.filter_tree import FilterProblem
from svc.recipe.row_filter import either, parse_row_filter
from tests.recipe.loading import load, refusal


def test_kinds_follow_from_operators() -> None:
    """Wherever in the tree the operators stand; a column of which only `exists` is asked is not compared."""
    tree = {
        "all": [{"a": {"exists": True}}, {"not": {"a": {"gt": 1}}}, {"b": {"any": ["x"]}}, {"c": {"exists": False}}]
    }
    found = parse_row_filter(tree)
    assert found.kinds == {"a": "numerical", "b": "categorical", "c": "categorical"}
    assert found.compared == {"a", "b"}


def test_columns_are_named_by_text() -> None:
    """A dict in Python may have other keys than a YAML file."""
    with pytest.raises(FilterProblem, match="in quotes"):
        parse_row_filter({"not": {7: {"gte": 4}}})


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({"rating": {"ge": 4}}, "did you mean 'gte'?"),
        ({"tags": {"all": ["a"]}}, "use `any`"),
        ({"rating": {"gte": 4, "any": ["4"]}}, "not with both"),
        ({"any": [{"rating": {"gte": 4}}, {"rating": {"any": ["4"]}}]}, "'rating' is compared with numbers and with"),
        ({"rating": {"gte": "4"}}, "finite number"),
        ({"country": {"any": [47]}}, "this is a number"),
        ({"country": {"any": []}}, "give a list of 1 to 1000 strings"),
        ({"country": {"exists": "yes"}}, "takes true or false"),
        ({"country": {}}, "a condition is a mapping of operators to values"),
        ({"country": "NO"}, "a condition is a mapping of operators to values"),
        ({"all": []}, "at least one filter"),
        ({"a": {"eq": 1}, "b": {"eq": 1}}, "exactly one key"),
        ({}, "exactly one key"),
        ({"not": {"not": {"not": {"not": {"not": {"not": {"not": {"not": {"a": {"eq": 1}}}}}}}}}}, "at most 8 levels"),
        ({"any": [{"a": {"eq": 1}}] * 33}, "at most 32 conditions"),
        (["a"], "mapping"),
    ],
)
def test_invalid_filters_are_refused(tmp_path: Path, where: Any, told: str) -> None:
    """With exit code 2, naming the field."""
    found = refusal(tmp_path, {"cleansing": {"where": where}})
    assert "cleansing.where" in found
    assert told in found


def test_a_filter_is_part_of_the_hash_and_its_absence_is_not(tmp_path: Path) -> None:
    """Recipes without one keep their hash."""
    plain = load(tmp_path).recipe_hash
    assert load(tmp_path, {"cleansing": {"where": None}}).recipe_hash == plain
    filtered = load(tmp_path, {"cleansing": {"where": {"rating": {"gte": 4}}}})
    assert filtered.recipe_hash != plain
    assert filtered.unexpanded["cleansing"] == {"where": {"rating": {"gte": 4}}}


def test_a_column_is_of_one_kind_in_both_filters(tmp_path: Path) -> None:
    """Of other columns each filter says its own; the filter of the rows that count holds where one of them does."""
    found = either({"a": {"lt": 4}}, {"all": [{"a": {"exists": True}}, {"b": {"any": ["x"]}}]})
    assert found is not None
    assert (found.kinds, found.compared) == ({"a": "numerical", "b": "categorical"}, {"a", "b"})
    assert found.tree[0] == "any"
    assert either(None, None) is None
    told = refusal(tmp_path, {"cleansing": {"hide": {"a": {"any": ["3"]}}, "where": {"a": {"gte": 4}}}})
    assert "'a' is compared with numbers and with text in hide and where" in told
    assert "cleansing.hide" in refusal(tmp_path, {"cleansing": {"hide": {"a": {"ge": 4}}}})
