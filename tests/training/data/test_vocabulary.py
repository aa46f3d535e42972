"""Tokens that are frequent enough."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import FeatureDimensionExceeded
from svc.training.data import vocabulary
from svc.training.data.vocabulary import count_tokens

ROWS = st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=4), st.integers(1, 5)), max_size=12)


def tokens_of(value: object) -> list[str]:
    assert isinstance(value, tuple)
    return sorted(set(value))


@given(rows=ROWS, min_frequency=st.integers(1, 6), buckets=st.sampled_from([1, 3, 1 << 10]))
def test_counts_are_exact_however_few_buckets_there_are(
    rows: list[tuple[list[str], int]], min_frequency: int, buckets: int
) -> None:
    """Buckets only rule tokens out: a collision costs work and changes nothing."""
    values = [tuple(tokens) for tokens, _ in rows]
    weights = np.array([weight for _, weight in rows], dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "_BUCKETS", buckets)
        found = count_tokens(values, weights, tokens_of, min_frequency=min_frequency, limit=100)
    counts: Counter[str] = Counter()
    for tokens, weight in rows:
        counts.update(dict.fromkeys(set(tokens), weight))
    assert found.tokens == sorted(token for token, count in counts.items() if count >= min_frequency)
    assert found.distinct <= len(counts)


def test_too_many_tokens_name_the_way_out() -> None:
    """As soon as the limit is passed."""
    values = [(str(number),) for number in range(11)]
    with pytest.raises(FeatureDimensionExceeded, match="raise min_frequency"):
        count_tokens(values, np.ones(11, dtype=np.int64), tokens_of, min_frequency=1, limit=10)
