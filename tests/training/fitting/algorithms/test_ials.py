"""The variant of iALS whose prior of users is a learned mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from irspack.recommenders import IALSRecommender, TopPopRecommender
from irspack.recommenders._ials_core import FeatureRidgeCholeskyError
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranking.query import Query
from svc.training.fitting.algorithms import ials
from svc.training.fitting.algorithms.ials import MeanPriorIALSRecommender, WideFeatureTrainer, solve_ridge
from svc.training.fitting.algorithms.registry import ALGORITHMS, Params, search_space
from svc.training.fitting.export import assemble, to_scorer
from svc.training.fitting.train import train_to_best_epoch as train_model
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.intervals import is_gain
from svc.training.judging.rankers import ScoreRanker
from svc.training.judging.recency import RecencySearch, judge

PARAMETERS: Params = {"n_components": 6, "alpha0": 0.1, "reg": 0.02, "train_epochs": 4, "n_threads": 1}
EXACT: Params = {**PARAMETERS, "solver_type": "CHOLESKY"}


def draws(n_users: int, n_items: int, length: float, *, groups: int, loyalty: float, seed: int) -> np.ndarray:
    """Return random choices as booleans, (users, items).

    The popularity of items has a long tail. Each user prefers a random group: other items have weights lower by the
    factor `1 - loyalty`.
    """
    rng = np.random.default_rng(seed)
    popularity = rng.permutation(np.arange(1, n_items + 1.0) ** -0.8)
    group = rng.integers(0, groups, n_items)
    dense = np.zeros((n_users, n_items), dtype=bool)
    for row in dense:
        weights = popularity * np.where(group == rng.integers(0, groups), 1.0, 1.0 - loyalty)
        most = min(n_items // 2, np.count_nonzero(weights))
        size = min(most, max(3, int(rng.lognormal(np.log(length), 0.6))))
        row[rng.choice(n_items, size, replace=False, p=weights / weights.sum())] = True
    return dense


def held_out(dense: np.ndarray, seed: int) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Split off a third of each user's items."""
    rng = np.random.default_rng(seed)
    held = np.zeros_like(dense)
    for row, mine in zip(held, dense, strict=True):
        items = np.flatnonzero(mine)
        row[rng.permutation(items)[: len(items) // 3]] = True
    return sparse.csr_matrix((dense & ~held).astype(np.float32)), sparse.csr_matrix(held.astype(np.float32))


def score(recommender: Any, name: str, train: sparse.csr_matrix, heldout: sparse.csr_matrix) -> NDArray[np.float64]:
    evaluators = Evaluators.of(Evaluator(heldout, offset=0, cutoff=10), "ndcg", 1)

    def ranker(trained: Any) -> ScoreRanker:
        return ScoreRanker(trained.get_score, train)

    def score_epoch(trained: Any) -> float:
        sample = evaluators.sample
        return float(sample.by_user(sample.rankings(ranker(trained)), "ndcg").mean())

    epochs = ALGORITHMS[name].epochs
    train_model(recommender, epochs, score=score_epoch, report=lambda *_: None)
    search = RecencySearch((0.0,), lambda _: ranker(recommender))
    fitted = judge(search, evaluators, lambda _: None)
    assert fitted.by_user is not None
    return fitted.by_user


SHAPES = {
    "tiny, no tastes": (80, 40, 9, 1, 0.0),
    "tiny, two tastes": (80, 40, 9, 2, 0.9),
    "small, tastes": (400, 200, 15, 5, 0.9),
    "no tastes": (900, 400, 20, 1, 0.0),
    "sparse": (1500, 1200, 5, 8, 0.95),
    "sparse, no tastes": (1500, 1200, 5, 1, 0.0),
    "dense": (300, 90, 30, 3, 0.8),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_trial_never_scores_clearly_below_popularity(shape: str) -> None:
    """If choices follow popularity alone, the two scores differ only by chance."""
    n_users, n_items, length, groups, loyalty = SHAPES[shape]
    for seed in (0, 1) if n_users < 900 else (0,):
        dense = draws(n_users, n_items, length, groups=groups, loyalty=loyalty, seed=seed)
        train, heldout = held_out(dense, seed)
        guess = search_space("IALSRecommender", n_users=n_users, n_items=n_items).guesses[0]
        first = MeanPriorIALSRecommender(train, **guess, random_seed=42, n_threads=1)
        popular = score(TopPopRecommender(train), "TopPopRecommender", train, heldout)
        assert not is_gain(popular, score(first, "IALSRecommender", train, heldout))


def matrix() -> sparse.csr_matrix:
    return sparse.csr_matrix(draws(90, 50, 8, groups=3, loyalty=0.7, seed=4).astype(np.float64))


def test_ials_without_the_mean_prior_equals_irspack() -> None:
    """All bits agree, so `mean_prior: [false]` gives irspack's models."""
    expected = IALSRecommender(matrix(), **PARAMETERS).learn()
    found = MeanPriorIALSRecommender(matrix(), mean_prior=False, **PARAMETERS).learn()
    np.testing.assert_array_equal(found.get_user_embedding(), expected.get_user_embedding())
    np.testing.assert_array_equal(found.get_item_embedding(), expected.get_item_embedding())


def test_the_mean_prior_of_seeds_is_that_of_irspacks_exact_solver() -> None:
    """For a new history, the exported model solves as irspack does for a user whose only feature is the constant."""
    data = matrix()
    recommender = MeanPriorIALSRecommender(data, mean_prior=True, **EXACT).learn()
    users, items = ([f"{prefix}{row}" for row in range(size)] for prefix, size in zip("ui", data.shape, strict=True))
    model = assemble(to_scorer(recommender, "IALSRecommender"), user_ids=users, item_ids=items, X=data, features=None)
    for seeds in ([3], [1, 4, 9], list(range(0, 40, 3))):
        history = sparse.csr_matrix((np.ones(len(seeds)), ([0] * len(seeds), seeds)), shape=(1, data.shape[1]))
        embedding = recommender.compute_user_embedding(history, sparse.csr_matrix(np.ones((1, 1), dtype=np.float32)))
        expected = np.asarray(recommender.get_score_from_user_embedding(embedding))[0]
        (ranking,) = model.rank([Query(limit=50, seeds=np.array(seeds, dtype=np.int32))])
        np.testing.assert_allclose(ranking.scores, expected[ranking.items], rtol=1e-4, atol=5e-6)


def test_the_mean_prior_is_not_a_feature_of_requests() -> None:
    data = matrix()
    recommender = MeanPriorIALSRecommender(data, mean_prior=True, **PARAMETERS).learn()
    users, items = ([f"{prefix}{row}" for row in range(size)] for prefix, size in zip("ui", data.shape, strict=True))
    model = assemble(to_scorer(recommender, "IALSRecommender"), user_ids=users, item_ids=items, X=data, features=None)
    assert model.scorer.feature_dim("user") is None


N_USERS, N_ITEMS = 300, 200


def trained(**parameters: Any) -> MeanPriorIALSRecommender:
    recommender = MeanPriorIALSRecommender(
        sparse.random(N_USERS, N_ITEMS, 0.05, format="csr", rng=np.random.default_rng(1)),
        n_components=8,
        alpha0=0.05,
        reg=0.01,
        n_threads=1,
        solver_type="CHOLESKY",
        **parameters,
    )
    recommender.start_learning()
    for _ in range(3):
        recommender.run_epoch()
        recommender.save_state()
    recommender.run_epoch()
    recommender.load_state()
    return recommender


def features(rows: int, places: int) -> sparse.csr_matrix:
    drawn = sparse.random(rows, places, 0.05, format="csr", rng=np.random.default_rng(places))
    return sparse.hstack([drawn, np.ones((rows, 1))], format="csr", dtype=np.float32)


@pytest.mark.parametrize(
    "parameters",
    [
        {"item_features": features(N_ITEMS, 90), "lambda_item_feature": 20.0},
        {"item_features": features(N_ITEMS, 90), "lambda_item_feature": 20.0, "mean_prior": True},
        {
            "item_features": features(N_ITEMS, 90),
            "lambda_item_feature": 5.0,
            "user_features": features(N_USERS, 70),
            "lambda_user_feature": 1e3,
        },
        {"user_features": features(N_USERS, 70), "lambda_user_feature": 20.0, "confidence_scaling": "log"},
        {
            "user_features": features(N_USERS, 70),
            "item_features": features(N_ITEMS, 20),
            "lambda_user_feature": 20.0,
            "lambda_item_feature": 9.0,
            "loss_type": "ORIGINAL",
        },
    ],
)
def test_wide_features_train_the_model_of_irspack(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors and weights agree for either side after several epochs, and after a restored state."""
    expected = trained(**parameters)
    monkeypatch.setattr(ials, "MOST_DENSE_PLACES", 50)
    found = trained(**parameters)
    assert isinstance(found.trainer, WideFeatureTrainer)
    mine, theirs = found.trainer_as_ials.core_trainer, expected.trainer_as_ials.core_trainer
    for part in ("user", "item", "user_feature_weight", "item_feature_weight"):
        np.testing.assert_allclose(getattr(mine, part), getattr(theirs, part), rtol=0, atol=3e-5)


def test_few_features_are_trained_by_irspack_itself() -> None:
    """The trainer for wide features is not used, so these models equal irspack's."""
    assert not isinstance(
        trained(item_features=features(N_ITEMS, 90), lambda_item_feature=20.0).trainer, WideFeatureTrainer
    )


ROWS, PLACES, FACTORS = 3_000, 600, 8


def problem(seed: int) -> tuple[sparse.csr_matrix, np.ndarray, np.ndarray]:
    """Return sparse features like those of texts with a constant, vectors, and weights."""
    rng = np.random.default_rng(seed)
    columns = ((PLACES - 1) * rng.random((ROWS, 6)) ** 3).astype(int)
    rows = np.repeat(np.arange(ROWS), 6)
    words = sparse.csr_matrix((rng.random(rows.size), (rows, columns.ravel())), shape=(ROWS, PLACES - 1))
    features = sparse.hstack([words, np.ones((ROWS, 1))], format="csr", dtype=np.float32)
    return features, rng.normal(size=(ROWS, FACTORS)).astype(np.float32), rng.uniform(0.5, 50, ROWS)


@pytest.mark.parametrize("ridge", [1.0, 1e3, 1e6])
def test_scores_are_those_of_a_dense_solve(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores agree to 1e-6 from any start, although rows are solved in parts."""
    monkeypatch.setattr(ials, "_ROWS_AT_ONCE", 700)
    features, vectors, weights = problem(1)
    dense = features.toarray().astype(np.float64)
    exact = np.linalg.solve(
        dense.T @ (dense * weights[:, np.newaxis]) + ridge * np.eye(PLACES),
        dense.T @ (vectors * weights[:, np.newaxis]),
    )
    for start in (np.zeros((PLACES, FACTORS)), exact, np.ones((PLACES, FACTORS))):
        found = solve_ridge(features, vectors, weights, ridge, start.astype(np.float32))
        np.testing.assert_allclose(dense @ found, dense @ exact, rtol=0, atol=1e-6)


def test_a_singular_system_raises_the_error_of_irspack(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search prunes a trial with this error and continues with other parameters."""
    monkeypatch.setattr(ials, "MOST_STEPS", 2)
    features, vectors, weights = problem(2)
    with pytest.raises(FeatureRidgeCholeskyError, match="600 features"):
        solve_ridge(features, vectors, weights, 1.0, np.zeros((PLACES, FACTORS), dtype=np.float32))
