"""Metrics equal irspack's."""

from __future__ import annotations

import numpy as np
import pytest
from irspack.evaluation._core_evaluator import evaluate_list_vs_list
from scipy import sparse

from svc.training.judging.metrics import METRICS, PER_USER, list_metrics, user_scores


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
