"""Recipe fields that weigh interactions by their time. Their whole recipes are in tests/recipe/test_schema.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from svc.recipe.algorithms import DEFAULT_ALGORITHMS, TRANSITIONS
from svc.recipe.time_schema import TimeDecay, check_recency, recency_in_effect, seconds, with_default_algorithms
from tests.recipe.loading import load

SPLITS: dict[str, dict[str, Any]] = {
    "none": {},
    "ratio": {"split": {"heldout_ratio": 0.3}},
    "written": {"split": {"scheme": "time_user"}},
    "random": {"split": {"scheme": "random"}},
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
    """Half-lives may have a point."""
    assert seconds(text) == expected


def test_repeated_half_lives_are_refused() -> None:
    """A single half-life needs no list."""
    assert TimeDecay.model_validate({"half_life": "7d"}).half_life == ("7d",)
    with pytest.raises(ValidationError, match="names '7d' twice"):
        TimeDecay.model_validate({"half_life": ["7d", "none", "7d"]})


def test_the_default_recency_is_off_if_it_cannot_be_searched() -> None:
    """An explicit search is refused instead."""
    for time_column, scheme in (("t", "random"), (None, "leave_one_out")):
        assert recency_in_effect("search", time_column=time_column, scheme=scheme) == 0.0
        with pytest.raises(ValueError, match=r"training\.recency"):
            check_recency("search", time_column=time_column, scheme=scheme)
    assert recency_in_effect("search", time_column="t", scheme="time_user") == "search"
    check_recency("off", time_column=None, scheme="random")
    assert recency_in_effect(2, time_column="t", scheme="random") == 2.0


def test_transitions_join_the_defaults_if_recency_is_searched() -> None:
    """A recipe with its own list of algorithms is not changed."""
    timed, split = {"time_column": "t"}, {"scheme": "leave_one_out"}
    found = with_default_algorithms({"schema": timed, "training": {"split": split}})
    assert found["training"] == {"split": split, "algorithms": (*DEFAULT_ALGORITHMS, TRANSITIONS)}
    for schema, training in [
        (timed, {}),
        (timed, None),
        (timed, {"split": {"scheme": "random"}}),
        (timed, {"split": split, "recency": "off"}),
        (timed, {"split": split, "recency": False}),
        (timed, {"split": split, "recency": 0.5}),
        (timed, {"split": split, "algorithms": ["IALS"]}),
        ({}, {"split": split}),
        (timed, {"split": "leave_one_out"}),
        ("t", {"split": split}),
        (timed, [split]),
    ]:
        recipe = {"schema": schema, "training": training}
        assert with_default_algorithms(recipe) == recipe
