"""Selection is exact and has a fixed order, with ties and excluded entries."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranking.topk import best, reaching


def sorted_best(scores: np.ndarray, limit: int) -> list[int]:
    order = np.lexsort((np.arange(len(scores)), -scores))
    return [int(i) for i in order if scores[i] > -np.inf][:limit]


@pytest.mark.parametrize("n", [1, 5, 256, 257, 2048, 2049, 5000, 41_003])
@pytest.mark.parametrize("limit", [1, 10, 100, 1000])
def test_the_best_are_those_of_a_full_sort(n: int, limit: int) -> None:
    """Random scores, coarse scores with many ties, equal scores, and mostly excluded entries agree with a full sort."""
    rng = np.random.default_rng(n + limit)
    smooth = rng.normal(size=n)
    rare = np.where(rng.random(n) < 0.002, smooth, -np.inf)
    mostly_zero = np.where(rng.random(n) < 0.01, smooth, 0.0)
    for scores in (smooth, np.round(smooth), np.zeros(n), np.full(n, -np.inf), rare, mostly_zero):
        assert best(scores, limit).tolist() == sorted_best(scores, limit)


def test_entries_within_the_slack_of_the_last_place_are_reached() -> None:
    """Entries that may be among the best after exact scoring are candidates."""
    scores = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    tenth = np.sort(scores)[-10]
    found = set(reaching(scores, 10, 0.1).tolist())
    assert set(np.flatnonzero(scores >= tenth - np.float32(0.1)).tolist()) <= found
