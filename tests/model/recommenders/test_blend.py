"""Blends, compared with brute force. Queries give the same bytes alone and in a batch, under any exclusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.model.coldstart import LeastSquares
from svc.model.history import History
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query
from svc.model.recommenders import factor_index
from svc.model.recommenders import scan as scan_module
from svc.model.recommenders.base import excluded_columns, profile
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer, PopularPart

N_USERS, K = 30, 5


def history(rng: np.random.Generator, n_items: int) -> History:
    """Return random histories. The last user has no items."""
    sizes = np.append(rng.integers(1, 12, N_USERS - 1), 0)
    columns = [np.sort(rng.choice(n_items, size, replace=False)) for size in sizes]
    return History(np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32), np.concatenate(columns).astype(np.int32))


def neighbours(rng: np.random.Generator, n_items: int, *, negative: bool = False) -> NeighbourScorer:
    columns = np.array([np.sort(rng.choice(n_items, 6, replace=False)) for _ in range(n_items)], dtype=np.int32)
    weights = rng.random(columns.size) - (0.5 if negative else 0.0)
    return NeighbourScorer(np.arange(n_items + 1, dtype=np.int32) * 6, columns.ravel(), weights.astype(np.float32))


def factors(rng: np.random.Generator, n_items: int, *, tied: bool = False) -> IALSScorer:
    items = rng.normal(size=(n_items, K)) * rng.pareto(1.5, n_items)[:, np.newaxis]
    items[-3:] = 0.0
    if tied:
        items = np.round(items)
    least_squares = LeastSquares(
        alpha0=0.1, reg=0.1, nu=1.0, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=n_items,
        user_weights=rng.normal(size=(2, K)).astype(np.float32), item_weights=None,
    )  # fmt: skip
    users = rng.normal(size=(N_USERS, K)).astype(np.float32)
    users[3] = 0.0
    return IALSScorer(users, FactorIndex.build(items.astype(np.float32)), least_squares)


def blend(kind: str, rng: np.random.Generator, n_items: int, seen: History) -> BlendScorer:
    popularity = PopularPart.of(PopularityScorer(counts(n_items)), 0.3) if "popular" in kind else None
    if "neighbours" in kind:
        parts = [neighbours(rng, n_items), neighbours(rng, n_items)]
        return BlendScorer.of(None, parts, (0.4, 0.6), seen, popularity=popularity)
    if kind == "popular factors":
        return BlendScorer.of(factors(rng, n_items), [], (0.7,), seen, popularity=popularity)
    if kind == "dense":
        dense = DenseWeightsScorer(rng.normal(size=(n_items, n_items)).astype(np.float32))
        users = rng.normal(size=(N_USERS, K)).astype(np.float32)
        svd = SVDScorer(users, FactorIndex.build(rng.normal(size=(n_items, K)).astype(np.float32)))
        return BlendScorer.of(svd, [dense], (0.5, 0.5), seen)
    parts = [neighbours(rng, n_items, negative=kind == "negative")]
    if kind == "three":
        parts.append(neighbours(rng, n_items))
    weights = (0.7, 0.3) if len(parts) == 1 else (0.5, 0.3, 0.2)
    return BlendScorer.of(factors(rng, n_items, tied=kind == "tied"), parts, weights, seen, popularity=popularity)


def counts(n_items: int) -> np.ndarray:
    """Return popularity that does not follow the order of columns."""
    return np.random.default_rng(n_items).pareto(1.0, n_items)


KINDS = [
    "plain",
    "negative",
    "three",
    "tied",
    "neighbours",
    "dense",
    "popular",
    "popular neighbours",
    "popular factors",
]


def brute_force(scorer: BlendScorer, query: Query, seen: History) -> np.ndarray:
    """Return the score of every item: the weighted sum of the parts' scores, each scaled to standard deviation 1."""
    rows, values = profile(query, seen)
    parts = [part.totals(rows, values) for part in scorer.sums]
    if scorer.factors is not None:
        index = scorer.factors.index
        items = np.empty(index.factors.shape)
        items[index.columns] = index.factors
        known = query.user >= 0
        vector = scorer.factors.users[query.user] if known else scorer.factors.embed_cold([query])[0]
        parts.insert(0, items @ vector.astype(np.float64))
    total = np.zeros(scorer.n_items)
    for weight, part in zip(scorer.weights, parts, strict=True):
        if part.std() > 1e-9:
            total += weight * part / part.std()
    if scorer.popularity is not None:
        popular = counts(scorer.n_items)
        total += 0.3 * popular / popular.std()
    total[excluded_columns(query, seen)] = -np.inf
    if query.allowed is not None:
        total[~query.allowed.flags()] = -np.inf
    return total


def queries(rng: np.random.Generator, n_items: int) -> list[Query]:
    found = [Query(limit=int(limit), user=user) for user, limit in enumerate(rng.integers(1, 25, N_USERS))]
    seeds = np.sort(rng.choice(n_items, 4, replace=False)).astype(np.int32)
    few = ItemSet.of_columns(rng.choice(n_items, n_items // 20, replace=False), n_items)
    found += [Query(limit=5, seeds=seeds), Query(limit=5, seeds=seeds, seed_weights=np.array([1.0, 2.0, 0.5, 3.0]))]
    found += [Query(limit=7, user=1, allowed=few), Query(limit=7, user=1, allowed=~few)]
    found += [Query(limit=9, user=2, exclude=seeds, include_seen=True), Query(limit=n_items, user=5)]
    return found


@pytest.mark.parametrize("n_items", [40, 900])
@pytest.mark.parametrize("kind", KINDS)
def test_rankings_are_those_of_brute_force(kind: str, n_items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every score agrees, and so do the items if their scores differ by more than rounding."""
    shrink(monkeypatch)
    rng = np.random.default_rng([n_items, KINDS.index(kind)])
    seen = history(rng, n_items)
    scorer = blend(kind, rng, n_items, seen)
    for query in queries(rng, n_items):
        (ranking,) = scorer.rank([query], seen)
        expected = brute_force(scorer, query, seen)
        wanted = min(query.limit, np.count_nonzero(expected > -np.inf))
        assert len(ranking.items) == wanted
        assert len(set(ranking.items.tolist())) == wanted
        np.testing.assert_allclose(ranking.scores, expected[ranking.items], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(ranking.scores, np.sort(expected)[::-1][:wanted], rtol=1e-9, atol=1e-9)
        ties = np.flatnonzero(np.diff(ranking.scores) == 0)
        assert (ranking.items[ties] < ranking.items[ties + 1]).all()


@pytest.mark.parametrize("scan", ["some first", "all", "rounded"])
@pytest.mark.parametrize("n_items", [40, 900])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_are_the_same_alone_and_in_any_batch(
    kind: str, n_items: int, scan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query gets the same bytes alone and in every batch, for every scan."""
    shrink(monkeypatch)
    if scan != "some first":
        monkeypatch.setattr(factor_index, "EVEN", 0.0)
    if scan == "rounded":
        monkeypatch.setattr(factor_index, "LEAST_ROUNDED", 1)
    monkeypatch.setattr(scan_module, "LEAST_AT_ONCE", 16)
    monkeypatch.setattr(scan_module, "BLOCK_SCORES", 8192)
    rng = np.random.default_rng([n_items, 7, KINDS.index(kind)])
    seen = history(rng, n_items)
    scorer = blend(kind, rng, n_items, seen)
    asked = queries(rng, n_items)
    alone = [bits(scorer.rank([query], seen)[0]) for query in asked]
    for order in (np.arange(len(asked)), rng.permutation(len(asked)), rng.permutation(len(asked))[:9]):
        together = scorer.rank([asked[place] for place in order], seen)
        assert [bits(ranking) for ranking in together] == [alone[place] for place in order]


@pytest.mark.parametrize("weight", [0.001, 1000.0])
def test_scores_of_users_err_by_no_more_than_their_bound(weight: float) -> None:
    """The bound grows with the weight of the factor part, as the error does. Exact scores are those of rankings."""
    rng = np.random.default_rng(6)
    seen = history(rng, 60)
    scorer = BlendScorer.of(factors(rng, 60), [neighbours(rng, 60)], (weight, 0.3), seen)
    for column in range(0, 60, 9):
        scores = scorer.scores_of_users(seen)(column)
        assert scores.exact is not None
        exact = scores.exact(np.arange(N_USERS))
        assert (np.abs(exact - scores.values) <= scores.errors).all()
        assert np.max(scores.errors) < 1e-4 * weight
        for user in (0, 3, N_USERS - 2):
            expected = brute_force(scorer, Query(60, user, include_seen=True), seen)
            assert exact[user] == pytest.approx(expected[column], rel=1e-9, abs=1e-9)


def test_features_are_answered_by_the_feature_aware_part() -> None:
    rng = np.random.default_rng(3)
    seen = history(rng, 60)
    scorer = blend("plain", rng, 60, seen)
    assert scorer.factors is not None
    assert scorer.feature_dim("user") == 2
    described = [Query(limit=6, user_features=np.array([1.0, 0.5])), Query(limit=6, user=4)]
    found = scorer.rank(described, seen)
    assert bits(found[0]) == bits(scorer.factors.rank(described[:1], seen)[0])
    assert bits(found[1]) == bits(scorer.rank(described[1:], seen)[0])


def test_a_user_without_scores_gets_the_first_items() -> None:
    """With an empty history and a zero vector, all items score 0 and ties decide."""
    rng = np.random.default_rng(5)
    seen = history(rng, 50)
    scorer = blend("plain", rng, 50, seen)
    assert scorer.factors is not None
    scorer.factors.users[N_USERS - 1] = 0.0
    scorer = BlendScorer.of(scorer.factors, scorer.sums, scorer.weights, seen)
    (ranking,) = scorer.rank([Query(limit=4, user=N_USERS - 1)], seen)
    assert ranking.items.tolist() == [0, 1, 2, 3]
    assert not ranking.scores.any()


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the sizes of a scan, so that a few hundred items pass through every stage."""
    monkeypatch.setattr(scan_module, "FIRST_BLOCK", 256)
    monkeypatch.setattr(scan_module, "FIRST_BLOCK_PER_ITEM", 1)
    monkeypatch.setattr(scan_module, "FIRST_GATHERED", 8)
    monkeypatch.setattr(scan_module, "GATHERED_PER_ITEM", 1)


def bits(ranking: Any) -> tuple[bytes, bytes]:
    return ranking.items.tobytes(), ranking.scores.tobytes()
