"""Groups of users and items, coverage and novelty, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.training.judging.breakdown import Score, TrainingCounts, breakdown


def figures(scores: list[Score]) -> dict[tuple[str, str], float]:
    return {(score.part if score.group != "all" else "all", score.metric): score.value for score in scores}


def test_each_part_is_the_mean_of_its_users_and_items() -> None:
    """Six users form three groups.

    Item 0 is the head, 1 and 2 the middle, the known rest the tail. The last is unknown.
    """
    truth = sparse.csr_matrix(
        [
            [1, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 1, 0],
            [1, 1, 0, 0, 0, 0, 0],
            [0, 0, 0, 1, 0, 0, 1],
            [0, 0, 1, 0, 0, 0, 0],
            [0, 0, 0, 0, 1, 0, 0],
        ]
    )
    rankings = [[0, 1], [0, 1], [1, 2], [0, 3], [2, 1], [0, 1]]
    counts = TrainingCounts(np.array([9, 8, 5, 6, 1, 2]), np.array([6, 3, 3, 2, 2, 1]), 12)
    found = figures(breakdown(rankings, truth, counts, metrics=["recall", "hit"]))
    assert found["all", "recall"] == pytest.approx((1 + 0 + 0.5 + 0.5 + 1 + 0) / 6)
    assert found["few", "hit"] == 0.5
    assert found["some", "recall"] == 0.5
    assert found["many", "recall"] == 0.5
    assert found["head", "recall"] == 0.5  # user 0 finds it, user 2 does not
    assert found["middle", "recall"] == 1.0
    assert found["tail", "recall"] == pytest.approx(1 / 3)
    assert found["all", "coverage"] == 4 / 6
    per_item = -np.log2(np.array([6, 3, 3, 2, 2, 1]) / 12)
    assert found["all", "novelty"] == pytest.approx(np.mean([per_item[ranking].mean() for ranking in rankings]))


def test_empty_groups_have_no_figures() -> None:
    """Two users cannot fill three groups, and no item of the tail is chosen."""
    truth = sparse.csr_matrix([[1, 0, 0], [1, 0, 0]])
    counts = TrainingCounts(np.array([1, 1]), np.array([2, 1, 1]), 2)
    parts = {score.part for score in breakdown([[0], []], truth, counts)}
    assert parts == {"all", "few", "some", "head"}
