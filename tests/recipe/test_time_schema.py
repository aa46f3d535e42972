"""The fields that weigh interactions by their time; tests/recipe/test_schema.py has them in whole recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from svc.recipe.algorithms import DEFAULT_ALGORITHMS, TRANSITIONS
from svc.recipe.time_schema import TimeDecay, check_recency, recency_in_effect, with_default_algorithms
from tests.recipe.loading import load

SPLITS: dict[str, dict[str, Any]] = {
    "none": {},
    "ratio": {"split": {"heldout_ratio": 0.3}},
    "written": {"split": {"scheme": "time_user"}},
    "random": {"split": {"scheme": "random"}},
}


def test_a_time_column_makes_the_split_one_by_time(tmp_path: Path) -> None:
    """Unless a scheme is written out; the hash tells the two apart, and other keys of the split stay."""
    loaded = {name: load(tmp_path, more) for name, more in SPLITS.items()}
    schemes = [loaded[name].recipe.training.split.scheme for name in SPLITS]
    assert schemes == ["time_user", "time_user", "time_user", "random"]
    assert loaded["ratio"].recipe.training.split.heldout_ratio == 0.3
    assert loaded["none"].recipe_hash == loaded["written"].recipe_hash != loaded["random"].recipe_hash


def test_a_half_life_is_named_once() -> None:
    """One may stand without a list."""
    assert TimeDecay.model_validate({"half_life": "7d"}).half_life == ("7d",)
    with pytest.raises(ValidationError, match="names '7d' twice"):
        TimeDecay.model_validate({"half_life": ["7d", "none", "7d"]})


def test_the_default_search_for_recency_is_off_where_it_cannot_run() -> None:
    """What the recipe asks for is refused instead."""
    for time_column, scheme in (("t", "random"), (None, "leave_one_out")):
        assert recency_in_effect("search", time_column=time_column, scheme=scheme) == 0.0
        with pytest.raises(ValueError, match=r"training\.recency"):
            check_recency("search", time_column=time_column, scheme=scheme)
    assert recency_in_effect("search", time_column="t", scheme="time_user") == "search"
    check_recency("off", time_column=None, scheme="random")
    assert recency_in_effect(2, time_column="t", scheme="random") == 2.0


def test_transitions_are_tried_by_default_where_order_is_searched() -> None:
    """Transitions join the default algorithms only where order is searched; a recipe's own list stays as it is."""
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
        given = {"schema": schema, "training": training}
        assert with_default_algorithms(given) == given
