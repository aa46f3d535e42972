"""Rankings by scores, compared with a full sort."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from svc.training.judging.score_ranker import ScoreRanker


@pytest.mark.parametrize("cutoff", [1, 7, 60])
@pytest.mark.parametrize("levels", [1, 2, 5, 40])
@pytest.mark.parametrize("n_items", [2, 60, 513, 3000])
def test_rankings_are_those_of_a_whole_sort_by_score_and_then_by_column(cutoff: int, levels: int, n_items: int) -> None:
    """This holds with ties within the page and at its end, and with any seen items."""
    rng = np.random.default_rng([cutoff, levels, n_items])
    scores = rng.integers(0, levels, (12, n_items)) / 4.0
    seen = sparse.csr_matrix((rng.random((12, n_items)) < 0.3).astype(np.float32))
    users = np.array([0, 3, 4, 11])
    for user, ranking in zip(users.tolist(), ScoreRanker(lambda rows: scores[rows], seen)(users, cutoff), strict=True):
        best_first = np.argsort(-scores[user], kind="stable")
        assert ranking == best_first[~np.isin(best_first, seen[user].indices)][:cutoff].tolist()
