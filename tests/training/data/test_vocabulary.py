"""The selection of frequent tokens."""

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
def test_counts_are_exact_with_any_number_of_buckets(
    rows: list[tuple[list[str], int]], min_frequency: int, buckets: int
) -> None:
    """A collision of buckets costs time, and does not change the result."""
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


def test_too_many_tokens_are_refused_as_soon_as_the_limit_is_passed() -> None:
    """So the memory of the count is bounded."""
    values = [(str(number),) for number in range(11)]
    with pytest.raises(FeatureDimensionExceeded, match="raise min_frequency"):
        count_tokens(values, np.ones(11, dtype=np.int64), tokens_of, min_frequency=1, limit=10)
