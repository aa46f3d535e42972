"""`cleansing.where` and `cleansing.hide`: kinds of columns, and messages for invalid filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.recipe.filter_tree import FilterProblem
from svc.recipe.row_filter import either, parse_row_filter
from tests.recipe.loading import load, refusal


def test_operators_decide_the_kind_of_a_column() -> None:
    """Operators anywhere in the tree count. A column with `exists` only is not compared."""
    tree = {
        "all": [{"a": {"exists": True}}, {"not": {"a": {"gt": 1}}}, {"b": {"any": ["x"]}}, {"c": {"exists": False}}]
    }
    found = parse_row_filter(tree)
    assert found.kinds == {"a": "numerical", "b": "categorical", "c": "categorical"}
    assert found.compared == {"a", "b"}


def test_a_column_name_must_be_text() -> None:
    """Unlike a YAML file, a dict in Python may have other keys."""
    with pytest.raises(FilterProblem, match="in quotes"):
        parse_row_filter({"not": {7: {"gte": 4}}})


@pytest.mark.parametrize(
    ("where", "words"),
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
        ({"country": "NO"}, '; write {"country": {"any": ["Drama"]}}'),
        ({"rating": 4}, '; write {"rating": {"eq": 2000}}'),
        ({"and": [{"rating": {"gte": 4}}]}, '`and` is written `all`: {"all": [...]}'),
        ({"all": []}, "at least one filter"),
        ({"a": {"eq": 1}, "b": {"eq": 1}}, "exactly one key"),
        ({}, "exactly one key"),
        ({"not": {"not": {"not": {"not": {"not": {"not": {"not": {"not": {"a": {"eq": 1}}}}}}}}}}, "at most 8 levels"),
        ({"any": [{"a": {"eq": 1}}] * 33}, "at most 32 conditions"),
        (["a"], "mapping"),
    ],
)
def test_invalid_filters_are_refused(tmp_path: Path, where: Any, words: str) -> None:
    """The error names the field and the reason."""
    found = refusal(tmp_path, {"cleansing": {"where": where}})
    assert "cleansing.where" in found
    assert words in found


def test_a_filter_changes_the_hash(tmp_path: Path) -> None:
    """A recipe without a filter keeps its hash."""
    plain = load(tmp_path).recipe_hash
    assert load(tmp_path, {"cleansing": {"where": None}}).recipe_hash == plain
    filtered = load(tmp_path, {"cleansing": {"where": {"rating": {"gte": 4}}}})
    assert filtered.recipe_hash != plain
    assert filtered.unexpanded["cleansing"] == {"where": {"rating": {"gte": 4}}}


def test_a_column_has_one_kind_in_where_and_hide(tmp_path: Path) -> None:
    """The combined filter matches the rows of either filter. Different kinds of one column are refused."""
    found = either({"a": {"lt": 4}}, {"all": [{"a": {"exists": True}}, {"b": {"any": ["x"]}}]})
    assert found is not None
    assert (found.kinds, found.compared) == ({"a": "numerical", "b": "categorical"}, {"a", "b"})
    assert found.tree[0] == "any"
    assert either(None, None) is None
    message = refusal(tmp_path, {"cleansing": {"hide": {"a": {"any": ["3"]}}, "where": {"a": {"gte": 4}}}})
    assert "'a' is compared with numbers and with text in hide and where" in message
    assert "cleansing.hide" in refusal(tmp_path, {"cleansing": {"hide": {"a": {"ge": 4}}}})
