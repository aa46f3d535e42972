"""A learned order is kept if it is better than chance, and not on noise."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from svc.training.judging.intervals import Change
from svc.training.ranker.fit import Pages, fit
from svc.training.ranker.judge import judge

N_USERS, N_ITEMS, N_FEATURES = 250, 60, 12


def trained(seed: int, *, signal: float) -> Change:
    """Return the gain over a winner with informative scores, by features of which one adds a `signal`."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.normal(size=(N_USERS, N_ITEMS)), axis=1)
    features = rng.normal(size=(N_USERS, N_ITEMS, N_FEATURES)).astype(np.float32)
    features[:, :, 0] = scores
    utility = scores + signal * features[:, :, 1] + 2 * rng.gumbel(size=scores.shape)
    chosen = (np.argsort(np.argsort(-utility, axis=1), axis=1) < 2).astype(np.float64)
    pages = Pages(features, np.ones(chosen.shape, dtype=np.bool_), chosen)
    rankings = [list(range(N_ITEMS))] * N_USERS
    fitted = fit(pages, seed=seed)
    return judge(pages, fitted, rankings, sparse.csr_matrix(chosen), metric="ndcg", cutoff=20, seed=seed)


def test_a_feature_that_predicts_choices_is_a_gain() -> None:
    gain = trained(1, signal=1.0)
    assert gain.low > 0.0
    assert gain.low < gain.value < gain.high


def test_noise_ships_in_at_most_one_of_forty_trainings() -> None:
    assert sum(trained(seed, signal=0.0).low > 0.0 for seed in range(40)) <= 1
