"""Similarities of items, compared with cosines of a naive loop."""

from __future__ import annotations

import numpy as np
import pytest

from svc.model.recommenders.base import cosines
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.neighbours import NeighbourScorer

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


@pytest.mark.parametrize("family", ["dense", "neighbours"])
def test_rows_of_weights_are_compared_without_their_diagonal(family: str) -> None:
    """An item's weight on itself does not count. An item without other weights has similarity 0."""
    dense = weights()
    if family == "dense":
        to_all = DenseWeightsScorer(dense).similar(ITEMS)
    else:
        offsets = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))]).astype(np.int32)
        columns = np.nonzero(dense)[1].astype(np.int32)
        to_all = NeighbourScorer(offsets, columns, dense[dense != 0]).similar(ITEMS)
    np.fill_diagonal(dense, 0)
    found = np.array([to_all(place) for place in range(len(ITEMS))])
    np.testing.assert_allclose(found, naive(dense[ITEMS]), atol=1e-6)
    assert found.dtype == np.float64


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
