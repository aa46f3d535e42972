"""When a split judges enough users. `tests/tables/test_judged.py` trains with the splits that are chosen or named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from svc.recipe.training_schema import Split
from svc.training.data.judged_users import judge_enough, split_line
from tests.training.data.test_split import interactions
from tests.training.runs import Make, training


@pytest.mark.parametrize(
    ("n_users", "n_judged", "is_few"),
    [(200, 99, True), (200, 100, False), (4000, 199, True), (4000, 200, False), (60, 60, False), (60, 59, True)],
)
def test_few_are_less_than_a_hundred_or_a_twentieth(
    make_recipe: Make, n_users: int, n_judged: int, *, is_few: bool
) -> None:
    """If all users are judged, no split judges more."""
    rows = interactions([[0, 1]] * n_users)
    loaded = make_recipe(training=training(split={"scheme": "random"}))
    same, doubt = judge_enough(loaded, rows, n_judged)
    assert same is loaded
    assert (doubt is not None) is is_few
    chosen, doubt = judge_enough(replace(loaded, has_split=False), rows, n_judged)
    assert (chosen.recipe.training.split.heldout_ratio == 0.5) is is_few
    assert (doubt is not None) is is_few


@pytest.mark.parametrize(
    ("better", "line"),
    [
        ({"scheme": "leave_one_out"}, "{scheme: leave_one_out}"),
        ({"heldout_ratio": 0.25}, "{scheme: random, heldout_ratio: 0.25, test_user_ratio: 1}"),
    ],
)
def test_a_line_has_the_scheme_and_what_differs(better: dict[str, Any], line: str) -> None:
    plan = Split(scheme="random", test_user_ratio=0.5 if "heldout_ratio" in better else 1.0)
    assert split_line(plan, Split(**better)) == f"`training.split: {line}`"
