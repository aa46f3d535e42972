"""What is known of equal trials: whichever way processes take turns, one of them trains."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.search import budget
from svc.training.search.trials import SOURCE, find_source

PARAMS = {"size": 8}
ATTRIBUTES = {budget.ALGORITHM: "IALS"}


class Process:
    """One process with one trial. Each `step` is one access to the study, so that any order of them can be tried."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = TrialState.RUNNING
        self.source: int | None = None
        self.written = self.announced = self.trained = False

    def row(self) -> FrozenTrial:
        attributes: dict[str, Any] = ATTRIBUTES | ({SOURCE: self.source} if self.announced else {})
        distributions = {"IALS.size": IntDistribution(1, 9)} if self.written else {}
        params = {"IALS.size": 8} if self.written else {}
        value = 0.5 if self.state is TrialState.COMPLETE else None
        trial = create_trial(
            state=self.state, value=value, params=params, distributions=distributions, user_attrs=attributes
        )
        trial.number = self.number
        return trial

    def step(self, processes: list[Process]) -> None:
        if not self.written:
            self.written = True
        elif self.source is None:
            self.source = find_source([p.row() for p in processes], self.number, "IALS", PARAMS)
        elif not self.announced:
            self.announced = True
        elif self.source == self.number:
            self.trained, self.state = True, TrialState.COMPLETE
        elif next(p for p in processes if p.number == self.source).state is TrialState.COMPLETE:
            self.state = TrialState.COMPLETE


@given(st.permutations(range(4)), st.lists(st.integers(0, 3), max_size=40))
@settings(max_examples=400)
def test_of_equal_trials_exactly_one_is_trained_in_whatever_order_processes_act(
    numbers: list[int], turns: list[int]
) -> None:
    processes = [Process(number) for number in numbers]
    for turn in [*turns, *list(range(4)) * 20]:
        if processes[turn].state is TrialState.RUNNING:
            processes[turn].step(processes)
    assert [p.state for p in processes] == [TrialState.COMPLETE] * 4
    assert sum(p.trained for p in processes) == 1


def test_a_trial_with_other_parameters_or_of_another_algorithm_is_no_source() -> None:
    other = Process(0)
    other.written = True
    assert find_source([other.row()], 1, "IALS", {"size": 7}) == 1
    assert find_source([other.row()], 1, "SLIM", PARAMS) == 1


def test_a_lost_trial_is_no_source() -> None:
    lost = Process(0)
    lost.written, lost.state = True, TrialState.FAIL
    assert find_source([lost.row()], 1, "IALS", PARAMS) == 1
