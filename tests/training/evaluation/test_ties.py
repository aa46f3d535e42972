"""Random orders that break ties: whole, different for each user, and blind to where an item stands."""

from __future__ import annotations

import numpy as np
import pytest

from svc.training.evaluation.ties import TieOrder


@pytest.mark.parametrize("n_items", [1, 2, 3, 4, 12, 13, 1000])
def test_both_directions_describe_one_permutation(n_items: int) -> None:
    """The items in the order of their ranks are the items that are visited, each once."""
    order = TieOrder(5, n_items, 1)
    for user in range(5):
        visited = order.first(np.array([user]), order.prime)[0]
        visited = visited[visited < n_items]
        ranks = order.ranks(np.full(n_items, user), np.arange(n_items))
        assert sorted(visited.tolist()) == list(range(n_items))
        assert visited.tolist() == np.argsort(ranks).tolist()


def test_every_item_comes_first_equally_often_also_among_a_few_tied_ones() -> None:
    """Over 20,000 users no item of a tied set is preferred by more than chance (5 standard errors)."""
    order = TieOrder(20_000, 41, 2)
    users = np.arange(20_000)
    for tied in (np.arange(41), np.array([0, 1, 2]), np.array([0, 7, 20, 40])):
        ranks = np.stack([order.ranks(users, np.full(20_000, item)) for item in tied], axis=1)
        wins = np.bincount(ranks.argmin(axis=1), minlength=len(tied))
        expected = 20_000 / len(tied)
        assert np.abs(wins - expected).max() < 5 * np.sqrt(expected)


def test_the_seed_decides_and_nothing_else() -> None:
    """The same orders for the same seed and size, others for another seed."""
    users, items = np.repeat(np.arange(4), 50), np.tile(np.arange(50), 4)
    first, again, other = (TieOrder(4, 50, seed).ranks(users, items).tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other
