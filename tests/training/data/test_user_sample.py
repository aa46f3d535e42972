"""Training on a sample of users: users outside it get exact vectors, and all users are served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sps
from irspack.recommenders import IALSRecommender

import svc
from svc.errors import RecipeError
from svc.model.ranking.query import Query
from svc.model.recommenders.factors import FactorScorer, SVDScorer
from svc.training.data.interactions import HiddenRows, Interactions
from svc.training.data.user_sample import draw_users, solve_users
from svc.training.fitting.algorithms.truncated_svd import WeightedSVDRecommender
from svc.training.fitting.export import to_scorer
from tests.serving.artifacts import SIGNING_KEYS

N_USERS, N_ITEMS = 300, 60


def matrix(*, counts: bool = False) -> sps.csr_matrix:
    random = np.random.default_rng(3)
    tastes = random.integers(0, 4, N_USERS)
    likes = np.where(np.arange(N_ITEMS) % 4 == tastes[:, np.newaxis], 0.4, 0.05)
    dense = random.random((N_USERS, N_ITEMS)) < likes
    dense[:, 0] |= ~dense.any(axis=1)
    values = random.integers(1, 5, dense.shape) if counts else np.ones(dense.shape)
    return sps.csr_matrix((dense * values).astype(np.float64))


def interactions(found: sps.csr_matrix) -> Interactions:
    pairs = found.tocoo()
    users = [f"u{row}" for row in range(found.shape[0])]
    items = [f"i{column}" for column in range(found.shape[1])]
    hidden = HiddenRows(
        np.array([1, 5], np.int32), np.array([2, 3], np.int32), np.array([7, 8]), np.array([True, False])
    )
    times = np.arange(pairs.nnz, dtype=np.int64)
    return Interactions(pairs.row, pairs.col, times, users, items, {}, weights=pairs.data, hidden=hidden)


def test_a_sample_has_whole_histories_of_its_users() -> None:
    """Ids, items, times, weights and hidden pairs of a user stay together. A seed draws the same users."""
    all_users = interactions(matrix(counts=True))
    sample = draw_users(all_users, 100, seed=4)
    assert sample is not None
    found = sample.interactions
    assert len(found.user_ids) == 100
    whole = all_users.matrix()[sample.rows]
    assert (found.matrix() != whole).nnz == 0
    assert found.item_ids is all_users.item_ids
    assert [all_users.user_ids[row] for row in sample.rows] == found.user_ids
    assert all_users.hidden is not None
    kept = {(f"u{u}", int(i)) for u, i in zip(*all_users.hidden[:2], strict=True)} & {
        (user, item) for user in found.user_ids for item in range(N_ITEMS)
    }
    rows = () if found.hidden is None else zip(*found.hidden, strict=True)
    there = {(found.user_ids[u], int(i)): (int(time), bool(always)) for u, i, time, always in rows}
    assert there.keys() == kept
    assert set(there.values()) <= {(7, True), (8, False)}
    again = draw_users(all_users, 100, seed=4)
    assert again is not None
    assert (again.rows == sample.rows).all()
    assert draw_users(all_users, N_USERS, seed=4) is None


@pytest.mark.parametrize("counts", [False, True])
def test_user_vectors_minimize_the_objective_of_ials(counts: bool) -> None:
    """The gradient is zero at the vector of every user, inside and outside the sample."""
    whole = matrix(counts=counts)
    rows = np.arange(0, N_USERS, 3)
    trained = IALSRecommender(whole[rows], n_components=6, alpha0=0.2, train_epochs=4, n_threads=1).learn()
    scorer = to_scorer(trained, "IALSRecommender")
    assert isinstance(scorer, FactorScorer)
    solve_users(scorer, whole)
    found = scorer.embed_cold(
        [Query(limit=1, seeds=whole[u].indices, seed_weights=whole[u].data if counts else None) for u in (1, 2, 299)]
    )
    np.testing.assert_allclose(scorer.users[[1, 2, 299]], found, rtol=2e-6)
    items = scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))
    for user in (0, 1, 4, 200):
        value = whole[user].toarray()[0]
        confidence = value if trained.confidence_scaling.name == "none" else np.log1p(value / trained.epsilon)
        r = trained.scaled_reg * (trained.alpha0 * N_ITEMS + (value > 0).sum()) ** trained.nu
        alpha = trained.alpha0
        goal = (confidence + (alpha if trained.loss_type.name == "ORIGINAL" else 0.0)) * (value > 0)
        left = alpha * items.T @ items + (items.T * confidence) @ items + r * np.eye(items.shape[1])
        np.testing.assert_allclose(scorer.users[user], np.linalg.solve(left, items.T @ goal), rtol=1e-4, atol=1e-6)


def test_svd_projects_all_users() -> None:
    """Users in the sample keep their trained vectors."""
    whole = matrix()
    rows = np.arange(0, N_USERS, 2)
    scorer = to_scorer(WeightedSVDRecommender(whole[rows], n_components=5).learn(), "TruncatedSVDRecommender")
    assert isinstance(scorer, SVDScorer)
    trained = scorer.users.copy()
    solve_users(scorer, whole)
    components = scorer.index.vectors(np.arange(N_ITEMS, dtype=np.int32))
    scales = np.ones(N_ITEMS) if scorer.scales is None else scorer.scales
    np.testing.assert_allclose(scorer.users, whole @ (components * scales[:, np.newaxis]), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scorer.users[rows], trained, rtol=1e-5, atol=1e-6)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    pairs = matrix().tocoo()
    pd.DataFrame({"user_id": pairs.row, "item_id": pairs.col}).to_csv(tmp_path / "sales.csv", index=False)
    (tmp_path / "shop.yaml").write_text(
        "name: shop\nsource: {type: csv, path: sales.csv}\nschema: {user_column: user_id, item_column: item_id}\n"
        "training: {algorithms: [IALS], n_trials: 2, cutoff: 5, split: {heldout_ratio: 0.3}}\n"
        "output: {path: shop.svc}\n"
    )
    return tmp_path / "shop.yaml"


@pytest.mark.parametrize("algorithm", ["IALS", "TruncatedSVD", "CosineKNN", "DenseSLIM", "TopPop"])
def test_users_outside_the_sample_are_served(recipe: Path, algorithm: str) -> None:
    """All users of the data are known users. The header has their number."""
    result = svc.train(recipe, keys=SIGNING_KEYS, algorithms=[algorithm], n_trials=1, sample_users=120)
    assert result.header["data_stats"]["n_users"] == N_USERS
    model = svc.load(result.artifact, keys=SIGNING_KEYS)
    assert model.n_users == N_USERS
    found = model.recommend_many(limit=3)
    assert found["user_id"].nunique() == N_USERS
    whole = matrix()
    seen = {(str(user), str(item)) for user, item in zip(*whole.nonzero(), strict=True)}
    assert not seen & set(zip(found["user_id"], found["item_id"], strict=True))


def test_a_blend_trained_on_a_sample_serves_all_users(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user outside the sample scores like a new user, because deviations come from each user's own history."""
    monkeypatch.setattr(
        "svc.training.judging.search_result.by_score", lambda trials: sorted(trials, key=lambda one: not one.parts)
    )
    result = svc.train(
        recipe, keys=SIGNING_KEYS, algorithms=["TruncatedSVD", "CosineKNN", "Blend"], n_trials=2, sample_users=120
    )
    assert result.best_class == "BlendRecommender"
    model = svc.load(result.artifact, keys=SIGNING_KEYS)
    scorer = model.model.scorer
    assert scorer.deviations.shape == (2, N_USERS)
    assert scorer.factors.users.shape[0] == N_USERS
    outside = [user for user in range(N_USERS) if len(model.model.history.items(user))][-40:]
    for user in outside:
        seeds = model.model.history.items(user)
        known, new = model.model.rank([Query(limit=5, user=user), Query(limit=5, seeds=seeds)])
        np.testing.assert_allclose(known.scores, new.scores, rtol=1e-3)


def test_a_sample_of_all_users_changes_nothing(recipe: Path) -> None:
    """A sample of as many users as there are, or more, gives the same model."""
    plain, sampled = (
        svc.load(svc.train(recipe, keys=SIGNING_KEYS, n_trials=1, **more).artifact, keys=SIGNING_KEYS)
        for more in ({}, {"sample_users": 10**9})
    )
    pd.testing.assert_frame_equal(sampled.recommend_many(limit=5), plain.recommend_many(limit=5))


@pytest.mark.parametrize(
    "more",
    [
        {"algorithms": ["IALS", "BPRFM"]},
        {
            "features": {
                "user": {
                    "source": {"type": "csv", "path": "u.csv"},
                    "id_column": "u",
                    "columns": [{"name": "a", "kind": "categorical"}],
                }
            }
        },
        {"sample_users": 0},
    ],
)
def test_recipes_that_cannot_be_sampled_are_refused(recipe: Path, more: dict[str, Any]) -> None:
    """A recipe with features or BPRFM is refused, and so is a sample of no users."""
    with pytest.raises(RecipeError, match="sample_users"):
        svc.train(recipe, keys=SIGNING_KEYS, **{"sample_users": 10, **more})


def test_weights_and_times_may_be_missing() -> None:
    """A table without weights and times can be sampled."""
    plain = replace(interactions(matrix()), times=None, weights=None, hidden=None)
    sample = draw_users(plain, 10, seed=0)
    assert sample is not None
    assert (sample.interactions.times, sample.interactions.weights, sample.interactions.hidden) == (None, None, None)
