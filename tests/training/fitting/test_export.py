"""Conversion of trained recommenders to models, whose scores are compared with irspack's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from irspack.recommenders import (
    CosineKNNRecommender,
    DenseSLIMRecommender,
    IALSRecommender,
    SLIMRecommender,
    TopPopRecommender,
)
from scipy import sparse as sps

from svc.errors import TrainingError
from svc.model import codec
from svc.model.columns.feature_values import Encoded
from svc.model.features import FEATURE_VERSION, FeatureState
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.factors import ColdStartScorer, IALSScorer
from svc.recipe.algorithms import BLEND
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data.features import fit_side
from svc.training.fitting.algorithms.item_weights import TransitionRP3betaRecommender
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import (
    assemble,
    build_blend,
    finite_float32,
    fold_in_users,
    ials_scorer,
    most_chosen_first,
    reorder_items,
    svd_scorer,
    to_scorer,
)
from svc.training.fitting.trial import TrialRecord
from tests.model.ranker.records import random_ranker


def test_factors_that_are_not_finite_are_refused() -> None:
    """A training that ended in infinite values gives no artifact."""
    matrix = sps.csr_matrix(np.eye(9, dtype=np.float64) + np.eye(9, k=1))
    recommender = WeightedSVDRecommender(matrix, n_components=3, weighting="DEGREES").learn()
    recommender.z_[0, 0] = np.inf
    with pytest.raises(TrainingError, match="user vectors"):
        to_scorer(recommender, "TruncatedSVDRecommender")


MATRIX = sps.csr_matrix((np.random.default_rng(3).random((20, 12)) < 0.3).astype(np.float64))


def test_scorers_have_the_trained_vectors() -> None:
    """Users keep their order. The index returns the vector of an item by its column."""
    ials = IALSRecommender(MATRIX, n_components=4, train_epochs=2, n_threads=1).learn()
    svd = WeightedSVDRecommender(MATRIX, n_components=4, random_seed=0).learn()
    for recommender, scorer in ((ials, ials_scorer(ials)), (svd, svd_scorer(svd))):
        scorer.ready()
        np.testing.assert_array_equal(scorer.users, np.asarray(recommender.get_user_embedding(), dtype=np.float32))
        items = np.asarray(recommender.get_item_embedding(), dtype=np.float32)
        np.testing.assert_array_equal(scorer.index.vectors(np.arange(12, dtype=np.int32)), items)


def test_values_that_are_not_finite_in_single_precision_are_refused() -> None:
    """A value too large for float32 counts as infinite."""
    with pytest.raises(TrainingError, match="the trained vectors are not finite"):
        finite_float32([1.0, 1e60], "vectors")


@pytest.mark.parametrize("side", ["user", "item"])
def test_ials_that_cannot_solve_for_unseen_users_or_items_is_refused(side: str) -> None:
    """Seeds need reg above 0. Features need a weight on empty histories, by alpha0 above 0 or nu = 0."""
    n_rows = MATRIX.shape[0 if side == "user" else 1]
    described = {f"{side}_features": sps.identity(n_rows, format="csr"), f"lambda_{side}_feature": 1.0}

    def export(**parameters: Any) -> IALSScorer:
        settings = {"n_components": 4, "train_epochs": 1, "n_threads": 1, "solver_type": "CHOLESKY", "reg": 1e-3}
        return ials_scorer(IALSRecommender(MATRIX, **(settings | parameters)).learn())

    with pytest.raises(TrainingError, match="reg must be above 0"):
        export(alpha0=0.1, reg=0.0)
    with pytest.raises(TrainingError, match=f"features.{side}: .*alpha0 above 0"):
        export(alpha0=0.0, nu=0.5, **described)
    assert export(alpha0=0.0, nu=0.5).least_squares.feature_dim("user") is None
    for placed in (export(alpha0=0.0, nu=0.0, **described), export(alpha0=0.1, nu=0.5, **described)):
        assert placed.least_squares.feature_dim(side) == n_rows  # type: ignore[arg-type]


N_USERS, N_ITEMS = 90, 60

RECOMMENDERS: dict[str, tuple[type, dict[str, Any]]] = {
    "IALSRecommender": (IALSRecommender, {"n_components": 8, "alpha0": 0.1, "train_epochs": 3, "n_threads": 1}),
    "CosineKNNRecommender": (CosineKNNRecommender, {"top_k": 20, "normalize": True, "shrinkage": 2.0, "n_threads": 1}),
    "RP3betaRecommender": (TransitionRP3betaRecommender, {"top_k": 15, "alpha": 0.8, "beta": 0.3, "n_threads": 1}),
    "DenseSLIMRecommender": (DenseSLIMRecommender, {"reg": 20.0}),
    "TruncatedSVDRecommender": (WeightedSVDRecommender, {"n_components": 7, "weighting": "DEGREES"}),
    "TopPopRecommender": (TopPopRecommender, {}),
    "SLIMRecommender": (SLIMRecommender, {"alpha": 0.01, "l1_ratio": 0.1, "top_k": 20, "n_threads": 1}),
}


def interactions(*, counts: bool, seed: int = 0) -> sps.csr_matrix:
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, N_ITEMS + 1) ** 0.6
    dense = rng.random((N_USERS, N_ITEMS)) < 0.4 * popularity
    dense[:, 0] |= ~dense.any(axis=1)
    values = rng.integers(1, 6, dense.shape) if counts else np.ones(dense.shape)
    return sps.csr_matrix((dense * values).astype(np.float64))


def ids(prefix: str, n: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def trained(name: str, matrix: sps.csr_matrix) -> Any:
    make, parameters = RECOMMENDERS[name]
    return make(matrix, **parameters).learn()


def exported(name: str, recommender: Any, matrix: sps.csr_matrix) -> Model:
    return assemble(
        to_scorer(recommender, name), user_ids=ids("u", N_USERS), item_ids=ids("i", N_ITEMS), X=matrix, features=None
    )


def scores_by_column(ranking: Ranking) -> np.ndarray:
    scores = np.full(N_ITEMS, -np.inf)
    scores[ranking.items] = ranking.scores
    return scores


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("name", RECOMMENDERS)
def test_known_users_score_as_in_irspack(name: str, counts: bool) -> None:
    """For every user and unseen item, the score is that of `get_score_remove_seen`."""
    matrix = interactions(counts=counts)
    recommender = trained(name, matrix)
    model = exported(name, recommender, matrix)
    expected = np.asarray(recommender.get_score_remove_seen(np.arange(N_USERS)))
    rankings = model.rank([Query(limit=N_ITEMS, user=user) for user in range(N_USERS)])
    found = np.array([scores_by_column(ranking) for ranking in rankings])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_items_in_another_order_keep_their_scores(name: str) -> None:
    """With the most chosen item first, scores of known users and of new histories equal irspack's."""
    matrix = interactions(counts=True)[:, ::-1].tocsr()
    recommender = trained(name, matrix)
    columns = most_chosen_first(matrix)
    counts = np.diff(matrix.tocsc().indptr)
    assert columns.tolist() == sorted(range(N_ITEMS), key=lambda column: (-counts[column], column))
    model = assemble(
        to_scorer(recommender, name, columns),
        user_ids=ids("u", N_USERS),
        item_ids=[f"i{column}" for column in columns],
        X=reorder_items(matrix, columns),
        features=None,
    )
    expected = np.asarray(recommender.get_score_remove_seen(np.arange(N_USERS)))[:, columns]
    rankings = model.rank([Query(limit=N_ITEMS, user=user) for user in range(N_USERS)])
    found = np.array([scores_by_column(ranking) for ranking in rankings])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    plain = exported(name, recommender, matrix)
    for seeds in ([3], [1, 4, 9]):
        own = np.flatnonzero(np.isin(columns, seeds)).astype(np.int32)
        (there,), (here,) = (
            one.rank([Query(limit=N_ITEMS, seeds=rows, include_seen=True)])
            for one, rows in ((plain, np.array(seeds, dtype=np.int32)), (model, own))
        )
        np.testing.assert_allclose(scores_by_column(here), scores_by_column(there)[columns], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in RECOMMENDERS if name != "IALSRecommender"])
def test_seeds_score_as_a_new_history_in_irspack(name: str) -> None:
    """The scores are those of `get_score_cold_user` for a user with just these items."""
    matrix = interactions(counts=True)
    recommender = trained(name, matrix)
    model = exported(name, recommender, matrix)
    rng = np.random.default_rng(5)
    for size in (1, 2, 7):
        seeds = np.sort(rng.choice(N_ITEMS, size, replace=False)).astype(np.int32)
        history = sps.csr_matrix((np.ones(size), (np.zeros(size, dtype=int), seeds)), shape=(1, N_ITEMS))
        expected = np.asarray(recommender.get_score_cold_user(history))[0]
        expected[seeds] = -np.inf
        (ranking,) = model.rank([Query(limit=N_ITEMS, seeds=seeds)])
        np.testing.assert_allclose(scores_by_column(ranking), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("loss_type", ["IALSPP", "ORIGINAL"])
@pytest.mark.parametrize("confidence_scaling", ["none", "log"])
@pytest.mark.parametrize(("nu", "nu_star"), [(0.0, None), (0.5, None), (1.0, None), (0.5, 1.0)])
@pytest.mark.parametrize(
    "solver", [{"solver_type": "CHOLESKY"}, {"solver_type": "CG", "prediction_time_max_cg_steps": 0}]
)
def test_ials_seeds_are_the_exact_solution(
    loss_type: str, confidence_scaling: str, nu: float, nu_star: float | None, solver: dict[str, Any]
) -> None:
    """For each form of the objective, irspack's exact solvers give the same vector."""
    matrix = interactions(counts=False)
    recommender = IALSRecommender(
        matrix,
        n_components=8,
        alpha0=0.2,
        reg=0.05,
        nu=nu,
        nu_star=nu_star,
        loss_type=loss_type,
        confidence_scaling=confidence_scaling,
        epsilon=0.5,
        train_epochs=3,
        n_threads=1,
        **solver,
    ).learn()
    model = exported("IALSRecommender", recommender, matrix)
    for seeds in ([3], [1, 4, 9], list(range(0, 40, 3))):
        history = sps.csr_matrix((np.ones(len(seeds)), ([0] * len(seeds), seeds)), shape=(1, N_ITEMS))
        expected = np.asarray(recommender.get_score_cold_user(history))[0]
        expected[seeds] = -np.inf
        (ranking,) = model.rank([Query(limit=N_ITEMS, seeds=np.array(seeds, dtype=np.int32))])
        np.testing.assert_allclose(scores_by_column(ranking), expected, rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("name", ["CosineKNNRecommender", "TruncatedSVDRecommender", "TopPopRecommender"])
def test_counts_of_interactions_are_kept_beside_histories_unless_all_are_1(name: str) -> None:
    """Popularity ignores them, but a part that learned from features places new items by them."""
    plain, counted = interactions(counts=False), interactions(counts=True)
    assert exported(name, trained(name, plain), plain).history.weights is None
    assert exported(name, trained(name, counted), counted).history.weights.tolist() == counted.data.tolist()


def test_stored_zeros_are_not_seen_items() -> None:
    """An explicit zero in the matrix is no interaction, as in irspack."""
    matrix = interactions(counts=False)
    recommender = trained("TopPopRecommender", matrix)
    column = int(matrix[0].indices[0])
    matrix[0, column] = 0.0
    assert matrix[0].nnz
    model = exported("TopPopRecommender", recommender, matrix)
    (ranking,) = model.rank([Query(limit=N_ITEMS, user=0)])
    assert column in ranking.items


def test_a_payload_holds_only_arrays_that_serving_reads() -> None:
    """The payload of a factor model has each matrix once, the order of the index, the histories and the ids."""
    matrix = interactions(counts=False)
    parts = exported("IALSRecommender", trained("IALSRecommender", matrix), matrix).parts()
    assert parts["scorer.users"] == N_USERS * 8 * 4
    assert parts["scorer.index.factors"] == N_ITEMS * 8 * 4
    assert parts["scorer.index.columns"] == N_ITEMS * 4
    assert parts["history.columns"] == matrix.nnz * 4
    assert {name.split(".")[0] for name in parts} <= {"scorer", "history", "user_ids", "item_ids"}


def test_bpr_scores_by_product_and_bias_and_relates_by_cosine() -> None:
    """A known user gets irspack's score, user·item + item bias. Seeds get the cosine with their mean direction."""
    pytest.importorskip("lightfm")
    from irspack.recommenders.bpr import BPRFMRecommender

    matrix = interactions(counts=False)
    recommender = BPRFMRecommender(matrix, n_components=6, train_epochs=3, n_threads=1).learn()
    model = exported("BPRFMRecommender", recommender, matrix)
    expected = recommender.get_score_remove_seen(np.arange(N_USERS))
    rankings = model.rank([Query(limit=N_ITEMS, user=user) for user in range(N_USERS)])
    found = np.array([scores_by_column(ranking) for ranking in rankings])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)

    items = recommender.get_item_embedding().astype(np.float64)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    mean = items[3] + items[8]
    cosines = items @ (mean / np.linalg.norm(mean))
    cosines[[3, 8]] = -np.inf
    (related,) = model.rank([Query(limit=N_ITEMS, seeds=np.array([3, 8], dtype=np.int32))])
    np.testing.assert_allclose(scores_by_column(related), cosines, rtol=1e-6, atol=1e-7)


def with_features(matrix: sps.csr_matrix) -> Model:
    """Return iALS with feature columns of every kind."""
    kinds = {"tag": "categorical", "tags": "multi_label", "year": "numerical", "title": "text"}
    columns: list[dict[str, Any]] = [{"name": name, "kind": kind} for name, kind in kinds.items()]
    columns.append({"name": "point", "kind": "vector", "dimensions": 2})
    declared = FeatureSide.model_validate(
        {"source": {"type": "csv", "path": "x.csv"}, "id_column": "id", "columns": columns}
    )
    fitted = []
    for prefix, count in (("u", N_USERS), ("i", N_ITEMS)):
        numbers = np.arange(count)
        texts = pd.Categorical([f"t{number % 3}" for number in numbers])
        points = [[number % 5, 1.0] for number in numbers.tolist()]
        own = {"tag": texts, "tags": texts, "year": numbers, "title": texts, "point": points}
        table = pd.DataFrame({"id": pd.Categorical(ids(prefix, count)), **own})
        fitted.append(fit_side(table, declared, "user", ids(prefix, count), Settings()))
    features = {"user_features": fitted[0].matrix, "item_features": fitted[1].matrix}
    weights = {"alpha0": 0.1, "lambda_user_feature": 0.1, "lambda_item_feature": 0.1}
    recommender = IALSRecommender(matrix, n_components=8, train_epochs=2, n_threads=1, **features, **weights).learn()
    state = FeatureState(FEATURE_VERSION, fitted[0].encoder, fitted[1].encoder)
    users, items = ids("u", N_USERS), ids("i", N_ITEMS)
    return assemble(to_scorer(recommender, "IALSRecommender"), user_ids=users, item_ids=items, X=matrix, features=state)


def of_bpr(matrix: sps.csr_matrix) -> Model:
    """Return the model of a stand-in for BPRFMRecommender, whose package is not always installed."""
    rng = np.random.default_rng(2)
    machine = SimpleNamespace(
        user_embeddings=rng.normal(size=(N_USERS, 6)),
        item_embeddings=rng.normal(size=(N_ITEMS, 6)),
        item_biases=rng.normal(size=N_ITEMS),
    )
    return exported("BPRFMRecommender", SimpleNamespace(fm=machine), matrix)


def of_blend(matrix: sps.csr_matrix) -> Model:
    """Return a blend of iALS, popularity and RP3beta, as the search would build it."""
    names = ("IALSRecommender", "TopPopRecommender", "RP3betaRecommender")
    parts = tuple(TrialRecord(0, name, {}, "complete", 0.1, {}, None, 1.0) for name in names)
    weights = {"weights": dict(zip(names, (0.5, 0.2, 0.3), strict=True))}
    trial = TrialRecord(2, BLEND, weights, "complete", 0.2, {}, None, 1.0, parts)
    scorer = build_blend([to_scorer(trained(name, matrix), name) for name in names], trial)
    fold_in_users(trial, scorer, [(matrix, None)], None, features=None)
    return assemble(scorer, user_ids=ids("u", N_USERS), item_ids=ids("i", N_ITEMS), X=matrix, features=None)


def test_the_allow_list_equals_the_classes_of_exported_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads of all algorithms together use every allowed name, and no other."""
    named: set[tuple[str, str]] = set()
    find_class = codec._Decoder.find_class

    def noting(self: codec._Decoder, module: str, name: str) -> Any:
        named.add((module, name))
        return find_class(self, module, name)

    monkeypatch.setattr(codec._Decoder, "find_class", noting)
    matrix = interactions(counts=True)
    models = [exported(name, trained(name, matrix), matrix) for name in RECOMMENDERS]
    aware = with_features(matrix)
    assert isinstance(aware.scorer, IALSScorer)
    models[1].cold = ColdStartScorer.of(aware.scorer)
    models[2].ranker = random_ranker(np.random.default_rng(1), N_ITEMS)
    for model in (*models, of_bpr(matrix), aware, of_blend(matrix)):
        codec.decode(memoryview(b"".join(codec.encode(model))))
    assert named == codec.ALLOWED


def test_the_cold_start_scorer_answers_like_the_whole_recommender() -> None:
    """User features, item features and seeds give the same bytes. The scorer has no vectors of users."""
    matrix = interactions(counts=False)
    aware = with_features(matrix)
    assert isinstance(aware.scorer, IALSScorer)
    whole = aware.scorer
    winner = exported("CosineKNNRecommender", trained("CosineKNNRecommender", matrix), matrix)
    model = Model(
        user_ids=winner.user_ids, item_ids=winner.item_ids, history=winner.history, scorer=winner.scorer,
        features=aware.features, cold=ColdStartScorer.of(whole),
    )  # fmt: skip
    model = codec.decode(memoryview(b"".join(codec.encode(model))))
    model.ready()
    assert model.features is not None
    assert model.features.user is not None
    user, _ = model.features.user.encode({"tag": "t1", "year": 5})
    item, _ = model.features.item.encode({"tag": "t2", "tags": "t0"})
    seeds = np.array([2, 9], dtype=np.int32)
    queries = [
        Query(limit=10, user_features=user),
        Query(limit=10, seed_features=(Encoded.of(item),)),
        Query(limit=10, seeds=seeds, user_features=user),
        Query(limit=10, seeds=seeds),
    ]
    for ranking, expected in zip(model.rank(queries), whole.rank(queries, model.history), strict=True):
        assert ranking.items.tobytes() == expected.items.tobytes()
        assert ranking.scores.tobytes() == expected.scores.tobytes()
    known = [Query(limit=10, user=3), Query(limit=10, seeds=seeds, of_trained_user=True)]
    mixed = model.rank([queries[0], known[0], queries[1], known[1]])
    for ranking, expected in zip(mixed[1::2], winner.rank(known), strict=True):
        assert ranking.scores.tobytes() == expected.scores.tobytes()
    assert model.parts()["cold.users"] == 0
