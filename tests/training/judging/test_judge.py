"""The recency of a trained model that all validation users confirm."""

from __future__ import annotations

import pytest

from svc.training.judging.evaluator import Rankings, Rows
from svc.training.judging.judge import Evaluators, judge
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
def test_a_recency_that_is_no_gain_for_all_users_is_rejected(
    found: dict[float, int], expected: tuple[float, float]
) -> None:
    """A gain on the sample alone is not enough."""
    search = RecencySearch(tuple(found), lambda value: finding(found[value]))
    fitted = judge(search, Evaluators.of(evaluation(), "hit", 1), lambda: None, lambda _: None)
    assert (fitted.recency, fitted.metrics["hit"]) == expected


@pytest.mark.parametrize(("gain", "judged"), [(150, {N_USERS // 2}), (16, {N_USERS // 2, N_USERS})])
def test_a_clear_gain_on_the_screening_users_needs_no_confirmation_on_all(gain: int, judged: set[int]) -> None:
    """Otherwise the lowest recency is evaluated on all users too. In both cases the best recency is used."""
    full = evaluation()
    evaluators = Evaluators(full, full.sample(N_USERS // 2, 1), full.sample(N_USERS // 2, 1), "hit")
    n_rows: list[int] = []

    def lowest(rows: Rows, size: int) -> Rankings:
        n_rows.append(len(rows))
        return finding(20)(rows, size)

    search = RecencySearch((0.0, 0.5), lambda value: finding(20 + gain) if value else lowest)
    fitted = judge(search, evaluators, lambda: None, lambda _: None)
    assert (fitted.recency, fitted.metrics["hit"]) == (0.5, (20 + gain) / N_USERS)
    assert set(n_rows) == judged
