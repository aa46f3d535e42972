"""A blend in training: scores on one scale, added up."""

from __future__ import annotations

import numpy as np

from svc.training.search.blended import standardized, weighted


def test_scores_of_each_user_have_deviation_1_over_all_items() -> None:
    """A user for whom a part gives every item the same score gets nothing of it."""
    table = np.array([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    first, second = standardized([lambda rows: table[rows], lambda rows: 100 * table[rows]], np.arange(2))
    np.testing.assert_allclose(first.std(axis=1), [1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(first, second, rtol=1e-6)
    assert first.dtype == np.float32
    assert first[1].tolist() == [0.0, 0.0, 0.0]


def test_weights_are_factors_and_the_parts_stay() -> None:
    """A part of the weight 0 does not count."""
    parts = [np.array([[1.0, 2.0]], dtype=np.float32), np.array([[10.0, 20.0]], dtype=np.float32)]
    assert weighted(parts, [0.5, 0.0]).tolist() == [[0.5, 1.0]]
    assert weighted(parts, [1.0, 0.1]).tolist() == [[2.0, 4.0]]
    assert parts[0].tolist() == [[1.0, 2.0]]
