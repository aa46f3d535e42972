"""Queries and rankings as values: dense features, and the beginning of a page."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from svc.model.columns.feature_values import Encoded
from svc.model.explain import Because
from svc.model.ranking.query import Ranking


@given(st.lists(st.sampled_from([0.0, 1.0, -2.5]), min_size=1, max_size=20))
def test_a_feature_vector_is_encoded_without_its_zeros(values: list[float]) -> None:
    """Encoding a dense vector keeps only its non-zero places."""
    vector = np.array(values)
    encoded = Encoded.of(vector)
    assert len(encoded.places) == np.count_nonzero(vector)
    assert encoded.dense().tolist() == values


def test_a_page_has_its_own_reasons() -> None:
    """Items, scores and both kinds of reasons are cut at the same place. The first page is the ranking itself."""
    because = tuple(Because(((column, 1.0),), 0.0) for column in (7, 8, 9))
    whole = Ranking(
        np.array([5, 4, 3], dtype=np.int32), np.array([3.0, 2.0, 1.0]), True, ((), ("pinned",), ()), because
    )
    assert whole.from_place(0) is whole
    page = whole.from_place(1)
    assert (page.items.tolist(), page.scores.tolist(), page.popular) == ([4, 3], [2.0, 1.0], True)
    assert (page.reasons, page.because) == ((("pinned",), ()), because[1:])
    assert not len(whole.from_place(3).items)
