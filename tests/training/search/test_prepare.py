"""Studies that a search cannot continue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.test_run import Make, last, run, small_training


def test_a_study_of_other_data_is_not_continued(
    make_recipe: Make, make_ratings: Callable[..., Path], log: list[dict[str, Any]]
) -> None:
    """Its scores are not comparable. The message suggests another run id."""
    assert run(make_recipe(training=small_training(storage_path="s.db"))).exit_code == 0
    other = make_ratings("other.csv", seed=9)
    assert run(make_recipe(ratings=other, training=small_training(storage_path="s.db"))).exit_code == 4
    assert "--run-id" in last(log)["error"]
