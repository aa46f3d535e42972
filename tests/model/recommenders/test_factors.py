"""Vectors of users that training never saw: projections, directions, and the cold-start scorer."""

from __future__ import annotations

from typing import cast

import numpy as np

from svc.model.ranking.query import Query
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, ColdStartScorer, IALSScorer, SVDScorer
from tests.families import N_ITEMS, family

SEEDS = np.array([3, 17, 20], dtype=np.int32)


def vectors(rows: int, components: int) -> np.ndarray:
    return np.random.default_rng(6).normal(size=(rows, components)).astype(np.float32)


def test_svd_projects_a_weighted_and_scaled_history() -> None:
    """The vector is Σ weight · scale · item vector. Missing scales count as 1."""
    items, scales = vectors(N_ITEMS, 4), np.linspace(0.5, 2.0, N_ITEMS, dtype=np.float32)
    weights = np.array([1.0, 2.0, 0.5])
    query = Query(limit=1, seeds=SEEDS, seed_weights=weights)
    for own in (None, scales):
        scorer = SVDScorer(vectors(2, 4), FactorIndex.build(items), own)
        scorer.ready()
        factors = weights * (1.0 if own is None else own[SEEDS].astype(np.float64))
        np.testing.assert_allclose(scorer.embed_cold([query])[0], factors @ items[SEEDS].astype(np.float64), rtol=1e-12)


def test_bpr_answers_seeds_by_their_mean_direction() -> None:
    """The direction has length 1 for any weights of the seeds, so that scores are cosines. Biases do not count."""
    scorer = BPRScorer(vectors(2, 4), FactorIndex.build(vectors(N_ITEMS, 5)))
    scorer.ready()
    one, more = scorer.embed_cold(
        [Query(limit=1, seeds=SEEDS), Query(limit=1, seeds=SEEDS, seed_weights=np.full(3, 9))]
    )
    np.testing.assert_allclose(one, more, rtol=1e-12)
    assert np.linalg.norm(one) == np.float64(1.0) or abs(np.linalg.norm(one) - 1) < 1e-12
    (ranking,) = scorer.rank([Query(limit=N_ITEMS, seeds=SEEDS, include_seen=True)], family("BPR").history)
    assert 1.0 >= ranking.scores.max() > ranking.scores.min() >= -1.0


def test_a_cold_start_scorer_solves_like_the_whole_scorer() -> None:
    """The cold-start scorer has no vectors of users, and gives unseen users the same bytes."""
    whole = cast(IALSScorer, family("IALS").scorer)
    part = ColdStartScorer.of(whole)
    part.ready()
    features = np.array([1.0, 0.0, 0.5, 1.0])
    queries = [
        Query(limit=1, seeds=SEEDS),
        Query(limit=1, user_features=features),
        Query(limit=1, seeds=SEEDS[:1], user_features=features, seed_weights=np.array([2.0])),
    ]
    assert len(part.users) == 0
    assert part.embed_cold(queries).tobytes() == whole.embed_cold(queries).tobytes()
    assert part.feature_dim("item") == whole.feature_dim("item") == len(features)
