"""Resampled means, and intervals that correct for skewness."""

from __future__ import annotations

import numpy as np
import pytest

from svc.training.judging.bootstrap import central, normal_reach, resample


@pytest.mark.parametrize("n_users", [50, 6000])
def test_resampled_means_have_the_mean_and_the_error_of_theory(n_users: int) -> None:
    """This holds whether users or groups are drawn. Columns vary together, as their users are drawn together."""
    scores = np.random.default_rng(n_users).random((n_users, 2))
    scores[:, 1] += scores[:, 0]
    means = resample(scores, seed=1, n=3000)
    assert means.mean(axis=0) == pytest.approx(scores.mean(axis=0), abs=0.01)
    assert means.std(axis=0) == pytest.approx(scores.std(axis=0) / np.sqrt(n_users), rel=0.06)
    assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(scores.T)[0, 1], abs=0.06)


def test_an_interval_of_skewed_scores_reaches_further_to_the_long_side() -> None:
    """Plain quantiles of the resampled means reach less far."""
    scores = np.random.default_rng(3).random(30) ** 8
    value, means = float(scores.mean()), resample(scores[:, np.newaxis], seed=1, n=4000)[:, 0]
    low, high = central(means, value, scores - value, 0.95)
    below, above = np.quantile(means, [0.025, 0.975])
    assert (low > below, high > above) == (True, True)
    assert high - value > value - low


def test_constant_scores_have_an_interval_of_zero_width() -> None:
    """This holds for a single user, and for the same score of all users."""
    assert central(np.full(10, 0.5), 0.5, np.zeros(3), 0.95) == (0.5, 0.5)


def test_95_percent_of_a_normal_distribution_lie_within_1_96_standard_errors() -> None:
    """The reach is that of a two-sided interval."""
    assert normal_reach(0.95) == pytest.approx(1.959964)
