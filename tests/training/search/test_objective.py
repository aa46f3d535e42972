"""Scores of items in a search, compared with those of the served model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sps
from irspack.recommenders import CosineKNNRecommender, DenseSLIMRecommender, IALSRecommender

from svc.training.data.weights import weigh_rows
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import to_scorer
from svc.training.fitting.train import Matrices, train_trial
from svc.training.judging.rankers import ScoreRanker
from svc.training.judging.recency import HistoryOrder
from svc.training.judging.task import Holdout
from svc.training.search.objective import TrialObjective, standardize_scores, weighted_sum
from tests.training.judging.test_task import BUILDER, TRIALS, problem


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("name", [name for name, trial in TRIALS.items() if not trial.parts])
def test_scores_of_the_search_agree_with_those_of_the_served_model(name: str, repeats: bool) -> None:
    """The scores agree up to float32, because they only compare trials."""
    judged, holdout = TRIALS[name], problem(repeats=repeats)
    search = TrialObjective(BUILDER, holdout)
    trained = train_trial(BUILDER, judged, holdout.train, {}, holdout.times)
    scores = search.quick_scores(trained, judged.params)(judged.recency)
    quick = holdout.evaluators.full.evaluate(ScoreRanker(scores, holdout.seen))
    served = holdout.evaluators.full.evaluate(holdout.ranker_of(trained, judged))
    assert quick.metrics["ndcg"] == pytest.approx(served.metrics["ndcg"], abs=1e-3)


N_USERS, N_ITEMS = 40, 24
RNG = np.random.default_rng(3)
MATRIX = sps.csr_matrix((RNG.random((N_USERS, N_ITEMS)) < 0.3) * RNG.choice([1.0, 2.0], (N_USERS, N_ITEMS)))
POSITIONS = sps.csr_matrix((RNG.integers(0, 6, MATRIX.nnz), MATRIX.indices, MATRIX.indptr), shape=MATRIX.shape)
ROWS = np.array([1, 4, 5, 33])
IALS = {"n_components": 4, "alpha0": 0.2, "reg": 0.1, "train_epochs": 2, "n_threads": 1, "solver_type": "CHOLESKY"}


def objective(features: Matrices) -> TrialObjective:
    """Return the objective of a search on MATRIX, whose held-out items play no part in scores."""
    evaluators = problem(repeats=False).evaluators
    return TrialObjective(BUILDER, Holdout(MATRIX, evaluators, features, order=HistoryOrder(POSITIONS)))


@pytest.mark.parametrize("recency", [0.0, 0.4])
@pytest.mark.parametrize(
    ("recommender_class", "name", "options"),
    [
        (CosineKNNRecommender, "CosineKNNRecommender", {"top_k": 10}),
        (DenseSLIMRecommender, "DenseSLIMRecommender", {"reg": 5.0}),
        (WeightedSVDRecommender, "TruncatedSVDRecommender", {"n_components": 4, "weighting": "DEGREES"}),
        (IALSRecommender, "IALSRecommender", IALS),
    ],
)
def test_a_history_is_scored_as_a_cold_user_with_its_weights(
    recommender_class: Any, name: str, options: dict[str, Any], recency: float
) -> None:
    """irspack scores a new user with these weights."""
    recommender = recommender_class(MATRIX, **options).learn()
    scores = objective({}).quick_scores(to_scorer(recommender, name), {})
    expected = recommender.get_score_cold_user(weigh_rows(MATRIX, POSITIONS, recency)[ROWS])
    np.testing.assert_allclose(scores(recency)(ROWS), expected, atol=1e-5 * np.abs(expected).max())


def test_features_of_the_users_are_their_prior() -> None:
    """Scores equal those of irspack for cold users with these features and histories."""
    features = sps.csr_matrix(RNG.random((N_USERS, 3)).astype(np.float32))
    recommender = IALSRecommender(MATRIX, user_features=features, lambda_user_feature=5.0, **IALS).learn()
    found = objective({"user": features}).quick_scores(to_scorer(recommender, "IALSRecommender"), {})(0.4)(ROWS)
    histories = weigh_rows(MATRIX, POSITIONS, 0.4)[ROWS]
    embedding = recommender.compute_user_embedding(histories, features[ROWS])
    expected = recommender.get_score_from_user_embedding(embedding)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_scores_of_each_user_have_deviation_1_over_all_items() -> None:
    """Equal scores for all items of a user become 0."""
    table = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    first, second = standardize_scores([lambda rows: table[rows], lambda rows: 100 * table[rows]], np.arange(2))
    np.testing.assert_allclose(first.std(axis=1), [1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert first.dtype == np.float32
    assert first[1].tolist() == [0.0, 0.0, 0.0]


def test_weights_multiply_the_parts_without_changing_them() -> None:
    """A part of weight 0 does not count."""
    parts = [np.array([[1.0, 2.0]], dtype=np.float32), np.array([[10.0, 20.0]], dtype=np.float32)]
    assert weighted_sum(parts, [0.5, 0.0]).tolist() == [[0.5, 1.0]]
    assert weighted_sum(parts, [1.0, 0.1]).tolist() == [[2.0, 4.0]]
    assert parts[0].tolist() == [[1.0, 2.0]]
