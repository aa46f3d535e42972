"""Answers to a history, compared with irspack's for a cold user by an exact solver."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps
from irspack.recommenders import CosineKNNRecommender, IALSRecommender, RP3betaRecommender

from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.model import Model
from svc.model.ranking.query import Interaction
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import assemble, to_scorer
from tests import planned

N_USERS, N_ITEMS = 80, 60
FORMS = list(product(["IALSPP", "ORIGINAL"], ["none", "log"], [0.0, 0.5, 1.0]))


def matrix() -> sps.csr_matrix:
    return sps.csr_matrix((np.random.default_rng(3).random((N_USERS, N_ITEMS)) < 0.15).astype(np.float64))


def export_model(recommender: Any, features: FeatureState | None = None) -> Model:
    return assemble(
        to_scorer(recommender, type(recommender).__name__.replace("WeightedSVD", "TruncatedSVD")),
        user_ids=[f"u{user}" for user in range(N_USERS)],
        item_ids=[f"i{item}" for item in range(N_ITEMS)],
        X=matrix(),
        features=features,
    )


def ials(**more: Any) -> IALSRecommender:
    options = {"n_components": 8, "alpha0": 0.2, "reg": 0.05, "train_epochs": 3, "n_threads": 1, "random_seed": 1}
    return IALSRecommender(matrix(), solver_type="CHOLESKY", **{**options, **more}).learn()


def scores(model: Model, **asked: Any) -> np.ndarray:
    """Return the score of every item, by column."""
    asked = {"user_id": None, "user_features": None, **asked}
    prepared = planned.recommend(model, limit=N_ITEMS, include_seen=True, **asked)
    (ranking,) = model.rank([prepared.query])
    found = np.empty(N_ITEMS)
    found[ranking.items] = ranking.scores
    return found


def given(row: np.ndarray) -> list[Interaction]:
    """Return a row of the matrix as a history, in falling order of columns."""
    return [Interaction(f"i{column}", float(row[column])) for column in np.flatnonzero(row)[::-1]]


def rows(weighted: bool) -> list[np.ndarray]:
    """Return histories of 1, 2, 10 and all items."""
    rng = np.random.default_rng(5)
    found = []
    for count in (1, 2, 10, N_ITEMS):
        row = np.zeros(N_ITEMS)
        row[rng.choice(N_ITEMS, count, replace=False)] = rng.choice([0.5, 1.0, 3.0, 40.0], count) if weighted else 1.0
        found.append(row)
    return found


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("loss", "scaling", "nu"), FORMS)
def test_ials_gives_a_history_the_vector_of_training(loss: str, scaling: str, nu: float, weighted: bool) -> None:
    """Vectors agree for each form of the objective, with and without weights, and joined to a known user."""
    recommender = ials(loss_type=loss, confidence_scaling=scaling, epsilon=0.5, nu=nu)
    model, trained_on = export_model(recommender), matrix()
    for row in rows(weighted):
        expected = recommender.get_score_cold_user(sps.csr_matrix(row))[0]
        found = scores(model, history=given(row))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
        both = trained_on[3].toarray()[0] + row
        expected = recommender.get_score_cold_user(sps.csr_matrix(both))[0]
        joined = scores(model, user_id="u3", history=given(row))
        np.testing.assert_allclose(joined, expected, atol=1e-5 * np.abs(expected).max())
        replaced = scores(model, user_id="u3", history=given(row), replace=True)
        assert replaced.tobytes() == found.tobytes()


def test_features_are_a_prior_beside_a_history() -> None:
    """Scores equal those of irspack for a cold user with the same features and history."""
    rng = np.random.default_rng(2)
    constant = sps.csr_matrix(np.ones((N_USERS, 1), dtype=np.float32))
    recommender = ials(user_features=constant, lambda_user_feature=5.0)
    model = export_model(recommender, FeatureState(FEATURE_VERSION, SideEncoder(()), None))
    row = np.zeros(N_ITEMS)
    row[rng.choice(N_ITEMS, 7, replace=False)] = 2.0
    embedding = recommender.compute_user_embedding(sps.csr_matrix(row), constant[:1])
    expected = recommender.get_score_from_user_embedding(embedding)[0]
    found = scores(model, user_features={}, history=given(row))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("recommender_class", [CosineKNNRecommender, RP3betaRecommender, WeightedSVDRecommender])
def test_neighbours_and_projections_sum_rows(recommender_class: Any) -> None:
    """The answer is the sum of the weighted rows of the history, or its projection."""
    options = {"n_components": 8, "random_seed": 0} if recommender_class is WeightedSVDRecommender else {"top_k": 30}
    recommender = recommender_class(matrix(), **options).learn()
    model = export_model(recommender)
    for row in [*rows(weighted=False), *rows(weighted=True)]:
        expected = recommender.get_score_cold_user(sps.csr_matrix(row))[0]
        found = scores(model, history=given(row))
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("count", [1, 40, 1000])
@pytest.mark.parametrize("confidence", [1.0, 0.7])
def test_long_weighted_histories_solve_the_normal_equations(count: int, confidence: float) -> None:
    """The solves for short and for long histories agree with the textbook system, built and solved naively."""
    rng = np.random.default_rng(count)
    items = rng.standard_normal((1200, 24))
    solver = LeastSquares(
        alpha0=0.3, reg=0.02, nu=0.5, confidence=confidence, target_weight=confidence + 0.3, n_users=10,
        n_items=len(items), user_weights=None, item_weights=None,
    )  # fmt: skip
    solver.ready(items.T @ items, None)
    z, values = items[:count], rng.choice([0.5, 1.0, 7.0], count)
    c = values if confidence == 1.0 else np.log(1 + values * (np.exp(confidence) - 1))
    left = 0.3 * items.T @ items + solver.regularization(count, 1200) * np.eye(24) + (z.T * c) @ z
    expected = np.linalg.solve(left, (c + 0.3) @ z)
    found = solver.users_from_seeds(z[np.newaxis], None, values[np.newaxis])[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    against, weights = items[-3:], np.array([1.0, 0.5, 10.0])  # confidence on zero: the right side stays
    expected = np.linalg.solve(left + (against.T * weights) @ against, (c + 0.3) @ z)
    dislikes = against[np.newaxis], weights[np.newaxis]
    found = solver.users_from_seeds(z[np.newaxis], None, values[np.newaxis], dislikes)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
