"""Recipe fields that weigh interactions by their time. Their whole recipes are in tests/recipe/test_schema.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from svc.recipe.algorithms import DEFAULT_ALGORITHMS, TRANSITIONS
from svc.recipe.training_schema import TimeDecay, check_recency, recency_in_effect, seconds, with_default_algorithms
from tests.recipe.loading import METADATA, load, refusal

SPLITS: dict[str, dict[str, Any]] = {
    "none": {},
    "ratio": {"split": {"heldout_ratio": 0.3}},
    "written": {"split": {"scheme": "time_user"}},
    "random": {"split": {"scheme": "random"}},
}
FEATURES = {
    "source": {"type": "csv", "path": "films.csv"},
    "id_column": "film",
    "columns": [{"name": "year", "kind": "numerical"}],
}


def test_a_time_column_makes_time_user_the_default_split(tmp_path: Path) -> None:
    """An explicit scheme is kept and has another hash. Other keys of the split are kept."""
    loaded = {name: load(tmp_path, more) for name, more in SPLITS.items()}
    schemes = [loaded[name].recipe.training.split.scheme for name in SPLITS]
    assert schemes == ["time_user", "time_user", "time_user", "random"]
    assert loaded["ratio"].recipe.training.split.heldout_ratio == 0.3
    assert loaded["none"].recipe_hash == loaded["written"].recipe_hash != loaded["random"].recipe_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("none", None), ("90min", 5400), ("12h", 43_200), ("7d", 604_800), ("1.5y", 47_336_400)],
)
def test_durations_are_minutes_hours_days_weeks_or_years(text: str | None, expected: float | None) -> None:
    """The number of a duration may have a decimal point."""
    assert seconds(text) == expected


def test_repeated_half_lives_are_refused() -> None:
    """A list names each half-life once. A single half-life needs no list."""
    assert TimeDecay.model_validate({"half_life": "7d"}).half_life == ("7d",)
    with pytest.raises(ValidationError, match="names '7d' twice"):
        TimeDecay.model_validate({"half_life": ["7d", "none", "7d"]})


def test_the_default_recency_is_off_if_it_cannot_be_searched() -> None:
    """Recency cannot be searched without times or with a random split. An explicit `search` is refused there."""
    for time_column, scheme in (("t", "random"), (None, "leave_one_out")):
        assert recency_in_effect("search", time_column=time_column, scheme=scheme) == 0.0
        with pytest.raises(
            ValueError, match=r"training\.recency (needs schema\.time|is `search`, which needs a split)"
        ):
            check_recency("search", time_column=time_column, scheme=scheme)
    assert recency_in_effect("search", time_column="t", scheme="time_user") == "search"
    check_recency("off", time_column=None, scheme="random")
    assert recency_in_effect(2, time_column="t", scheme="random") == 2.0


def test_transitions_join_the_defaults_if_order_counts() -> None:
    """A recency is searched, or fixed above 0. A recipe with its own list of algorithms is not changed."""
    timed, split = {"time_column": "t"}, {"scheme": "leave_one_out"}
    for given in ({"split": split}, {"split": split, "recency": 0.5}, {"recency": 0.5}):
        found = with_default_algorithms({"schema": timed, "training": given})
        assert found["training"] == {**given, "algorithms": (*DEFAULT_ALGORITHMS, TRANSITIONS)}
    for schema, training in [
        (timed, {}),
        (timed, None),
        (timed, {"split": {"scheme": "random"}}),
        (timed, {"split": split, "recency": "off"}),
        (timed, {"split": split, "recency": False}),
        (timed, {"split": split, "recency": 0}),
        ({}, {"recency": 0.5}),
        (timed, {"split": split, "algorithms": ["IALS"]}),
        ({}, {"split": split}),
        (timed, {"split": "leave_one_out"}),
        ("t", {"split": split}),
        (timed, [split]),
    ]:
        recipe = {"schema": schema, "training": training}
        assert with_default_algorithms(recipe) == recipe


def with_column(**column: Any) -> dict[str, Any]:
    """Return a recipe block with this feature column."""
    return {"features": {"item": {**FEATURES, "columns": [{"name": "about", **column}]}}}


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"item_metadata": {**METADATA, "fields": [], "filter_fields": []}}, "needs `fields`, `filter_fields` or both"),
    ({"item_metadata": {**METADATA, "filter_fields": [{"name": "any", "kind": "numerical"}]}}, "a word of filters"),
    ({"item_metadata": {**METADATA, "filter_fields": METADATA["filter_fields"] * 2}}, "names 'genres' twice"),
    ({"item_metadata": {**METADATA, "fields": ["title", "score"]}}, "names 'score', which every answer already has"),
    ({"features": {"item": {**FEATURES, "columns": FEATURES["columns"] * 2}}}, "names 'year' twice"),
    ({"features": {"item": {**FEATURES, "columns": []}}}, "features.item.columns"),
    ({"features": {}}, "needs `item`, `user` or both"),
    (with_column(kind="vector"), "kind vector needs `dimensions`"),
    (with_column(kind="vector", dimensions=5000), "features.item.columns[0].dimensions"),
    (with_column(kind="text", min_frequency=3), "min_frequency is for kind"),
    (with_column(kind="text", max_words=40_000), "features.item.columns[0].max_words"),
    (with_column(kind="text", analyzer="stem"), "features.item.columns[0].analyzer"),
    (with_column(kind="numerical", min_items=3), "min_items is for kind text, not for numerical"),
]


@pytest.mark.parametrize(("more", "words"), PROBLEMS)
def test_invalid_side_tables_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """The message names the place and the reason."""
    assert words in refusal(tmp_path, more)


def test_fields_may_be_empty_with_filter_fields(tmp_path: Path) -> None:
    """The metadata table may be for filters only."""
    recipe = load(tmp_path, {"item_metadata": {**METADATA, "fields": []}}).recipe
    assert recipe.item_metadata is not None
    assert recipe.filter_kinds == {"genres": "multi_label", "year": "numerical"}


def test_texts_and_vectors_have_defaults(tmp_path: Path) -> None:
    """The defaults of text and vector columns do not change the hash."""
    block = load(tmp_path, with_column(kind="text")).recipe.features
    assert block is not None and block.item is not None
    text = block.item.columns[0]
    assert (text.max_words, text.min_items, text.analyzer) == (8192, 2, "word")
    spelled = with_column(kind="text", max_words=8192, min_items=2, analyzer="word")
    assert load(tmp_path, spelled).recipe_hash == load(tmp_path, with_column(kind="text")).recipe_hash
    assert load(tmp_path, with_column(kind="vector", dimensions=4096)).recipe.features is not None
