"""Histories of users: the rows of the training matrix."""

from __future__ import annotations

import numpy as np

from svc.model.history import LEAST, History, decay_factors, decay_weights, order_history, positions_of


def test_positions_are_dense_ranks_from_the_latest() -> None:
    """The latest time has position 0. Equal times share a position."""
    assert positions_of(np.array([2, 2, 5, 9, 9, 9])).tolist() == [2, 2, 1, 0, 0, 0]
    assert positions_of(np.array([4])).tolist() == [0]
    assert positions_of(np.empty(0, dtype=np.int64)).tolist() == []


def test_the_weight_of_an_old_position_is_never_zero() -> None:
    """The solve divides by the weight, and without a lower bound the exponential would underflow to 0."""
    found = decay_factors(np.array([0, 1, 5000]), 2.0)
    assert found.tolist() == [1.0, float(np.exp(-2.0)), LEAST]
    assert np.float32(LEAST) > 0


def test_a_repeated_item_takes_its_latest_position_and_adds_weights() -> None:
    """Later positions close the gap that the item leaves."""
    columns = np.array([7, 3, 7, 5], dtype=np.int32)
    found, (weights,), positions = order_history(columns, [None], np.arange(4))
    assert (found.tolist(), positions.tolist()) == ([3, 7, 5], [2, 1, 0])
    np.testing.assert_allclose(decay_weights(weights, positions, 0.5), [np.exp(-1.0), 2 * np.exp(-0.5), 1.0])
    found, (weights,), positions = order_history(columns, [np.array([1.0, 2.0, 3.0, 4.0])], np.array([0, 0, 1, 1]))
    assert (found.tolist(), positions.tolist()) == ([3, 7, 5], [1, 0, 0])
    np.testing.assert_allclose(decay_weights(weights, positions, 1.0), [2 * np.exp(-1.0), 4.0, 4.0])


def test_without_recency_weights_stay_as_they_are() -> None:
    """The weights of a history are None if all are 1."""
    assert decay_weights(None, np.arange(3), 0.0) is None
    weights = np.array([1.0, 2.0])
    assert decay_weights(weights, np.arange(2), 0.0) is weights


def test_a_row_holds_its_items_and_values() -> None:
    """Rows are views. Without values, each entry counts as 1."""
    offsets = np.array([0, 2, 2, 3], dtype=np.int64)
    columns = np.array([1, 4, 0], dtype=np.int32)
    values = np.array([2, 3, 1], dtype=np.float32)
    counted, plain = History(offsets, columns, values), History(offsets, columns)
    assert len(counted) == 3
    assert [counted.items(user).tolist() for user in range(3)] == [[1, 4], [], [0]]
    assert counted.values(0).tolist() == [2, 3]
    assert plain.values(0) is None


def test_a_history_in_order_counts_its_items_by_their_age() -> None:
    """Items of the same time have the same weight. The weight is multiplied by the item's value."""
    offsets, columns = np.array([0, 3, 5], dtype=np.int64), np.array([4, 1, 3, 0, 2], dtype=np.int32)
    values = np.array([2, 1, 1, 1, 3], dtype=np.float32)
    ties = np.array([False, True, False, False, False])
    np.testing.assert_allclose(History(offsets, columns, recency=0.5, ties=ties).weigh(0), np.exp([-0.5, -0.5, 0.0]))
    np.testing.assert_allclose(
        History(offsets, columns, values, recency=0.5).weigh(0), np.exp([-1.0, -0.5, 0.0]) * [2, 1, 1]
    )
    np.testing.assert_allclose(History(offsets, columns, values).weigh(1), [1, 3])
    assert History(offsets, columns).weigh(0) is None


def test_unused_attributes_are_not_stored() -> None:
    """A history without order has the state of earlier versions."""
    state = History(np.array([0, 1]), np.array([0], dtype=np.int32)).__getstate__()
    assert set(state) == {"offsets", "columns", "weights"}
