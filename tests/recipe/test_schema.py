"""The fields of a recipe: their defaults, and which of them need or exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.recipe.loading import BASE, load, refusal


def test_defaults_are_those_of_the_reference(tmp_path: Path) -> None:
    """A recipe of four blocks is complete."""
    recipe = load(tmp_path).recipe
    assert recipe.training.n_trials == 40
    assert recipe.training.metric == "ndcg"
    assert recipe.training.algorithms[0] == "IALSRecommender"
    assert len(recipe.training.algorithms) == 6
    assert recipe.training.split.scheme == "random"
    assert recipe.cleansing.dedup == "keep_last"
    assert recipe.output.versioning == "always_overwrite"


SCHEMA = BASE["schema"]


WEIGHT_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"schema": {**SCHEMA, "weight_column": "user_id"}}, "weight_column names an id column"),
    ({"schema": {**SCHEMA, "weight_column": "w", "event_column": "e"}}, "keep one of them"),
    ({"schema": {**SCHEMA, "event_column": "e"}}, "need each other"),
    ({"cleansing": {"event_weights": {"view": 1}}}, "need each other"),
    ({"cleansing": {"event_weights": {"view": 0}}}, "cleansing.event_weights.view"),
    ({"cleansing": {"event_weights": {"view": "drop"}}}, "cleansing.event_weights.view"),
    ({"cleansing": {"dedup": "mean"}}, "cleansing.dedup"),
    ({"training": {"weighted_metric": True}}, "training.weighted_metric needs"),
    ({"training": {"time_decay": {"half_life": "0d"}}}, "half-life of nothing"),
    ({"training": {"time_decay": {"half_life": ["7d", "7d"]}}}, "names '7d' twice"),
    ({"training": {"time_decay": {"half_life": "a month"}}}, "training.time_decay.half_life"),
    ({"training": {"time_decay": {"half_life": []}}}, "training.time_decay.half_life"),
    (
        {"schema": {"user_column": "u", "item_column": "i"}, "training": {"time_decay": {"half_life": "7d"}}},
        "training.time_decay needs schema.time_column",
    ),
    ({"training": {"split": {"test": 1}}}, "training.split.test"),
]


@pytest.mark.parametrize(("more", "words"), WEIGHT_PROBLEMS)
def test_weights_that_say_nothing_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """Naming the field, and what it needs."""
    assert words in refusal(tmp_path, more)


def test_one_half_life_needs_no_list(tmp_path: Path) -> None:
    """A single length is a list of one, with the same hash."""
    alone = load(tmp_path, {"training": {"time_decay": {"half_life": "30d"}}})
    listed = load(tmp_path, {"training": {"time_decay": {"half_life": ["30d"]}}})
    assert alone.recipe.training.time_decay is not None
    assert alone.recipe.training.time_decay.half_life == ("30d",)
    assert alone.recipe_hash == listed.recipe_hash


def test_leave_one_out_needs_no_time(tmp_path: Path) -> None:
    """Without times the place in the table says what came last."""
    plain = {"schema": {"user_column": "u", "item_column": "i"}, "split": {"scheme": "leave_one_out"}}
    assert load(tmp_path, plain).recipe.training.split.scheme == "leave_one_out"
