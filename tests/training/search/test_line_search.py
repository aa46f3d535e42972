"""The search for a single number comes near its best value in a few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from svc.training.search.line_search import STEP, next_position


def searched(score: Callable[[float], float], start: float, n_evaluations: int, *, upwards_first: bool) -> float:
    """Return the best position after this number of evaluations, the first of them at `start`."""
    scores = {start: score(start)}
    while len(scores) < n_evaluations:
        position = next_position(scores, (), upwards_first=upwards_first)
        assert 0.0 <= position <= 1.0
        assert position not in scores
        scores[position] = score(position)
    return max(scores, key=lambda position: scores[position])


@pytest.mark.parametrize("upwards_first", [False, True])
@pytest.mark.parametrize("peak", [0.0, 0.12, 0.3, 0.47, 0.66, 0.9, 1.0])
@pytest.mark.parametrize("shape", [lambda x: -(x**2), lambda x: -abs(x), lambda x: math.exp(-8 * x * x)])
def test_five_evaluations_come_near_a_peak_within_two_steps(
    shape: Callable[[float], float], peak: float, upwards_first: bool
) -> None:
    """The peak may be anywhere, also at an end of the range, and either side may be tried first."""
    start = min(1.0, max(0.0, peak + 0.25 if peak < 0.5 else peak - 0.25))
    best = searched(lambda x: shape(x - peak), start, 5, upwards_first=upwards_first)
    assert abs(best - peak) < 0.08


def test_the_peak_of_a_parabola_is_found_in_one_step() -> None:
    scores = {position: -((position - 0.43) ** 2) for position in (0.2, 0.4, 0.6)}
    assert next_position(scores, (), upwards_first=True) == pytest.approx(0.43)


def test_a_position_that_was_bad_without_a_score_bounds_the_search() -> None:
    """The next position is the middle of the wider side."""
    assert next_position({0.2: -math.inf, 0.5: 1.0, 0.6: 0.9}, (), upwards_first=True) == pytest.approx(0.35)


def test_running_evaluations_are_not_repeated() -> None:
    """Their sides count as known."""
    assert next_position({0.5: 1.0}, (0.5 + STEP,), upwards_first=True) == pytest.approx(0.5 - STEP)


@pytest.mark.parametrize("upwards_first", [False, True])
def test_equal_scores_do_not_stop_the_search(upwards_first: bool) -> None:
    """This happens on data without anything to learn."""
    searched(lambda _: 0.0, 0.5, 12, upwards_first=upwards_first)
