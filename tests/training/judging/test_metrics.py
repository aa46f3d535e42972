"""Metrics, compared with irspack's, and their breakdown by groups, compared with values computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from irspack.evaluation._core_evaluator import evaluate_list_vs_list
from scipy import sparse

from svc.training.judging.metrics import METRICS, PER_USER, TrainingCounts, breakdown, list_metrics, user_scores


@pytest.mark.parametrize("longest", [0, 1, 5, 30])
def test_the_means_over_users_are_the_metrics_of_irspack(longest: int) -> None:
    """Rankings may have any length, or be empty."""
    rng = np.random.default_rng(longest)
    truth = sparse.csr_matrix((rng.random((200, 40)) < 0.1).astype(np.float32))
    truth = truth[np.diff(truth.indptr) > 0]
    rankings = [rng.permutation(40)[: rng.integers(0, longest + 1)].tolist() for _ in range(truth.shape[0])]
    truths = [row.indices.tolist() for row in truth]
    expected = evaluate_list_vs_list(rankings, truths, 40, 1).as_dict()
    found = user_scores(rankings, truth)
    assert set(found) == set(PER_USER)
    for name, scores in found.items():
        assert scores.mean() == pytest.approx(expected[name], abs=1e-12), name
    of_lists = list_metrics(rankings, truth)
    assert [*found, *of_lists] == list(METRICS)
    assert of_lists.pop("catalog_coverage") == of_lists["appeared_item"] / 40
    for name, value in of_lists.items():
        assert value == pytest.approx(expected[name] if longest else 0.0, abs=1e-12), name


def figures(rows: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    return {(row["part"], row["metric"]): row["value"] for row in rows}


def test_figures_of_a_group_are_means_over_its_users_or_items() -> None:
    """Six users form three groups.

    Item 0 is the head, items 1 and 2 the middle, the other known items the tail. The last item is unknown.
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
    """Two users cannot fill three groups, and nobody chose an item of the tail."""
    truth = sparse.csr_matrix([[1, 0, 0], [1, 0, 0]])
    counts = TrainingCounts(np.array([1, 1]), np.array([2, 1, 1]), 2)
    parts = {row["part"] for row in breakdown([[0], []], truth, counts)}
    assert parts == {"all", "few", "some", "head"}


def test_items_met_before_have_figures_of_their_own() -> None:
    """The shares of the chosen items add up to 1, also if a part has no item."""
    truth = sparse.csr_matrix(np.array([[1, 1, 0], [0, 0, 1]], np.float32))
    met = sparse.csr_matrix(np.array([[1, 0, 1], [0, 0, 0]], np.float32))
    counts = TrainingCounts(np.array([2, 1]), np.array([2, 1, 1]), 2, met)
    rows = [row for row in breakdown([[0, 2], [2]], truth, counts) if row["group"] == "met_before"]
    by = figures(rows)
    assert (by["yes", "hit"], by["no", "hit"]) == (1.0, 0.5)
    assert by["yes", "share"] == pytest.approx(1 / 3)
    assert by["no", "share"] == pytest.approx(2 / 3)
    assert {row["part"]: row["n_users"] for row in rows} == {"yes": 1, "no": 2}
    nothing = TrainingCounts(counts.history, counts.popularity, 2, sparse.csr_matrix(truth.shape, dtype=np.float32))
    assert figures(breakdown([[0, 2], [2]], truth, nothing))["yes", "share"] == 0.0
