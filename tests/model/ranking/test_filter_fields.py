"""Compiled filters, compared with brute force, which checks each item against the tree."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.errors import MetadataError
from svc.model.ranking import filter_fields
from svc.model.ranking.filter_fields import ClientTree, FilterFields, LabelField, NumberField
from svc.recipe.filter_tree import FilterProblem, parse_filter

KINDS = {"genres": "multi_label", "country": "categorical", "year": "numerical"}
LABELS = ["a", "b", "c", "d e", "é"]
rows = st.lists(
    st.fixed_dictionaries(
        {
            "genres": st.none() | st.lists(st.sampled_from([*LABELS, " ", ""]), max_size=3).map("|".join),
            "country": st.none() | st.sampled_from([*LABELS, " a ", "", 7, 7.0, True]),
            "year": st.none() | st.integers(-3, 3) | st.sampled_from([math.nan, math.inf, 0.5, " ", "2"]),
        }
    ),
    min_size=1,
    max_size=30,
)
some_labels = st.lists(st.sampled_from([*LABELS, "x", "7", "true"]), min_size=1, max_size=3)
numbers = st.dictionaries(
    st.sampled_from(["gt", "gte", "lt", "lte", "eq"]), st.integers(-3, 3) | st.just(0.5), min_size=1
)
conditions = st.one_of(
    st.builds(lambda values: {"genres": {"any": values}}, some_labels),
    st.builds(lambda values: {"genres": {"all": values}}, some_labels),
    st.builds(lambda values, there: {"country": {"any": values, "exists": there}}, some_labels, st.booleans()),
    st.builds(lambda name, there: {name: {"exists": there}}, st.sampled_from(list(KINDS)), st.booleans()),
    st.builds(lambda compared: {"year": compared}, numbers),
)
trees = st.recursive(
    conditions,
    lambda inner: (
        st.builds(lambda parts: {"all": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda parts: {"any": parts}, st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda part: {"not": part}, inner)
    ),
    max_leaves=6,
)


def labels(row: dict[str, Any], name: str) -> set[str]:
    value = row[name]
    if value is None:
        return set()
    if isinstance(value, bool):
        value = "true"
    text = str(int(value)) if isinstance(value, float) else str(value)
    parts = text.split("|") if name == "genres" else [text]
    return {part.strip() for part in parts} - {""}


def number(row: dict[str, Any]) -> float | None:
    value = row["year"]
    if value is None or (isinstance(value, str) and not value.strip()) or not math.isfinite(float(value)):
        return None
    return float(value)


def compares(left: float | None, name: str, right: float) -> bool:
    if left is None:
        return False
    return {"gt": left > right, "gte": left >= right, "lt": left < right, "lte": left <= right, "eq": left == right}[
        name
    ]


def satisfies(row: dict[str, Any], tree: dict[str, Any]) -> bool:
    """Return whether an item satisfies a tree, by the documented rules of filters."""
    ((key, value),) = tree.items()
    if key == "all":
        return all(satisfies(row, part) for part in value)
    if key == "any":
        return any(satisfies(row, part) for part in value)
    if key == "not":
        return not satisfies(row, value)
    if key == "year":
        missing = number(row) is None
        return all(
            missing != operand if name == "exists" else compares(number(row), name, operand)
            for name, operand in value.items()
        )
    there = labels(row, key)
    tests = {"any": there & set(value.get("any", ())), "all": set(value.get("all", ())) <= there}
    return all(bool(there) == operand if name == "exists" else bool(tests[name]) for name, operand in value.items())


def fields_of(table: list[dict[str, Any]]) -> FilterFields:
    """Return the filter fields of a table."""

    def column(name: str) -> list[Any]:
        return [row[name] for row in table]

    fields: dict[str, Any] = {
        name: LabelField.read(name, KINDS[name], "|", column(name), len(table)) for name in ("genres", "country")
    }
    return FilterFields({**fields, "year": NumberField.read("year", column("year"), len(table))}, len(table))


@settings(max_examples=70)
@given(rows, st.lists(trees, min_size=1, max_size=10))
def test_any_filter_keeps_the_items_that_brute_force_keeps(table: list[dict[str, Any]], some: list[Any]) -> None:
    """Random trees over random tables agree, with missing and odd values.

    Filters from the cache agree, too.
    """
    fields = fields_of(table)
    for tree in some:
        canonical = parse_filter(tree, KINDS)
        expected = [item for item, row in enumerate(table) if satisfies(row, tree)]
        assert fields.items(canonical).columns().tolist() == expected
        assert fields.cached(canonical) is fields.items(canonical)


def test_the_cache_is_bounded_and_drops_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cached filter takes at most one bit an item."""
    monkeypatch.setattr(filter_fields, "CACHE_BYTES", 0)
    monkeypatch.setattr(filter_fields, "LEAST_CACHED", 3)
    fields = fields_of([{"genres": "a", "country": "b", "year": year} for year in range(20)])
    some = [parse_filter({"year": {"lt": year}}, KINDS) for year in range(4)]
    for tree in some[:3]:
        assert fields.items(tree).nbytes <= 3
    assert fields.cached(some[0]) is not None
    fields.items(some[3])
    assert [fields.cached(tree) is not None for tree in some] == [True, False, True, True]


def test_a_cached_tree_is_not_parsed_again() -> None:
    """Each spelling of a valid tree is cached beside the canonical form. A refused tree is not."""
    fields = fields_of([{"genres": "a", "country": "b", "year": year} for year in range(20)])
    parsed: list[object] = []

    def canonical(tree: object) -> Any:
        parsed.append(tree)
        return parse_filter(tree, KINDS)

    spellings = [{"year": {"lt": 5, "gt": 1}}, {"year": {"gt": 1, "lt": 5}}]
    first, second = (fields.items_as_asked(ClientTree(tree), canonical) for tree in spellings)
    assert first is second is fields.items_as_asked(ClientTree(spellings[0]), canonical)
    assert first.columns().tolist() == [2, 3, 4]
    assert parsed == spellings
    for _ in range(2):
        with pytest.raises(FilterProblem):
            fields.items_as_asked(ClientTree({"yaer": {"gt": 1}}), canonical)
    assert len(parsed) == 4


def test_parts_that_cannot_change_the_result_are_not_compiled() -> None:
    """In `all`, nothing is compiled after a condition that no item satisfies.

    In `any`, nothing is compiled after a condition that every item satisfies.
    """
    fields = fields_of([{"genres": "a", "country": "b", "year": year} for year in range(20)])
    del fields.fields["year"]  # compiling a condition on it would fail
    for key, country, count in (("all", "nowhere", 0), ("any", "b", 20)):
        tree = parse_filter({key: [{"country": {"any": [country]}}, {"year": {"gt": 1}}]}, KINDS)
        assert tree[1][0][1] == "country"
        assert fields.items(tree).count == count


def test_an_error_names_the_field_and_the_kind_of_a_wrong_cell() -> None:
    """The error also says how to correct the table or the recipe."""
    with pytest.raises(MetadataError, match="'year' is numerical, and a cell holds a text"):
        NumberField.read("year", [1990, "old"], 2)
    with pytest.raises(MetadataError, match="filter field 'country': a map does not belong here"):
        LabelField.read("country", "categorical", "|", [{}], 1)


def test_fields_describe_their_most_frequent_values() -> None:
    """The most frequent values come first, at most 200. A field without numbers has no range."""
    table = [{"genres": f"x{item}|a", "country": None, "year": None} for item in range(250)]
    genres, country, year = fields_of(table).describe()
    assert genres["values"][:3] == ["a", "x0", "x1"]
    assert len(genres["values"]) == 200
    assert country == {"name": "country", "kind": "categorical", "values": []}
    assert year == {"name": "year", "kind": "numerical", "min": None, "max": None}


def test_new_items_have_no_value_in_a_field_that_their_list_lacks() -> None:
    """A list of new items may be older than the fields that its recipe now declares."""
    own = FilterFields(
        {
            "country": LabelField.read("country", "categorical", "|", ["a", "b"], 2),
            "year": NumberField.read("year", [1, 2], 2),
        },
        2,
    )
    others = FilterFields({"year": LabelField.read("year", "categorical", "|", ["1"], 1)}, 1)
    for other in (others, FilterFields({}, 1)):
        joined = own.followed_by(other)
        for name in own.fields:
            there = joined.items(parse_filter({name: {"exists": True}}, joined.kinds))
            assert (there.columns().tolist(), len(there.flags())) == ([0, 1], 3)
            others_there = joined.items(parse_filter({"not": {name: {"exists": True}}}, joined.kinds))
            assert (others_there.columns().tolist(), len(others_there.flags())) == ([2], 3)
