"""Messages for validation errors: values, locations and suggestions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.names import nearest
from svc.recipe import problems
from svc.recipe.problems import field_path, shown, value_at
from svc.recipe.schema import Recipe
from svc.recipe.source_options import BUILT_IN_OPTIONS
from tests.recipe.loading import METADATA, refusal


@pytest.mark.parametrize(
    ("loc", "text"),
    [
        (("training", "cutoff"), "training.cutoff"),
        (("features", "item", "columns", 0, "kind"), "features.item.columns[0].kind"),
        (("source", "dtype", "[key]"), "source.dtype"),
        ((), ""),
    ],
)
def test_locations_have_dots_and_brackets(loc: tuple[int | str, ...], text: str) -> None:
    """Keys are joined by dots, and positions are in brackets."""
    assert field_path(loc) == text


def test_the_nearest_name_ignores_case_and_must_be_similar() -> None:
    """No name is suggested if none is similar."""
    assert nearest("CUTOF", ["cutoff", "metric"]) == "cutoff"
    assert nearest("zzz", ["cutoff", "metric"]) is None


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20))
def test_any_value_is_shown_in_a_short_line(value: object) -> None:
    """Long and deep values are shown in one line of fewer than 400 characters."""
    text = shown(value)
    assert 0 < len(text) < 400
    assert "\n" not in text


def test_credentials_in_a_value_are_not_shown() -> None:
    """The password of a URL is redacted, because messages end up in logs."""
    assert "hunter2" not in shown("https://user:hunter2@host/a.csv")


def test_a_missing_location_gives_the_deepest_existing_value() -> None:
    """The location of a missing key does not exist, so the error shows the value that lacks the key."""
    assert value_at({"a": [1, {"b": 2}]}, ("a", 1, "b")) == 2
    assert value_at({"a": [1]}, ("a", 5, "b")) == [1]


def _lines(folder: Path, more: dict[str, Any]) -> list[str]:
    """Return the problems of a recipe, without the name of its file."""
    return [line.split("recipe.yaml: ")[-1].strip() for line in refusal(folder, more).splitlines()]


ALGORITHM = (
    "training.algorithms[0]: found the text 'IALSS', which is not a known algorithm; did you mean IALSRecommender? "
)
PLAIN: dict[str, tuple[dict[str, Any], str]] = {
    "a wrong algorithm": ({"training": {"algorithms": ["IALSS"]}}, ALGORITHM),
    "no algorithm": (
        {"training": {"algorithms": []}},
        "training.algorithms: must have at least one entry; found a list of 0",
    ),
    "a half-life in words": (
        {"training": {"time_decay": {"half_life": "30 days"}}},
        "training.time_decay.half_life: must be a number with its unit, such as 12h, 30d, 4w or 1.5y, or none; "
        "found the text '30 days'; did you mean 30d?",
    ),
    "a half-life without unit": (
        {"training": {"time_decay": {"half_life": 30}}},
        "training.time_decay.half_life: found 30, which has no unit; write 30d for days; the units are h, d, w and y",
    ),
    "half-lives without unit": (
        {"training": {"time_decay": {"half_life": ["7d", 30]}}},
        "training.time_decay.half_life[1]: found 30, which has no unit; write 30d for days; the units are h, d, w and",
    ),
    "an expiry in words": (
        {"output": {"path": "a.svc", "expires_after": "30 days"}},
        "output.expires_after: must be a whole number with its unit, such as 90min, 36h, 30d, 4w or 1y; "
        "found the text '30 days'; did you mean 30d?",
    ),
    "an expiry that no words could make valid": (
        {"output": {"path": "a.svc", "expires_after": "1.5 days"}},
        "output.expires_after: must be a whole number with its unit, such as 90min, 36h, 30d, 4w or 1y; "
        "found the text '1.5 days'",
    ),
    "a fallback that is on": (
        {"serving": {"fallback": True}},
        "serving.fallback: must be one of 'none' or 'popular'; found true; write 'popular'",
    ),
    "a ranker that is on": (
        {"training": {"ranker": True}},
        "training.ranker: must be one of 'search' or 'off'; found true; write 'search'",
    ),
    "versions that are on": (
        {"versioning": True},
        "versioning: must be one of 'append_sha' or 'always_overwrite'; found true; write 'append_sha'",
    ),
    "versions that are off": (
        {"versioning": False},
        "versioning: must be one of 'append_sha' or 'always_overwrite'; found false; write 'always_overwrite'",
    ),
    "a percentage": (
        {"training": {"split": {"heldout_ratio": "20%"}}},
        "training.split.heldout_ratio: must be a number; found the text '20%'; write 0.2",
    ),
    "a number with two points": (
        {"training": {"split": {"heldout_ratio": "1.2.3"}}},
        "training.split.heldout_ratio: must be a number; found the text '1.2.3'",
    ),
    "a name with a blank": (
        {"name": "my movies"},
        "name: must be 1 to 64 letters, digits, hyphens and underscores; found the text 'my movies'",
    ),
    "a name that is longer than what a message shows": (
        {"name": "a" * 100},
        f"name: must be 1 to 64 letters, digits, hyphens and underscores; found the text '{'a' * 77}...'",
    ),
    "recency that is neither": (
        {"training": {"recency": "yes"}},
        "training.recency: must be one of 'search' or 'off', or a number; found the text 'yes'",
    ),
    "a weight that is no number": (
        {"cleansing": {"event_weights": {"buy": "3x"}}},
        "cleansing.event_weights.buy: must be a number, or 'exclude'; found the text '3x'",
    ),
    "a misspelt key that is required": (
        {"schema": {"user_colum": "u", "item_column": "i"}},
        "schema.user_colum: unknown key; did you mean `user_column`? allowed: ",
    ),
    "a metric with its cutoff": (
        {"metric": "ndcg@10"},
        "metric: must be one of 'ndcg', 'map', 'recall' or 'hit' (did you mean 'ndcg'?); found the text 'ndcg@10'; "
        "write `metric: ndcg` and `training.cutoff: 10`",
    ),
    "algorithms with their trials": (
        {"training": {"algorithms": {"IALS": 10, "TopPop": 3}}},
        "training.algorithms: must be a list; found a mapping; write ['IALS', 'TopPop']",
    ),
    "names of columns": (
        {"source": {"type": "csv", "path": "rows.csv", "names": ["u", "i"]}},
        "source.names: unknown key; `header: null` numbers the columns, so `item_column: '1'` is the second",
    ),
    "a least rating": (
        {"cleansing": {"min_rating": 3}},
        "cleansing.min_rating: unknown key; `where` keeps the rows that mean a choice, as where: {rating: {gte: 4}}",
    ),
    "a split by its scheme": (
        {"split": "time_user"},
        "split: must be a mapping of keys to values; found the text 'time_user'; write {'scheme': 'time_user'}",
    ),
    "a promotion by its mode": (
        {"promotion": "enforce"},
        "promotion: must be a mapping of keys to values; found the text 'enforce'; write {'mode': 'enforce'}",
    ),
    "filter fields by name": (
        {"item_metadata": {**METADATA, "filter_fields": ["genres"]}},
        "item_metadata.filter_fields[0]: must be a mapping of keys to values; found the text 'genres'; "
        "as in {'name': 'genres', 'kind': 'categorical'}, or with kind multi_label or numerical",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "expected"), PLAIN.values(), ids=PLAIN.keys())
def test_one_mistake_gives_one_plain_line(more: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """The line has no consequences of the mistake, no regular expression and no words of pydantic."""
    (line,) = _lines(tmp_path, more)
    assert line.startswith(expected)
    assert ("did you mean" in line) == ("did you mean" in expected)


def test_keys_of_item_metadata_from_other_products_get_hints(tmp_path: Path) -> None:
    """Each unknown key gets svc's form as a hint. The keys that are missing in consequence are not reported."""
    metadata = {"type": "csv", "path": "items.csv", "item_id_column": "i", "fields": ["title"]}
    table = "unknown key; a table belongs under `source`, as source: {type: csv, path: items.csv}"
    assert sorted(_lines(tmp_path, {"item_metadata": metadata})[1:]) == [
        "item_metadata.item_id_column: unknown key; it is `id_column`",
        f"item_metadata.path: {table}",
        f"item_metadata.type: {table}",
    ]


def test_the_id_column_is_refused_as_a_feature(tmp_path: Path) -> None:
    """Every item has another id, so an id says nothing about new items."""
    columns = [{"name": "i", "kind": "categorical"}]
    item = {"source": {"type": "csv", "path": "a.csv"}, "id_column": "i", "columns": columns}
    (line,) = _lines(tmp_path, {"features": {"item": item}})
    assert line.startswith("features.item: columns names 'i', which is the id_column")


def test_keys_of_boosts_from_other_products_get_hints(tmp_path: Path) -> None:
    """The missing filter of the boost is not reported separately."""
    boost = {"field": "genres", "value": "Drama", "factor": 2}
    lines = _lines(tmp_path, {"item_metadata": METADATA, "serving": {"boosts": [boost]}})
    form = "unknown key; a boost names its items by a filter: {filter: {genres: {any: [Drama]}}, factor: 2}"
    assert lines[1:] == [f"serving.boosts[0].{key}: {form}" for key in ("field", "value")]


def test_every_pattern_of_a_recipe_has_a_text() -> None:
    """Messages show this text instead of the regular expression."""
    schemas = [model.model_json_schema() for model in (Recipe, *BUILT_IN_OPTIONS.values())]
    patterns = set(re.findall(r'"pattern": "((?:[^"\\]|\\.)*)"', json.dumps(schemas)))
    assert len(patterns) > 3
    assert {json.loads(f'"{pattern}"') for pattern in patterns} <= set(problems.PATTERNS_IN_WORDS)
