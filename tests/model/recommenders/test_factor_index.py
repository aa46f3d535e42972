"""The index of item vectors. They are sorted by falling norm, and rounded if this makes the scan faster."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders import factor_index
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.scan import Wanted, scan
from tests.model.recommenders.test_scan import NONE, built


def test_cosine_ignores_length_and_bias() -> None:
    """The last component is the bias, which counts in products only. A zero vector has cosine 0 with every vector."""
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
