"""The score of a trained model at its best recency."""

from __future__ import annotations

import pytest

from svc.training.judging.evaluator import Evaluators, Ranker, Rankings, Rows
from svc.training.judging.judge import judge
from svc.training.judging.recency import RecencySearch
from tests.training.judging.test_recency import N_USERS, evaluation, finding


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({0.0: 50, 0.5: 90}, (0.5, 0.45)),
        ({0.0: 50, 0.5: 53}, (0.0, 0.25)),
        ({0.0: 87, 0.5: 90}, (0.0, 0.435)),
        ({0.5: 10}, (0.5, 0.05)),
    ],
)
def test_the_score_is_that_of_the_best_recency(found: dict[float, int], expected: tuple[float, float]) -> None:
    """A gain within chance is rejected."""
    search = RecencySearch(tuple(found), lambda value: finding(found[value]))
    fitted = judge(search, Evaluators.of(evaluation(), "hit", 1), lambda: None, lambda _: None)
    assert (fitted.recency, fitted.metrics["hit"]) == expected


def test_recencies_are_compared_on_the_sample_and_the_best_is_scored_on_all() -> None:
    """A few of the sample find the best value, which all of the sample confirm. Others are ranked only at the best."""
    full = evaluation()
    evaluators = Evaluators(full, full.sample(N_USERS // 2, 1), full.sample(N_USERS // 10, 1), "hit")
    n_rows: dict[float, int] = {0.0: 0, 0.5: 0}
    reported: list[float] = []

    def at(value: float) -> Ranker:
        def rank(rows: Rows, size: int) -> Rankings:
            n_rows[value] += len(rows)
            return finding(170 if value else 20)(rows, size)

        return rank

    fitted = judge(RecencySearch((0.0, 0.5), at), evaluators, lambda: None, reported.append)
    assert (fitted.recency, fitted.metrics["hit"]) == (0.5, 170 / N_USERS)
    assert n_rows == {0.0: N_USERS // 10 + N_USERS // 2, 0.5: N_USERS // 10 + N_USERS}
    assert reported == [evaluators.sample.by_user(evaluators.sample.rankings(finding(170)), "hit").mean()]
