"""The fast sort, which gives the order of numpy's stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from svc.stable_sort import stable_order

SMALL = arrays.arrays(np.int32, 40, elements=st.integers(-5, 5))
ANY = arrays.arrays(np.int64, 40)


@given(SMALL, ANY, SMALL)
def test_the_fast_sort_gives_the_order_of_lexsort(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    found = stable_order(first, second, third)
    assert found.tolist() == np.lexsort((third, second, first)).tolist()


@given(ANY)
@example(np.array([2**62, -(2**63), 2**62, 0]))  # a common step hides that a difference does not fit into int64
def test_extreme_keys_neither_overflow_nor_become_equal(key: np.ndarray) -> None:
    assert stable_order(key).tolist() == np.argsort(key, kind="stable").tolist()


@pytest.mark.parametrize("n", [0, 1, 2, 1024, 1025])
def test_equal_keys_keep_their_order_at_every_length(n: int) -> None:
    assert stable_order(np.full(n, 7)).tolist() == list(range(n))


def test_times_in_nanoseconds_are_ordered_by_their_common_step() -> None:
    times = np.random.default_rng(1).integers(0, 10**9, 5000) * 10**9
    assert stable_order(times).tolist() == np.argsort(times, kind="stable").tolist()
