"""Splits that a search cannot score."""

from __future__ import annotations

from typing import Any

from tests.training.test_run import Make, last, run, small_training


def test_the_named_ratio_cures_a_zero_score(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The message names the smallest heldout_ratio that works, and a run with it succeeds."""
    split = {"scheme": "time_user", "heldout_ratio": 0.01}
    assert run(make_recipe(training=small_training(split=split))).exit_code == 4
    error = last(log)
    assert error["code"] == "zero_score"
    ratio = float(next(word for word in error["error"].replace(";", " ").split() if word.startswith("0.08")))
    split["heldout_ratio"] = ratio
    assert run(make_recipe(training=small_training(split=split))).exit_code == 0


def test_a_cutoff_above_the_number_of_items_is_refused(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """The error comes before any training and has the number of items. A cutoff of exactly that number works."""
    assert run(make_recipe(training=small_training(cutoff=41))).exit_code == 4
    assert last(log)["code"] == "cutoff_too_large"
    assert "40 items" in last(log)["error"]
    assert run(make_recipe(training=small_training(cutoff=40))).exit_code == 0
