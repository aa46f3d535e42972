"""Contributions of groups against plain features, one number at a time."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranker.contributions import GROUPS, MOST_HISTORY
from tests.model.ranker.records import plain_features, random_ranker


@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_group_adds_what_its_features_add_one_by_one(ordered: bool, tables: bool) -> None:
    rng = np.random.default_rng(1)
    ranker = random_ranker(rng, 150, ordered=ordered, tables=tables)
    groups = np.array([feature.group for feature in ranker.features])
    for length in (0, 1, 2, 3, 20, MOST_HISTORY + 30):
        columns = rng.permutation(150).astype(np.int32)
        history, items = columns[:length], columns[-10:]
        scores = -np.sort(rng.normal(size=len(items)))
        plain = plain_features(ranker.record, history.tolist(), items.tolist(), scores.tolist())
        table = np.array([plain[feature.name] for feature in ranker.features])
        numbers = (array[:, np.newaxis] for array in (ranker.weights, ranker.means, ranker.deviations))
        weights, means, deviations = numbers
        addends = weights * (table - means) / deviations
        expected = [addends[groups == group].sum(axis=0) for group in GROUPS]
        np.testing.assert_allclose(ranker.contributions(history, items, scores), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("length", [0, 2, 30])
def test_a_candidate_has_the_same_bits_on_pages_of_any_length(length: int) -> None:
    rng = np.random.default_rng(2)
    ranker = random_ranker(rng, 120)
    items, history = np.arange(50, dtype=np.int32), np.arange(60, 60 + length, dtype=np.int32)
    scores = -np.sort(rng.normal(size=50))
    whole = ranker.contributions(history, items, scores)
    for n in (1, 7, 31):
        assert ranker.contributions(history, items[:n], scores[:n]).tobytes() == whole[:, :n].tobytes()
        sums = np.add.reduce(ranker.contributions(history, items[:n], scores[:n]), axis=0)
        assert sums.tobytes() == np.add.reduce(whole, axis=0)[:n].tobytes()
