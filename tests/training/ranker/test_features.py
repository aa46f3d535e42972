"""Features of a page, compared with their definition."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranker.item_record import names
from svc.model.ranker.page_ranker import MOST_HISTORY
from svc.training.ranker.features import PageFeatures
from tests.model.ranker.records import plain_features, random_record


@pytest.mark.parametrize("weighs", [True, False])
@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_feature_equals_its_definition(ordered: bool, tables: bool, weighs: bool) -> None:
    rng = np.random.default_rng(1)
    record = random_record(rng, 150, ordered=ordered, tables=tables)
    told = [feature.name for feature in names(record)]
    assert len(told) == len(set(told))
    for length in (0, 1, 2, 3, 20, MOST_HISTORY + 30):
        columns = rng.permutation(150).astype(np.int32)
        history, items = columns[:length], columns[-10:]
        scores = -np.sort(rng.normal(size=len(items)))
        weights = rng.choice([0.05, 3.0, 10.0], length).astype(np.float32) if weighs else None
        table = PageFeatures(record).of(history, weights, items, scores)
        told_weights = None if weights is None else weights.tolist()
        expected = plain_features(record, history.tolist(), items.tolist(), scores.tolist(), told_weights)
        assert sorted(expected) == sorted(told)
        np.testing.assert_allclose(table, [expected[name] for name in told], rtol=1e-6, atol=1e-7)
