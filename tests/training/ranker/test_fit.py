"""The fit of listwise weights to choices on pages."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.optimize import approx_fprime

from svc.model.ranker.page_ranker import REORDERED
from svc.training.judging.intervals import Change, paired_change
from svc.training.judging.metrics import user_scores
from svc.training.ranker.fit import L2, Pages, _loss, fit


def pages_of(rng: np.random.Generator, n_users: int, weights: list[float], *, n_items: int = 30) -> Pages:
    """Return pages whose users choose one item each, with the probabilities of a softmax under `weights`."""
    features = rng.normal(size=(n_users, n_items, len(weights))).astype(np.float32)
    lengths = rng.integers(n_items // 2, n_items + 1, n_users)
    is_item = np.arange(n_items) < lengths[:, np.newaxis]
    features[~is_item] = 0
    noisy = np.where(is_item, features @ np.array(weights) + rng.gumbel(size=(n_users, n_items)), -np.inf)
    chosen = np.zeros((n_users, n_items))
    chosen[np.arange(n_users), noisy.argmax(axis=1)] = 1.0
    chosen[: n_users // 10] = 0.0
    return Pages(features, is_item, chosen)


def test_the_fit_recovers_the_weights_that_generated_the_choices() -> None:
    weights = [1.0, -0.5, 0.0]
    fitted = fit(pages_of(np.random.default_rng(1), 3_000, weights), seed=1)
    np.testing.assert_allclose(fitted.weights, weights, atol=0.06)
    assert fitted.l2 < 0.1


def test_random_choices_give_the_strongest_l2_and_small_weights() -> None:
    fitted = fit(pages_of(np.random.default_rng(2), 300, [0.0] * 20), seed=1)
    assert fitted.l2 == L2[0]
    assert np.abs(fitted.weights).max() < 0.1


def test_weights_for_a_fold_of_the_pages_are_fitted_on_the_other_folds() -> None:
    pages = pages_of(np.random.default_rng(5), 400, [1.0, -0.5])
    fitted = fit(pages, seed=1)
    pages.chosen[np.flatnonzero(fitted.fold == 2)[-5:]] = 0.0
    again = fit(pages, seed=1)
    same = [np.array_equal(before, after) for before, after in zip(fitted.of_others, again.of_others, strict=True)]
    assert same == [False, False, True, False]


def test_pages_without_choices_leave_all_weights_at_zero() -> None:
    pages = pages_of(np.random.default_rng(3), 20, [1.0])
    pages.chosen[:] = 0
    assert fit(pages, seed=1).weights.tolist() == [0.0]


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(4)
    pages = pages_of(rng, 40, [0.3, -0.2, 0.1]).telling()
    pages.chosen[:, :2] += 0.5 * pages.is_item[:, :2]
    weights = rng.normal(size=3).astype(np.float32).astype(np.float64)
    numeric = approx_fprime(weights, lambda w: _loss(w, pages, 0.1)[0], 1e-3)
    np.testing.assert_allclose(_loss(weights, pages, 0.1)[1], numeric, atol=1e-3)


N_USERS, N_ITEMS, N_FEATURES = 250, 60, 12


def trained(seed: int, *, signal: float) -> Change:
    """Return the gain over a winner with informative scores. One of the features adds a `signal`."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.normal(size=(N_USERS, N_ITEMS)), axis=1)
    features = rng.normal(size=(N_USERS, N_ITEMS, N_FEATURES)).astype(np.float32)
    features[:, :, 0] = scores
    utility = scores + signal * features[:, :, 1] + 2 * rng.gumbel(size=scores.shape)
    chosen = (np.argsort(np.argsort(-utility, axis=1), axis=1) < 2).astype(np.float64)
    pages = Pages(features, np.ones(chosen.shape, dtype=np.bool_), chosen)
    fitted = fit(pages, seed=seed)
    weights = np.array(fitted.of_others)[fitted.fold, np.newaxis]
    shown = np.argsort(-(features[:, :REORDERED] * weights).sum(axis=2), axis=1, kind="stable")
    winner, truth = np.tile(np.arange(20), (N_USERS, 1)), sparse.csr_matrix(chosen)
    after, before = (user_scores(rankings.tolist(), truth)["ndcg"] for rankings in (shown[:, :20], winner))
    return paired_change(after, before, seed=seed)


def test_a_feature_that_predicts_choices_is_a_gain() -> None:
    gain = trained(1, signal=1.0)
    assert gain.low > 0.0
    assert gain.low < gain.value < gain.high


def test_a_ranker_of_noise_ships_in_at_most_one_of_twenty_trainings() -> None:
    """A gain on the users whose choices fitted the weights would nearly always be above chance."""
    assert sum(trained(seed, signal=0.0).low > 0.0 for seed in range(20)) <= 1
