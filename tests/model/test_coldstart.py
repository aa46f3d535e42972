"""Vectors of unseen users and items, compared with irspack's exact solver."""

from __future__ import annotations

from copy import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps
from irspack.recommenders import IALSRecommender

from svc.errors import TrainingError
from svc.model.coldstart import LeastSquares
from svc.model.columns.feature_values import Encoded
from svc.model.features import FEATURE_VERSION, FeatureState, NumberColumn, SideEncoder, TokenColumn
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Interaction
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factors import IALSScorer
from svc.training.data.user_sample import solve_users
from svc.training.fitting.export import assemble, to_scorer
from tests import planned
from tests.planned import UNRESTRICTED

N_USERS, N_ITEMS, COMPONENTS = 80, 50, 6
FORMS = list(product(["IALSPP", "ORIGINAL"], ["none", "log"], [(0.0, None), (0.5, None), (1.0, None), (0.5, 1.0)]))
EXACT: list[dict[str, Any]] = [
    {"solver_type": "CHOLESKY"},
    {"solver_type": "CG", "prediction_time_max_cg_steps": 0},
]


def side(prefix: str) -> SideEncoder:
    tokens = TokenColumn("tag", "multi_label", IdTable.from_ids([f"{prefix}{i}" for i in range(5)]))
    return SideEncoder((tokens, NumberColumn("age", mean=0.0, deviation=1.0, low=-3.0, high=3.0)))


def feature_rows(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return features, (n, 7): five tokens, a number, the constant."""
    tokens = rng.random((n, 5)) < 0.4
    return np.column_stack([tokens, rng.normal(size=n).clip(-3, 3), np.ones(n)]).astype(np.float32)


def train(**parameters: Any) -> IALSRecommender:
    rng = np.random.default_rng(3)
    matrix = sps.csr_matrix((rng.random((N_USERS, N_ITEMS)) < 0.15).astype(np.float64))
    settings = {
        "n_components": COMPONENTS,
        "alpha0": 0.2,
        "reg": 0.05,
        "train_epochs": 4,
        "n_threads": 1,
        "random_seed": 1,
        "user_features": sps.csr_matrix(feature_rows(N_USERS, rng)),
        "item_features": sps.csr_matrix(feature_rows(N_ITEMS, rng)),
        "lambda_user_feature": 5.0,
        "lambda_item_feature": 5.0,
    }
    return IALSRecommender(matrix, **(settings | parameters)).learn()


def export_model(recommender: IALSRecommender) -> Model:
    return assemble(
        to_scorer(recommender, "IALSRecommender"),
        user_ids=[f"u{i}" for i in range(N_USERS)],
        item_ids=[f"i{i}" for i in range(N_ITEMS)],
        X=recommender.X_train_all,
        features=FeatureState(FEATURE_VERSION, side("u"), side("i")),
    )


def history(seeds: list[int]) -> sps.csr_matrix:
    return sps.csr_matrix((np.ones(len(seeds)), ([0] * len(seeds), seeds)), shape=(1, N_ITEMS))


@pytest.mark.parametrize("solver", EXACT, ids=["cholesky", "cg to the end"])
@pytest.mark.parametrize(("loss", "scaling", "powers"), FORMS)
def test_features_and_seeds_give_the_vectors_of_the_exact_solver(
    loss: str, scaling: str, powers: tuple[float, float | None], solver: dict[str, Any]
) -> None:
    """Users by features, users by seeds and features, and items by features agree for each form of the objective."""
    recommender = train(
        loss_type=loss, confidence_scaling=scaling, epsilon=0.5, nu=powers[0], nu_star=powers[1], **solver
    )
    scorer = export_model(recommender).scorer
    least_squares: LeastSquares = scorer.least_squares  # type: ignore[attr-defined]
    rows = feature_rows(4, np.random.default_rng(9))
    users = recommender.compute_user_embedding_from_features(sps.csr_matrix(rows))
    items = recommender.compute_item_embedding_from_features(sps.csr_matrix(rows))
    for row, features in enumerate(rows.astype(np.float64)):
        np.testing.assert_allclose(
            least_squares.users_from_features([Encoded.of(features)])[0], users[row], rtol=2e-3, atol=2e-5
        )
        np.testing.assert_allclose(
            least_squares.items_from_features([Encoded.of(features)])[0], items[row], rtol=2e-3, atol=2e-5
        )
        seeds = [row, row + 7, row + 20]
        expected = recommender.compute_user_embedding(history(seeds), sps.csr_matrix(rows[[row]]))[0]
        vectors = recommender.get_item_embedding()[seeds].astype(np.float64)
        np.testing.assert_allclose(
            least_squares.users_from_seeds(vectors[np.newaxis], features[np.newaxis])[0], expected, rtol=2e-3, atol=2e-5
        )


def scores_of(model: Model, **asked: Any) -> np.ndarray:
    """Return the score of every item that `u3` may get, by column, and 0 for the others."""
    query = planned.recommend(model, user_id="u3", user_features=None, limit=N_ITEMS, include_seen=True, **asked).query
    (ranking,) = model.rank([query])
    found = np.zeros(N_ITEMS)
    found[ranking.items] = ranking.scores
    return found


def with_blend(model: Model) -> Model:
    """Return the model with half of the score from an item-weight part."""
    factors = model.scorer
    assert isinstance(factors, IALSScorer)
    rng = np.random.default_rng(5)
    part = DenseWeightsScorer((rng.random((N_ITEMS, N_ITEMS)) * (rng.random((N_ITEMS, N_ITEMS)) < 0.2)).astype("f4"))
    blend = copy(model)
    blend.scorer = BlendScorer.of(factors, (part,), (0.5, 0.5), model.history)
    blend.ready()
    return blend


@pytest.mark.parametrize("scaling", ["none", "log"])
def test_a_known_user_keeps_the_features_beside_dislikes_and_a_history(scaling: str) -> None:
    """The scores are those of the exact solve with the features of the training, which the artifact does not hold."""
    recommender = train(solver_type="CHOLESKY", confidence_scaling=scaling, epsilon=0.5, nu=0.5)
    model, described = export_model(recommender), sps.csr_matrix(feature_rows(N_USERS, np.random.default_rng(3)))
    solve_users(model.scorer, recommender.X_train_all, described)
    scorer, features = model.scorer, described[3].toarray()[0].astype(np.float64)
    assert isinstance(scorer, IALSScorer)
    least_squares, items = scorer.least_squares, scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))
    assert least_squares.user_weights is not None
    prior = features @ least_squares.user_weights.astype(np.float64)

    def exact(more: dict[int, float], against: dict[int, float]) -> np.ndarray:
        own = dict.fromkeys(model.history.items(3).tolist(), 1.0)
        values = own | {column: own.get(column, 0.0) + value for column, value in more.items()}
        z, c = items[list(values)], np.array(list(values.values()))
        c = np.log1p(c / 0.5) if scaling == "log" else c
        targets = c + least_squares.target_weight - least_squares.confidence
        r = least_squares.regularization(len(z), N_ITEMS)
        left = 0.2 * items.T @ items + r * np.eye(COMPONENTS) + (z.T * c) @ z
        left += (items[list(against)].T * np.array(list(against.values()))) @ items[list(against)]
        return items @ np.linalg.solve(left, r * prior + targets @ z)

    unseen = np.setdiff1d(np.arange(N_ITEMS), model.history.items(3))[:5].tolist()
    asked: list[tuple[dict[int, float], dict[int, float]]] = [
        ({}, {}), ({}, {unseen[0]: 1e-9}), ({}, {unseen[0]: 3.0, unseen[1]: 1.0}),
        ({unseen[2]: 1.0}, {}), ({unseen[2]: 4.0, unseen[3]: 0.5}, {unseen[4]: 2.0}),
    ]  # fmt: skip
    for more, against in asked:
        history, dislikes = (
            [Interaction(f"i{column}", value) for column, value in own.items()] for own in (more, against)
        )
        found, expected = scores_of(model, history=history, dislikes=dislikes), exact(more, against)
        expected[list(against)] = 0.0
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    explained = scores_of(model, restriction=UNRESTRICTED._replace(explain=3))
    np.testing.assert_allclose(explained, scores_of(model), rtol=1e-4, atol=1e-6)
    for some in (model, with_blend(model)):
        plain = scores_of(some)
        disliked = scores_of(some, dislikes=[Interaction(f"i{unseen[0]}", 1e-9)])
        plain[unseen[0]] = 0.0
        np.testing.assert_allclose(disliked, plain, rtol=1e-4, atol=1e-5 * np.abs(plain).max())


def test_more_seeds_than_components_solve_the_same_system() -> None:
    """The solves for few and for many seeds agree with the textbook to the last digits."""
    recommender = train(solver_type="CHOLESKY")
    least_squares: LeastSquares = export_model(recommender).scorer.least_squares  # type: ignore[attr-defined]
    items = recommender.get_item_embedding().astype(np.float64)
    features = feature_rows(1, np.random.default_rng(0))[0].astype(np.float64)
    weights = recommender.trainer_as_ials.core_trainer.user_feature_weight.astype(np.float64)
    for count in (0, 1, COMPONENTS - 1, COMPONENTS, 30):
        z = items[:count]
        r = least_squares.regularization(count, N_ITEMS)
        left = 0.2 * items.T @ items + r * np.eye(COMPONENTS) + z.T @ z
        expected = np.linalg.solve(left, r * features @ weights + z.sum(axis=0))
        np.testing.assert_allclose(
            least_squares.users_from_seeds(z[np.newaxis], features[np.newaxis])[0], expected, rtol=1e-9
        )


def test_wide_feature_vectors_give_the_same_result_as_whole_products() -> None:
    """Beyond some width, only the non-zero entries are read."""
    rng = np.random.default_rng(6)
    weights = rng.normal(size=(500, COMPONENTS)).astype(np.float32)
    least_squares = LeastSquares(
        alpha0=0.1,
        reg=0.1,
        nu=1.0,
        confidence=1.0,
        target_weight=1.0,
        n_users=9,
        n_items=9,
        user_weights=weights,
        item_weights=None,
    )
    v = rng.normal(size=(9, COMPONENTS))
    least_squares.ready(v.T @ v, None)
    features = np.where(rng.random(500) < 0.05, 1.0, 0.0)
    r0 = 0.1 * 0.9
    expected = np.linalg.solve(0.1 * v.T @ v + r0 * np.eye(COMPONENTS), r0 * features @ weights)
    np.testing.assert_allclose(least_squares.users_from_features([Encoded.of(features)])[0], expected, rtol=1e-9)


@pytest.mark.parametrize("nu", [0.5, 1.0])
def test_features_need_a_weight_on_unobserved_items(nu: float) -> None:
    """With alpha0 = 0 and nu > 0 an empty history has no unique minimum, and the export raises an error."""
    with pytest.raises(TrainingError, match="alpha0"):
        export_model(train(alpha0=0.0, nu=nu))


def test_features_need_no_weight_on_unobserved_items_if_nu_is_zero() -> None:
    """With nu = 0, the regularization does not depend on the history. The vector of an empty history is its prior."""
    recommender = train(alpha0=0.0, nu=0.0, solver_type="CHOLESKY")
    least_squares: LeastSquares = export_model(recommender).scorer.least_squares  # type: ignore[attr-defined]
    features = feature_rows(1, np.random.default_rng(4))[0]
    expected = recommender.compute_user_embedding_from_features(sps.csr_matrix(features[np.newaxis]))[0]
    np.testing.assert_allclose(
        least_squares.users_from_features([Encoded.of(features.astype(np.float64))])[0], expected, rtol=1e-4, atol=1e-6
    )
