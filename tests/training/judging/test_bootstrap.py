"""Resampled means, and intervals that know of skewness."""

from __future__ import annotations

import numpy as np
import pytest

from svc.training.judging.bootstrap import central, normal_reach, resample


@pytest.mark.parametrize("n_users", [50, 6000])
def test_resampled_means_have_the_mean_and_the_error_of_theory(n_users: int) -> None:
    """Whether users are drawn, or groups of them; columns vary together, as they are drawn together."""
    scores = np.random.default_rng(n_users).random((n_users, 2))
    scores[:, 1] += scores[:, 0]
    means = resample(scores, seed=1, n=3000)
    assert means.mean(axis=0) == pytest.approx(scores.mean(axis=0), abs=0.01)
    assert means.std(axis=0) == pytest.approx(scores.std(axis=0) / np.sqrt(n_users), rel=0.06)
    assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(scores.T)[0, 1], abs=0.06)


def test_an_interval_of_skewed_scores_reaches_further_to_the_long_side() -> None:
    """The quantiles of the resampled means alone reach less far."""
    scores = np.random.default_rng(3).random(30) ** 8
    value, means = float(scores.mean()), resample(scores[:, np.newaxis], seed=1, n=4000)[:, 0]
    low, high = central(means, value, scores - value, 0.95)
    below, above = np.quantile(means, [0.025, 0.975])
    assert (low > below, high > above) == (True, True)
    assert high - value > value - low


def test_scores_that_do_not_vary_have_an_interval_of_no_width() -> None:
    """One user, or the same score for all."""
    assert central(np.full(10, 0.5), 0.5, np.zeros(3), 0.95) == (0.5, 0.5)


def test_the_reach_of_a_normal_distribution() -> None:
    """1.96 standard errors to either side hold 95%."""
    assert normal_reach(0.95) == pytest.approx(1.959964)
