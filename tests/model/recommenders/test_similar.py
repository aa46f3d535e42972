"""Similarities of items, compared with cosines of a naive loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from svc.model.ranking.item_sets import spans
from svc.model.ranking.steps import result_of
from svc.model.recommenders import similar
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.similar import STRONGEST, cosines, cosines_of_rows

ITEMS = np.array([7, 0, 3, 9, 4], dtype=np.int32)


def weights() -> np.ndarray:
    """Return ten rows, of which one is empty, two are equal, and one has only its diagonal."""
    found = np.random.default_rng(3).random((10, 10)).astype(np.float32)
    found[found < 0.5] = 0
    found[3] = 0
    found[9] = found[7]
    found[4] = 0
    found[4, 4] = 1
    return found


def naive(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    products = rows.astype(np.float64) @ rows.T.astype(np.float64)
    scale = np.outer(norms, norms)
    return np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)


def similarities(family: str, dense: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return the similarities of all pairs of `items`, by a model whose weights are `dense`."""
    if family == "dense":
        steps = DenseWeightsScorer(dense).similar(items)
    else:
        offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))]).astype(np.int32)
        steps = NeighbourScorer(offsets, np.nonzero(dense)[1].astype(np.int32), dense[dense != 0]).similar(items)
    to_all = result_of(steps)
    found = np.array([to_all(place) for place in range(len(items))])
    assert found.dtype == np.float64
    return found


@pytest.mark.parametrize("family", ["dense", "neighbours"])
def test_rows_of_weights_are_compared_without_their_diagonal(family: str) -> None:
    """An item's weight on itself does not count. An item without other weights has similarity 0."""
    dense = weights()
    found = similarities(family, dense, ITEMS)
    np.fill_diagonal(dense, 0)
    np.testing.assert_allclose(found, naive(dense[ITEMS]), atol=1e-6)


@pytest.mark.parametrize("family", ["dense", "neighbours"])
@pytest.mark.parametrize("n", [99, 100, 101, 102, 250])
def test_the_strongest_weights_of_long_rows_are_compared(family: str, n: int) -> None:
    """Of each row the 100 weights of the largest absolute value count, ties by column, never the diagonal."""
    rng = np.random.default_rng(n)
    dense = rng.integers(-9, 10, (n, n)).astype(np.float32)
    dense[5] = dense[8]
    dense[[5, 8], 5] = dense[[5, 8], 8] = 0.5
    np.fill_diagonal(dense, 50)
    items = rng.permutation(n)[:60].astype(np.int32)
    found = similarities(family, dense, items)
    np.fill_diagonal(dense, 0)
    cut = np.zeros_like(dense)
    for item, row in enumerate(dense.tolist()):
        for column in sorted(range(n), key=lambda column: (-abs(row[column]), column))[:STRONGEST]:
            cut[item, column] = row[column]
    np.testing.assert_allclose(found, naive(cut[items]), atol=1e-12)


def test_a_comparison_reads_only_weights_in_shared_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps over 2,000 items read some of their 200,000 weights once, not ten times."""
    rng, read = np.random.default_rng(1), []
    columns = np.argsort(rng.random((2000, 4000)), axis=1)[:, :100].astype(np.int32)
    scorer = NeighbourScorer(np.arange(0, 400_001, 100), np.tile(columns, (2, 1)).ravel(), np.ones(400_000, np.float32))
    to_all = result_of(scorer.similar(np.arange(2000, dtype=np.int32)))
    bincount = np.bincount

    def counted(values: np.ndarray, *arguments: Any, **options: Any) -> np.ndarray:
        read.append(len(values))
        return bincount(values, *arguments, **options)

    monkeypatch.setattr(np, "bincount", counted)
    for number in range(10):
        to_all(number)
    assert sum(read) < 200_000


def test_equal_vectors_are_equally_far_from_others() -> None:
    """Similarities agree to the last bit, so that ranking order, not rounding, breaks ties of diversity."""
    vectors = np.random.default_rng(5).standard_normal((37, 19))
    vectors[[3, 11, 36]] = vectors[20]
    vectors[8] = 0
    to_all = cosines(vectors)
    for place in range(len(vectors)):
        row = to_all(place)
        assert row[3] == row[11] == row[20] == row[36]
        assert row[8] == 0
    np.testing.assert_allclose([to_all(place) for place in range(37)], naive(vectors), atol=1e-12)


@pytest.mark.parametrize("n_hubs", [1, 60, 100])
def test_columns_of_many_rows_are_compared_as_whole_vectors(n_hubs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rows share 100 columns, no entry is read one by one. Equal rows have equal cosines with any other."""
    rng, m, read = np.random.default_rng(2), 2000, list[int]()
    rows = np.zeros((m, 3000))
    rows[:, :n_hubs] = rng.random((m, n_hubs))
    rows[: m // 2, n_hubs] = 1.0
    others = np.sort(rng.integers(n_hubs + 1, 3000, (m, 100 - n_hubs)), axis=1)
    np.put_along_axis(rows, others, rng.random(others.shape), axis=1)
    rows[0] = rows[-1]

    def counting(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        read.append(int(counts.sum()))
        return spans(starts, counts)

    monkeypatch.setattr(similar, "spans", counting)
    to_all = result_of(cosines_of_rows((np.flatnonzero(row).astype(np.int32), row[row != 0]) for row in rows))
    places = range(1, m - 1, 97)
    found = np.array([to_all(place) for place in places])
    np.testing.assert_allclose(found, naive(rows)[places], atol=1e-12)
    assert np.array_equal(found[:, 0], found[:, -1])
    assert max(read) < 20_000
    assert n_hubs < 100 or max(read) == 0
