"""Filter trees: valid trees, their canonical form, and the message for each invalid tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.recipe.filter_tree import FilterProblem, either, parse_filter, parse_row_filter
from tests.recipe.loading import load, refusal

KINDS = {"genres": "multi_label", "country": "categorical", "year": "numerical"}
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["all", "any", "not", "genres", "country", "year", "gte", "exists", "x"]), inner, max_size=2
        )
    ),
    max_leaves=12,
)


def nested(levels: int) -> dict[str, Any]:
    """Return a tree with this number of levels."""
    tree: dict[str, Any] = {"year": {"eq": 1}}
    for _ in range(levels - 1):
        tree = {"not": tree}
    return tree


REFUSED: list[tuple[Any, tuple[str | int, ...], str, str]] = [
    ("x", (), "exactly one key: all, any, not or a field; this is a string", "filter_node"),
    ({}, (), "an object with 0 keys", "filter_node"),
    ({"year": {"eq": 1}, "country": {"any": ["a"]}}, (), "an object with 2 keys", "filter_node"),
    ({"all": []}, ("all",), "`all` takes a list with at least one filter", "filter_list"),
    ({"any": {"year": {"eq": 1}}}, ("any",), "`any` takes a list with at least one filter", "filter_list"),
    ({"any": [{"year": {"eq": 1}}, 7]}, ("any", 1), "this is a number", "filter_node"),
    ({"not": None}, ("not",), "this is null", "filter_node"),
    ({"yaer": {"eq": 1}}, ("yaer",), "did you mean 'year'? there are genres, country, year", "filter_field"),
    ({"year": {}}, ("year",), "operators of a numerical field: gt, gte, lt, lte, eq, exists", "filter_condition"),
    ({"year": 1990}, ("year",), '; as in {"year": {"eq": 2000}}', "filter_condition"),
    ({"year": {"any": ["1990"]}}, ("year", "any"), "a numerical field takes gt, gte, lt, lte", "filter_operator"),
    ({"year": {"gtee": 1}}, ("year", "gtee"), "did you mean 'gte'?", "filter_operator"),
    ({"country": {"eq": "a"}}, ("country", "eq"), "did you mean 'any', with a list?", "filter_operator"),
    ({"or": [{"year": {"eq": 1}}]}, ("or",), '`or` is written `any`: {"any": [...]}', "filter_field"),
    ({"country": {"all": ["a"]}}, ("country", "all"), "a categorical field takes any, exists", "filter_operator"),
    ({"year": {"eq": "1990"}}, ("year", "eq"), "compared with a finite number", "filter_value"),
    ({"year": {"eq": True}}, ("year", "eq"), "compared with a finite number", "filter_value"),
    ({"year": {"eq": 10**400}}, ("year", "eq"), "compared with a finite number", "filter_value"),
    ({"year": {"exists": 1}}, ("year", "exists"), "`exists` takes true or false", "filter_value"),
    ({"country": {"any": []}}, ("country", "any"), "1 to 1000 strings; this is a list of 0", "filter_list"),
    ({"country": {"any": ["a"] * 1001}}, ("country", "any"), "this is a list of 1001", "filter_list"),
    ({"country": {"any": "a"}}, ("country", "any"), "this is a string", "filter_list"),
    ({"genres": {"any": ["a", 7]}}, ("genres", "any", 1), "are strings; this is a number", "filter_value"),
    ({"genres": {"any": ["a" * 8193]}}, ("genres", "any", 0), "at most 8192 characters", "filter_value"),
    ({"all": [{"year": {"eq": 1}}] * 33}, ("all",), "at most 32 conditions", "filter_size"),
    ({"all": [{"any": [{"year": {"eq": 1}}] * 20}] * 2}, ("all", 1, "any", 12), "at most 32 conditions", "filter_size"),
    (nested(9), ("not",) * 8, "at most 8 levels", "filter_depth"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: str(case[0])[:40])
def test_an_invalid_tree_is_refused_with_its_place_and_a_hint(case: tuple[Any, Any, str, str]) -> None:
    """The error has the place, the message and the type, and repeats no value of the tree."""
    tree, place, words, type = case
    with pytest.raises(FilterProblem) as caught:
        parse_filter(tree, KINDS)
    assert caught.value.place == place
    assert words in caught.value.message
    assert caught.value.type == type


def test_filters_are_refused_for_a_recipe_without_filter_fields() -> None:
    """The error says that the recipe declares no filter fields, instead of suggesting other names."""
    with pytest.raises(FilterProblem, match="declares no item_metadata"):
        parse_filter({"year": {"eq": 1}}, {})


def test_bounds_are_inclusive() -> None:
    """Eight levels, 32 conditions and 1,000 values are accepted. Several operators of one field are one condition."""
    parse_filter(nested(8), KINDS)
    parse_row_filter(nested(8))
    with pytest.raises(FilterProblem, match="at most 8 levels"):
        parse_row_filter(nested(9))
    parse_filter({"all": [{"year": {"gte": 1, "lt": 3}}] * 32}, KINDS)
    parse_filter({"country": {"any": [str(number) for number in range(1000)]}}, KINDS)


def test_order_and_repeats_do_not_change_the_canonical_form() -> None:
    """Filters that differ only in order or repeats have one canonical form, so that a cache holds them once."""
    first = {"all": [{"genres": {"any": ["b", "a", "b"]}}, {"year": {"lt": 3, "gte": 1}}]}
    second = {"all": [{"year": {"gte": 1.0, "lt": 3}}, {"genres": {"any": ["a", "b"]}}, {"year": {"lt": 3, "gte": 1}}]}
    assert parse_filter(first, KINDS) == parse_filter(second, KINDS)


@given(values)
def test_any_value_is_parsed_or_raises_filter_problem(tree: Any) -> None:
    """Arbitrary values raise FilterProblem or parse. No other exception escapes."""
    try:
        canonical = parse_filter(tree, KINDS)
    except FilterProblem as problem:
        assert problem.message
    else:
        assert hash(canonical) is not None


def test_operators_decide_the_kind_of_a_column() -> None:
    """Operators anywhere in the tree count. A column with `exists` only is not compared."""
    tree = {
        "all": [{"a": {"exists": True}}, {"not": {"a": {"gt": 1}}}, {"b": {"any": ["x"]}}, {"c": {"exists": False}}]
    }
    found = parse_row_filter(tree)
    assert found.kinds == {"a": "numerical", "b": "categorical", "c": "categorical"}
    assert found.compared == {"a", "b"}


def test_a_column_name_must_be_text() -> None:
    """A dict in Python may have a number as its key. The message asks for quotes."""
    with pytest.raises(FilterProblem, match="in quotes"):
        parse_row_filter({"not": {7: {"gte": 4}}})


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"rating": {"ge": 4}}, "did you mean 'gte'?"),
        ({"tags": {"all": ["a"]}}, "use `any`"),
        ({"rating": {"gte": 4, "any": ["4"]}}, "not with both"),
        ({"any": [{"rating": {"gte": 4}}, {"rating": {"any": ["4"]}}]}, "'rating' is compared with numbers and with"),
        ({"country": {"any": [47]}}, "this is a number"),
        ({"country": {}}, "a condition is a mapping of operators to values"),
        ({"country": "NO"}, '; write {"country": {"any": ["NO"]}}'),
        ({"rating": 4}, '; write {"rating": {"eq": 4}}'),
        ({"and": [{"rating": {"gte": 4}}]}, '`and` is written `all`: {"all": [...]}'),
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
    """A filter of rows changes the hash, and `where: null` does not."""
    plain = load(tmp_path).recipe_hash
    assert load(tmp_path, {"cleansing": {"where": None}}).recipe_hash == plain
    filtered = load(tmp_path, {"cleansing": {"where": {"rating": {"gte": 4}}}})
    assert filtered.recipe_hash != plain
    assert filtered.unexpanded["cleansing"] == {"where": {"rating": {"gte": 4}}}


def test_a_column_has_one_kind_in_where_and_hide(tmp_path: Path) -> None:
    """The combined filter matches the rows of either filter. Different kinds of one column are refused."""
    hide, where = {"a": {"lt": 4}}, {"all": [{"a": {"exists": True}}, {"b": {"any": ["x"]}}]}
    found = either(parse_row_filter(hide), parse_row_filter(where))
    assert found is not None
    assert (found.kinds, found.compared) == ({"a": "numerical", "b": "categorical"}, {"a", "b"})
    assert found.tree[0] == "any"
    assert either(None, None) is None
    message = refusal(tmp_path, {"cleansing": {"hide": {"a": {"any": ["3"]}}, "where": {"a": {"gte": 4}}}})
    assert "the column 'a' is compared with numbers and with text; keep one of them" in message
    assert "cleansing.hide" in refusal(tmp_path, {"cleansing": {"hide": {"a": {"ge": 4}}}})
