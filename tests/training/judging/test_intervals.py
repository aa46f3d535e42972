"""Bootstrap intervals have their nominal coverage."""

from __future__ import annotations

import numpy as np
import pytest

from svc.training.judging.bootstrap import resample
from svc.training.judging.intervals import interval, is_gain, paired_change


@pytest.mark.parametrize("n_users", [50, 4096, 20_000])
def test_an_interval_is_as_wide_as_theory_says(n_users: int) -> None:
    """With many users, the bootstrap of a mean has the width 2·1.96·s/√n, whether users or groups are drawn."""
    scores = np.random.default_rng(n_users).random(n_users) ** 3
    low, high = interval(scores, seed=1)
    assert low < scores.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * scores.std() / np.sqrt(n_users), rel=0.06)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    """The coverage is measured over 200 samples of 300 users with a known mean."""
    rng = np.random.default_rng(4)
    covered = 0
    for seed in range(200):
        low, high = interval((rng.random(300) < 0.2).astype(float), seed=seed)
        covered += low <= 0.2 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_pairs_find_a_difference_that_single_intervals_hide() -> None:
    """If one model is slightly better for every user, single intervals overlap, but the paired one is above zero."""
    rng = np.random.default_rng(6)
    second = rng.random(500)
    first = second + 0.01 + rng.normal(0, 0.01, 500)
    assert interval(first, seed=1)[0] < interval(second, seed=1)[1]
    change = paired_change(first, second, seed=1)
    assert change.low > 0.0
    assert change.low < change.value < change.high
    assert change.share == 1.0
    alike = paired_change(second, rng.permutation(second), seed=1)
    assert alike.low <= 0.0 <= alike.high


@pytest.mark.parametrize("other", [0.5, 0.0])
def test_a_relative_change_divides_by_the_second_and_stays_finite(other: float) -> None:
    """Twice the score is a change of 1. A second score of 0 gives a very large, finite change."""
    first, second = np.full(10, 1.0), np.full(10, other)
    change = paired_change(first, second, seed=1, relative=True)
    assert np.isfinite([change.value, change.low, change.high]).all()
    assert change.value == pytest.approx(1.0) if other else change.value > 1e100


def test_one_user_has_an_interval_of_zero_width_and_equal_seeds_draw_the_same_users() -> None:
    """A single user cannot vary."""
    assert interval(np.array([0.25]), seed=1) == (0.25, 0.25)
    scores = np.random.default_rng(1).random((90, 2))
    assert (resample(scores, seed=5, n=40) == resample(scores, seed=5, n=40)).all()
    assert (resample(scores, seed=5, n=40) != resample(scores, seed=6, n=40)).any()


@pytest.mark.parametrize("n_users", [20, 100])
def test_intervals_of_few_users_are_not_far_too_short(n_users: int) -> None:
    """Most per-user scores are 0, so the mean of few users is skewed."""
    rng = np.random.default_rng(n_users)
    held = 0
    for seed in range(200):
        scores = np.where(rng.random(n_users) < 0.15, rng.random(n_users), 0.0)
        low, high = interval(scores, seed=seed)
        held += low <= 0.15 / 2 <= high
    assert held / 200 >= 0.88


@pytest.mark.parametrize(
    ("gains", "expected"), [([1.0, 1.0, 1.1], True), ([1.0, -1.0, 0.5], False), ([0.0] * 3, False)]
)
def test_a_gain_is_more_than_chance(gains: list[float], expected: bool) -> None:
    """A gain of a single user is never significant."""
    assert is_gain(np.array(gains), np.zeros(3)) is expected
    assert not is_gain(np.array([1.0]), np.array([0.0]))


def test_more_comparisons_need_a_larger_gain() -> None:
    """Nine comparisons need 2.8 standard errors instead of 2."""
    gains = np.tile([1.0, -0.7], 100)  # 2.5 standard errors
    assert is_gain(gains, np.zeros(200))
    assert not is_gain(gains, np.zeros(200), comparisons=9)
