"""Features of a page against their plain definition."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.ranker.features import MOST_HISTORY, features
from svc.model.ranker.item_record import names
from svc.model.ranking.query import Ranking
from tests.families import family
from tests.model.ranker.records import plain_features, random_record


@pytest.mark.parametrize("name", [None, "IALS", "SVD", "BPR", "popular_blend"])
@pytest.mark.parametrize("tables", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_feature_is_what_its_plain_definition_says(ordered: bool, tables: bool, name: str | None) -> None:
    rng = np.random.default_rng(1)
    scorer = None if name is None else family(name, n_items=150).scorer
    record = random_record(rng, 150, ordered=ordered, tables=tables)
    record.part_names, record.by_vectors = (
        ("a", "b", "c") if name == "popular_blend" else (),
        ordered and scorer is not None,
    )
    record.ready(scorer)
    told = [feature.name for feature in names(record)]
    assert len(told) == len(set(told))
    for length in (0, 1, 2, 3, 20, MOST_HISTORY + 30):
        columns = rng.permutation(150).astype(np.int32)
        history, items = columns[:length], columns[-10:]
        for parts in (None, rng.normal(size=(3, len(items)))):
            page = Ranking(items, -np.sort(rng.normal(size=len(items))), parts=parts)
            table = features(record, history, page)
            expected = plain_features(record, history.tolist(), page, scorer)
            assert sorted(expected) == sorted(told)
            np.testing.assert_allclose(table, [expected[name] for name in told], rtol=1e-6, atol=1e-7)


def test_a_candidate_has_the_same_bits_on_pages_of_any_length() -> None:
    rng = np.random.default_rng(2)
    record, scorer = random_record(rng, 120), family("popular_blend", n_items=120).scorer
    record.part_names, record.by_vectors = ("a", "b", "c"), True
    record.ready(scorer)
    history = np.arange(60, 90, dtype=np.int32)
    page = Ranking(np.arange(60, dtype=np.int32), -np.sort(rng.normal(size=60)), parts=rng.normal(size=(3, 60)))
    whole = features(record, history, page)
    for n in (1, 7, 31):
        assert features(record, history, page.at(slice(n))).tobytes() == whole[:, :n].tobytes()
