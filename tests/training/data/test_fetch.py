"""Fetching and cleaning the tables of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.test_run import Make, last, run, small_training


def test_too_little_data_ends_with_4_and_all_counts(make_recipe: Make, log: list[dict[str, Any]]) -> None:
    """`train_error` is the last record, with counts and thresholds."""
    result = run(make_recipe(cleansing={"min_users": 1000}))
    error = last(log)
    assert (result.exit_code, error["event"], error["code"]) == (4, "train_error", "min_data_violation")
    assert (error["n_rows"], error["n_users"], error["n_items"], error["min_users"]) == (960, 80, 40, 1000)
    assert {"error", "name", "run_id", "exit_code", "trained_at", "kid"} <= set(error)


@pytest.mark.parametrize("scheme", ["random", "time_user"])
def test_a_wrong_time_column_ends_a_training(make_recipe: Make, log: list[dict[str, Any]], scheme: str) -> None:
    """This includes splits that do not use times."""
    for column, code, words in (
        ("when", "data_source_error", "when"),
        ("ts", "time_unit_required", "is a time near today in s"),
        ("user_id", "min_data_violation", "which is no ISO 8601 date or time"),
    ):
        schema = {"user_column": "user_id", "item_column": "item_id", "time_column": column}
        run(make_recipe(schema=schema, training=small_training(split={"scheme": scheme})))
        assert last(log)["code"] == code
        assert words in last(log)["error"]


def test_ids_that_are_hard_to_request_cause_warnings(
    make_recipe: Make, make_ratings: Callable[..., Path], log: list[dict[str, Any]]
) -> None:
    """They are longer than requests allow, or integers that a tool turned into floats."""
    ratings = make_ratings("odd.csv")
    text = ratings.read_text(encoding="utf-8").replace("u1,", "u" * 257 + ",").replace(",i3,", ",3.0,")
    ratings.write_text(text, encoding="utf-8")
    assert run(make_recipe(ratings=ratings, training=small_training())).exit_code == 0
    warned = [(e["side"], e["reason"], e["count"], e["example"]) for e in log if e["event"] == "ids_hardly_meant"]
    assert warned == [("user", "too_long", 1, "u" * 40), ("item", "floating_point", 1, "3.0")]
