"""The index of item vectors, sorted by falling norm and rounded if that pays."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranking.query import Ranking
from svc.model.recommenders import factor_index
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.scan import Wanted, scan
from tests.model.recommenders.test_scan import NONE, built


def same_bits(one: Ranking, other: Ranking) -> bool:
    return one.items.tobytes() == other.items.tobytes() and one.scores.tobytes() == other.scores.tobytes()


def test_excluding_every_item_gives_an_empty_ranking() -> None:
    """Excluding every item leaves no candidate, for ordinary and zero vectors."""
    everything = np.arange(20, dtype=np.int32)
    for ranking in scan(built(np.ones((20, 2))), np.array([[1.0, 2.0], [0.0, 0.0]]), [Wanted(5, everything)] * 2):
        assert not len(ranking.items)


def test_a_limit_above_the_catalogue_returns_all_of_it() -> None:
    """Every item comes back, items of norm zero with the score 0."""
    factors = np.array([[0.0], [-1.0], [2.0], [0.0]])
    (ranking,) = scan(built(factors), np.array([[1.0]]), [Wanted(100, NONE)])
    assert ranking.items.tolist() == [2, 0, 3, 1]
    assert ranking.scores.tolist() == [2.0, 0.0, 0.0, -1.0]


def test_cosine_ignores_length_and_bias() -> None:
    """The last component counts in products only. A zero vector has cosine 0 with every vector."""
    rng = np.random.default_rng(2)
    factors = rng.normal(size=(6000, 9)).astype(np.float32)
    factors[5, :-1] = 0
    directions = factors[:, :-1].astype(np.float64)
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    directions /= np.where(norms > 0, norms, 1.0)
    vectors = np.column_stack([directions[:20], np.zeros(20)])
    index = FactorIndex.build(factors)
    index.ready()
    for row, ranking in enumerate(scan(index.cosines(), vectors, [Wanted(12, NONE)] * 20)):
        expected = directions @ vectors[row, :-1]
        if row == 5:
            assert ranking.scores.tolist() == [0.0] * 12
            continue
        assert ranking.items.tolist() == np.argsort(-expected)[:12].tolist()
        np.testing.assert_allclose(ranking.scores, expected[ranking.items], atol=1e-12)


def test_vectors_are_rounded_only_if_many_have_similar_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factor_index, "LEAST_ROUNDED", 2_000 * 16)
    rng = np.random.default_rng(6)
    directions = rng.normal(size=(2_000, 16))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    assert built(directions).rounded is not None
    assert built(directions[1:]).rounded is None
    assert built(directions * rng.pareto(1.5, 2_000)[:, np.newaxis]).rounded is None
