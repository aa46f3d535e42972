"""Several vectors in one pass: memory stays bounded, whatever the scores are."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders import factor_batch, factor_scan
from tests.model.recommenders.test_factor_index import NONE, built


def test_a_crowd_of_candidates_is_reduced_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """When ties make nearly everything a candidate, memory stays bounded and the answer exact."""
    monkeypatch.setattr(factor_batch, "POOL_LIMIT", 500)
    monkeypatch.setattr(factor_scan, "FIRST_BLOCK", 256)
    monkeypatch.setattr(factor_scan, "FIRST_BLOCK_PER_ITEM", 1)
    factors = np.ones((3000, 3))
    vectors = np.ones((9, 3))
    for ranking in built(factors).search(vectors, [10] * 9, [NONE] * 9):
        assert ranking.items.tolist() == list(range(10))
