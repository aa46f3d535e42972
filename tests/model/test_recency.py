"""Positions, and the weights that follow from them."""

from __future__ import annotations

import numpy as np

from svc.model.recency import LEAST, decay_weights, factors, order_history, positions_of


def test_positions_are_dense_ranks_from_the_latest() -> None:
    """The latest time is 0. Equal times share a position."""
    assert positions_of(np.array([2, 2, 5, 9, 9, 9])).tolist() == [2, 2, 1, 0, 0, 0]
    assert positions_of(np.array([4])).tolist() == [0]
    assert positions_of(np.empty(0, dtype=np.int64)).tolist() == []


def test_a_factor_is_never_zero() -> None:
    """The exponential underflows, and a confidence of zero cannot be divided by."""
    found = factors(np.array([0, 1, 5000]), 2.0)
    assert found.tolist() == [1.0, float(np.exp(-2.0)), LEAST]
    assert np.float32(LEAST) > 0


def test_a_repeated_item_takes_its_latest_position_and_adds_weights() -> None:
    """Later positions close the gap that it leaves."""
    columns = np.array([7, 3, 7, 5], dtype=np.int32)
    found, weights, positions = order_history(columns, None, np.arange(4))
    assert (found.tolist(), positions.tolist()) == ([3, 7, 5], [2, 1, 0])
    np.testing.assert_allclose(decay_weights(weights, positions, 0.5), [np.exp(-1.0), 2 * np.exp(-0.5), 1.0])
    found, weights, positions = order_history(columns, np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1]))
    assert (found.tolist(), positions.tolist()) == ([3, 7, 5], [1, 0, 0])
    np.testing.assert_allclose(decay_weights(weights, positions, 1.0), [2 * np.exp(-1.0), 4.0, 4.0])


def test_without_recency_weights_stay_as_they_are() -> None:
    """Weights stay None if all are 1."""
    assert decay_weights(None, np.arange(3), 0.0) is None
    weights = np.array([1.0, 2.0])
    assert decay_weights(weights, np.arange(2), 0.0) is weights
