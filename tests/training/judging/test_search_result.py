"""The result of a search: its best trial, its counts, and the version that was searched."""

from __future__ import annotations

from svc.training.fitting.trial import TrialRecord
from svc.training.judging.search_result import Reused, SearchResult


def trial(number: int, algorithm: str, score: float | None, *, too_slow: bool = False) -> TrialRecord:
    state = "pruned" if score is None else "complete"
    return TrialRecord(number, algorithm, {}, state, score, {}, None, 1.0, too_slow=too_slow)


TRIALS = [
    trial(0, "CosineKNNRecommender", 0.1),
    trial(1, "IALSRecommender", 0.3),
    trial(2, "IALSRecommender", None, too_slow=True),
    trial(3, "CosineKNNRecommender", 0.3),
]


def test_of_equal_scores_the_first_trial_is_the_best() -> None:
    result = SearchResult(TRIALS, 1.0, n_orphaned=0)
    assert result.best is TRIALS[1]
    assert result.best_per_algorithm == {"IALSRecommender": TRIALS[1], "CosineKNNRecommender": TRIALS[3]}


def test_trials_are_counted_by_state() -> None:
    result = SearchResult(TRIALS, 1.0, n_orphaned=0)
    assert (len(result.completed), result.count("pruned"), result.n_too_slow) == (3, 1, 1)


def test_the_header_names_the_version_that_was_searched() -> None:
    origin = Reused("0a1b2c3d", "2026-01-02T03:04:05+00:00", stretch=1.5)
    assert origin.as_fields() == {"sha8": "0a1b2c3d", "searched_at": "2026-01-02T03:04:05+00:00"}
