"""One trial in a worker, whose outcome has every result and error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from svc.training.judging.recency import Fitted
from svc.training.search import screening
from svc.training.search.processes.trial_task import Stop, TrialPruned, TrialTask, run_trial

FITTED = Fitted({"ndcg": 0.5}, 3)


class Objective:
    """Reports `course`, then raises or returns `end`."""

    def __init__(self, course: dict[int, float], end: Exception | Fitted = FITTED) -> None:
        self.course = course
        self.end = end

    def __call__(
        self, algorithm: str, params: Any, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        for epoch, score in self.course.items():
            report(epoch, score)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def task(**more: Any) -> TrialTask:
    return TrialTask(number=1, algorithm="A", params={}, **more)


def test_a_complete_trial_has_its_result_and_its_curve() -> None:
    """It has its duration too."""
    outcome = run_trial(Objective({1: 0.1, 2: 0.3}), task(), lambda: None)
    assert (outcome.state, outcome.fitted, outcome.error, outcome.curve) == ("complete", FITTED, "", {1: 0.1, 2: 0.3})
    assert outcome.seconds >= 0


@pytest.mark.parametrize("end", [TrialPruned("too hopeless"), Stop()])
def test_parameters_that_cannot_be_trained_are_pruned(end: Exception) -> None:
    """The outcome has no error."""
    outcome = run_trial(Objective({1: 0.1}, end), task(), lambda: None)
    assert (outcome.state, outcome.fitted, outcome.error) == ("pruned", None, "")


def test_a_defect_fails_only_its_trial() -> None:
    """Its outcome has the type and text of the error."""
    outcome = run_trial(Objective({}, ValueError("no such shape")), task(), lambda: None)
    assert (outcome.state, outcome.error) == ("failed", "ValueError: no such shape")


def test_a_trial_that_is_worse_than_earlier_ones_is_pruned_between_epochs() -> None:
    """They are those known when it was suggested. A screening score is compared with screening scores."""
    complete_curves = tuple({1: 0.5, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5} for _ in range(5))
    outcome = run_trial(Objective(dict.fromkeys(range(1, 6), 0.1)), task(complete_curves=complete_curves), lambda: None)
    assert outcome.state == "pruned"
    assert len(outcome.curve) < 5
    screened = run_trial(
        Objective({screening.SCREENING_STEP: 0.1, 1: 0.9}), task(screenings=(0.4, 0.5, 0.6, 0.7, 0.8)), lambda: None
    )
    assert (screened.state, screened.curve) == ("pruned", {screening.SCREENING_STEP: 0.1})


def test_a_trial_over_its_time_limit_ends_at_the_next_report() -> None:
    """`check` raises the exception that ends it."""

    def check() -> None:
        raise Stop

    assert run_trial(Objective({1: 0.9}), task(), check).state == "pruned"
