"""The time of one entry in a queue: known after a few slices, right on average, and not moved by one slow step."""

from __future__ import annotations

import random

import pytest

from svc.serving.pace import FEWEST_SLICES, SLICE_S, SLICES, Pace

EACH_S = 1e-3


def learn(pace: Pace, each_s: float, seconds: float, pick: random.Random) -> None:
    """Learn steps of 1 to 8 entries that take about `each_s` each, some three times and most half as long."""
    while seconds > 0:
        count = pick.randint(1, 8)
        step_s = count * each_s * pick.choice((0.5, 0.5, 0.5, 0.5, 3.0))
        pace.learn(step_s, count)
        seconds -= step_s


def test_the_estimate_is_0_until_there_are_enough_slices() -> None:
    """It is so for first slices of any length."""
    pace = Pace()
    for _ in range(FEWEST_SLICES - 1):
        pace.learn(10.0, 1)
        assert pace.each_s == 0
    pace.learn(10.0, 1)
    assert pace.each_s == 10


def test_short_steps_are_averaged() -> None:
    """For steps of 1 ms and 9 ms the estimate is 5 ms, although no step takes that long."""
    pace = Pace()
    for step in range(1000):
        pace.learn(0.001 if step % 2 else 0.009, 1)
    assert pace.each_s == pytest.approx(0.005)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slow_s", [0.06, 1.0, 10.0])
def test_one_slow_step_of_any_length_hardly_moves_the_estimate(seed: int, slow_s: float) -> None:
    """At any moment the estimate stays between those of the other slices."""
    pick, pace = random.Random(seed), Pace()
    learn(pace, EACH_S, pick.uniform(0, 4), pick)
    pace.learn(slow_s, 1)
    for _ in range(50):
        learn(pace, EACH_S, 0.05, pick)
        assert pace.each_s < 3 * EACH_S


@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_a_lasting_change_is_known_within_a_second(factor: float) -> None:
    """The estimate follows in both directions, after half of the slices."""
    pick, pace = random.Random(1), Pace()
    learn(pace, EACH_S, 10, pick)
    learn(pace, factor * EACH_S, SLICES * SLICE_S * 2, pick)
    assert pace.each_s == pytest.approx(factor * EACH_S, rel=0.5)
