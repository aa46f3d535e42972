"""Sets of item columns, compared with Python's own sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.model.ranking.item_sets import ItemSet, best, intersect, mask, reaching, without


def test_item_sets_agree_with_python_sets() -> None:
    """Intersection, union, complement, membership and columns agree for any number of items."""
    rng = np.random.default_rng(5)
    for n_items in (1, 7, 8, 9, 100, 1001):
        first, second = (set(np.flatnonzero(rng.random(n_items) < 0.4).tolist()) for _ in range(2))
        a = ItemSet.of_columns(np.array(sorted(first), dtype=np.int32), n_items)
        b = ItemSet.of_columns(np.array([*second, *second], dtype=np.int32), n_items)
        for made, expected in ((a & b, first & second), (a | b, first | second), (~a, set(range(n_items)) - first)):
            assert made.columns().tolist() == sorted(expected)
            assert made.count == len(expected)
            assert made.equals(ItemSet.of_columns(np.array(sorted(expected), dtype=np.int32), n_items))
            assert not made.equals(~made)
            assert not made.equals(None)
            assert not made.equals(ItemSet.of_flags(np.append(made.flags(), False)))
        assert a.contains(np.arange(n_items, dtype=np.int32)).tolist() == [column in first for column in range(n_items)]
        assert a.nbytes <= (n_items + 7) // 8


@given(st.lists(st.booleans(), min_size=1, max_size=70), st.sampled_from([np.float32, np.float64]))
def test_a_mask_keeps_the_bits_of_kept_scores(flags: list[bool], dtype: Any) -> None:
    """Kept scores have the same bits. All others become minus infinity, NaN included."""
    kept = np.array(flags)
    scores = np.where(np.arange(len(kept)) % 3, np.arange(len(kept)) * -0.1, -0.0).astype(dtype)
    expected = np.where(kept, scores, -np.inf).astype(dtype)
    mask(scores, kept)
    assert scores.tobytes() == expected.tobytes()


def test_restrictions_are_joined_by_and() -> None:
    """Items must be in every set. None restricts nothing, and joining only None gives None."""
    first = ItemSet.of_columns(np.array([0, 2, 3], dtype=np.int32), 5)
    second = ItemSet.of_columns(np.array([2, 4], dtype=np.int32), 5)
    assert intersect() is intersect(None, None) is None
    assert intersect(None, first) is first
    both = intersect(first, None, second)
    assert both is not None
    assert both.columns().tolist() == [2]


def test_without_keeps_the_order() -> None:
    """Excluded columns may be repeated or absent."""
    columns = np.array([4, 0, 3, 1], dtype=np.int32)
    assert without(columns, np.array([3, 3, 2], dtype=np.int32), 5).tolist() == [4, 0, 1]
    assert without(columns, columns[:0], 5).tolist() == columns.tolist()


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [3, 255, 257, 1700, 5000, 20_011])
def test_the_best_of_random_ties_are_those_of_a_full_sort(n: int, dtype: type) -> None:
    """Ties at any level, also with another order among equal scores, agree with a full sort to the bit."""
    rng = np.random.default_rng(n)
    for _ in range(60):
        levels = rng.choice([-np.inf, -1.5, -0.0, 0.0, 1e-30, 0.25, 1.0, 2.0], size=rng.integers(1, 6))
        scores = rng.choice(levels, size=n, p=rng.dirichlet(np.full(len(levels), 0.3))).astype(dtype)
        some = rng.integers(0, n, rng.integers(0, 40))
        scores[some] = rng.normal(size=len(some))
        limit, ties = int(rng.choice([1, 2, 10, 20, 100, 1000])), rng.permutation(n)
        assert best(scores, limit).tolist() == sorted_best(scores, limit)
        in_order = [i for i in np.lexsort((ties, -scores)).tolist() if scores[i] > -np.inf]
        assert best(scores, limit, ties).tolist() == in_order[:limit]


def test_few_scores_above_the_rest_are_selected_without_partitioning_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """`np.partition` is 30 to 150 times slower over ties, so it never gets the zeros of a sparse model."""
    sizes, partition = [], np.partition

    def counted(values: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        sizes.append(len(values))
        return partition(values, *arguments, **options)

    monkeypatch.setattr(np, "partition", counted)
    scores = np.zeros(41_000)
    scores[np.arange(20) * 1999] = np.arange(20) + 1.0
    scores[5] = -np.inf
    for limit in (10, 20, 21, 100, 1000):
        assert best(scores, limit).tolist() == sorted_best(scores, limit)
    assert sum(sizes) < 1000, sizes


def test_entries_that_may_be_among_the_best_are_candidates() -> None:
    """A candidate is at most the error bound below the last of the best entries."""
    scores = np.random.default_rng(0).normal(size=10_000).astype(np.float32)
    tenth = np.sort(scores)[-10]
    found = set(reaching(scores, 10, 0.1).tolist())
    assert set(np.flatnonzero(scores >= tenth - np.float32(0.1)).tolist()) <= found
