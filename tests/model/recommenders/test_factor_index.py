"""The search is exact, and the bits of a ranking do not depend on what else is searched."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranking.query import Ranking
from svc.model.recommenders.factor_index import FactorIndex

NONE = np.empty(0, dtype=np.int32)


def built(factors: np.ndarray, *, cosine: bool = False) -> FactorIndex:
    index = FactorIndex.build(factors.astype(np.float32))
    index.ready(cosine=cosine)
    return index


def exact(factors: np.ndarray, vector: np.ndarray, limit: int, excluded: np.ndarray) -> list[int]:
    """Columns by full sort of float64 scores, summed as the index sums them."""
    scores = np.add.reduce(np.ascontiguousarray(factors, dtype=np.float64) * vector, axis=1)
    scores[excluded] = -np.inf
    order = np.lexsort((np.arange(len(scores)), -scores))
    return [int(column) for column in order if scores[column] > -np.inf][:limit]


def same_bits(one: Ranking, other: Ranking) -> bool:
    return one.items.tobytes() == other.items.tobytes() and one.scores.tobytes() == other.scores.tobytes()


def catalogue(kind: str, n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    factors = rng.normal(size=(n, k)).astype(np.float32)
    if kind == "decaying":
        factors *= (rng.permutation(np.arange(1, n + 1)) ** -0.5)[:, np.newaxis].astype(np.float32)
    elif kind == "repeated":
        factors = factors[rng.integers(0, max(1, n // 10), n)]
    elif kind == "coarse":
        factors = np.round(factors)
    elif kind == "with zeros":
        factors[rng.random(n) < 0.5] = 0
    elif kind == "all zero":
        factors[:] = 0
    elif kind == "tiny":
        factors *= np.float32(1e-22)
    return factors


KINDS = ["plain", "decaying", "repeated", "coarse", "with zeros", "all zero", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (300, 1), (5000, 16), (9001, 33)])
def test_a_batch_gives_the_bits_of_each_alone_and_the_order_of_a_full_sort(kind: str, n: int, k: int) -> None:
    """Whatever the batch's size, limits and bans are, each row is ranked as by a full sort of its exact scores."""
    rng = np.random.default_rng([n, k, KINDS.index(kind)])
    factors = catalogue(kind, n, k, rng)
    index = built(factors)
    for size in (1, 2, 7, 8, 33):
        vectors = rng.normal(size=(size, k))
        vectors[rng.random(size) < 0.1] = 0
        limits = rng.choice([1, 3, 10, 32, 40, 250], size).tolist()
        excluded = [rng.integers(0, n, rng.integers(0, 30)).astype(np.int32) for _ in range(size)]
        together = index.search(vectors, limits, excluded)
        for row, ranking in enumerate(together):
            assert ranking.items.tolist() == exact(factors, vectors[row], limits[row], excluded[row])
            (alone,) = index.search(vectors[[row]], [limits[row]], [excluded[row]])
            assert same_bits(alone, ranking)


def test_the_largest_batch_gives_the_same_bits() -> None:
    """256 rows, and more than are scanned at once, against each row alone."""
    rng = np.random.default_rng(1)
    index = built(catalogue("decaying", 12_000, 24, rng))
    vectors = rng.normal(size=(300, 24))
    limits = [10] * 300
    excluded = [rng.integers(0, 12_000, 20).astype(np.int32) for _ in range(300)]
    together = index.search(vectors, limits, excluded)
    for row in range(0, 300, 7):
        assert same_bits(index.search(vectors[[row]], [10], [excluded[row]])[0], together[row])


def test_everything_banned_gives_an_empty_ranking() -> None:
    """No candidate is left, for ordinary and zero vectors."""
    index = built(np.ones((20, 2)))
    everything = np.arange(20, dtype=np.int32)
    for ranking in index.search(np.array([[1.0, 2.0], [0.0, 0.0]]), [5, 5], [everything, everything]):
        assert not len(ranking.items)


def test_a_limit_above_the_catalogue_returns_all_of_it() -> None:
    """A limit above the catalogue returns every item, those of norm zero with the score 0."""
    factors = np.array([[0.0], [-1.0], [2.0], [0.0]])
    (ranking,) = built(factors).search(np.array([[1.0]]), [100], [NONE])
    assert ranking.items.tolist() == [2, 0, 3, 1]
    assert ranking.scores.tolist() == [2.0, 0.0, 0.0, -1.0]


def test_cosine_ignores_length_and_bias() -> None:
    """The last component counts in products only; a zero vector has cosine 0 with everything."""
    rng = np.random.default_rng(2)
    factors = rng.normal(size=(6000, 9)).astype(np.float32)
    factors[5, :-1] = 0
    directions = factors[:, :-1].astype(np.float64)
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    directions /= np.where(norms > 0, norms, 1.0)
    vectors = np.column_stack([directions[:20], np.zeros(20)])
    for row, ranking in enumerate(built(factors, cosine=True).search(vectors, [12] * 20, [NONE] * 20, cosine=True)):
        expected = directions @ vectors[row, :-1]
        if row == 5:
            assert ranking.scores.tolist() == [0.0] * 12
            continue
        assert ranking.items.tolist() == np.argsort(-expected)[:12].tolist()
        np.testing.assert_allclose(ranking.scores, expected[ranking.items], atol=1e-12)
