"""One of several equal trials is trained, and the others copy its score."""

from __future__ import annotations

import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.search import budget
from svc.training.search.trials import find_source

PARAMS = {"size": 8}


def trial(number: int, state: TrialState) -> FrozenTrial:
    found = create_trial(
        state=state,
        value=0.5 if state is TrialState.COMPLETE else None,
        params={"IALS.size": 8},
        distributions={"IALS.size": IntDistribution(1, 9)},
        user_attrs={budget.ALGORITHM: "IALS"},
    )
    found.number = number
    return found


@pytest.mark.parametrize(
    ("state", "own", "expected"),
    [
        (TrialState.COMPLETE, (), 0),
        (TrialState.PRUNED, (), 0),
        (TrialState.RUNNING, (0,), 0),
        (TrialState.RUNNING, (), 1),
        (TrialState.FAIL, (), 1),
    ],
)
def test_the_source_is_a_finished_or_own_equal_trial(state: TrialState, own: tuple[int, ...], expected: int) -> None:
    """Running or lost trials of other processes are no sources."""
    assert find_source([trial(0, state)], 1, "IALS", PARAMS, own) == expected


def test_a_trial_with_other_parameters_or_of_another_algorithm_is_no_source() -> None:
    equal = [trial(0, TrialState.COMPLETE)]
    assert find_source(equal, 1, "IALS", {"size": 7}, ()) == 1
    assert find_source(equal, 1, "SLIM", PARAMS, ()) == 1
