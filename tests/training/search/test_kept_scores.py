"""Scores of users that a search keeps in memory, within a limit."""

from __future__ import annotations

import numpy as np

from svc.training.search.kept_scores import KeptScores


def test_the_worst_trials_lose_their_scores_first() -> None:
    """The worst trials are the least likely to win by chance. The best trial of each algorithm keeps its scores."""
    kept = KeptScores(most_bytes=3 * 80)
    for number, (algorithm, score) in enumerate([("a", 0.3), ("a", 0.5), ("b", 0.1), ("a", 0.4), ("a", 0.2)]):
        kept.keep(number, algorithm, score, np.full(10, score))
    assert sorted(kept.by_user) == [1, 2, 3]
    assert sum(scores.nbytes for scores in kept.by_user.values()) <= kept.most_bytes


def test_the_scores_of_the_best_trial_of_each_algorithm_stay() -> None:
    """The scores of best trials may exceed the limit."""
    kept = KeptScores(most_bytes=0)
    for number, algorithm in enumerate("aab"):
        kept.keep(number, algorithm, 0.5 + number, np.zeros(10))
    assert sorted(kept.by_user) == [1, 2]
