"""The budget of trials: its shares for the algorithms, and its use by all processes of a search."""

from __future__ import annotations

import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.search import budget
from svc.training.search.budget import TrialPlan, plan_trials


def trial(number: int, state: TrialState, **attrs: object) -> FrozenTrial:
    found = create_trial(
        state=state,
        value=1.0 if state is TrialState.COMPLETE else None,
        user_attrs={f"svc:{name}": value for name, value in attrs.items()},
    )
    found.number = number
    return found


def test_the_budget_is_divided_evenly_and_untuned_algorithms_get_one_trial() -> None:
    """The other algorithms share the trials that TopPop does not need. The first of them gets the remainder."""
    plan = plan_trials(["A", "Pop", "B", "C"], 12, own={}, n_parameters={"Pop": 0})
    assert plan.shares == {"A": 4, "Pop": 1, "B": 4, "C": 3}
    assert plan.total == 12


def test_an_algorithm_with_one_number_to_tune_gets_at_most_five_trials() -> None:
    """The limit does not apply to a single algorithm, or to one whose number of trials the recipe sets."""
    plan = plan_trials(["A", "Line", "B"], 30, own={}, n_parameters={}, one_number={"Line"})
    assert plan.shares == {"A": 13, "Line": 5, "B": 12}
    assert plan_trials(["A", "Line", "B"], 12, own={}, n_parameters={}, one_number={"Line"}).shares["Line"] == 4
    assert plan_trials(["Line"], 30, own={}, n_parameters={}, one_number={"Line"}).shares == {"Line": 30}
    assert plan_trials(["A", "Line"], 30, own={"Line": 9}, n_parameters={}, one_number={"Line"}).shares["Line"] == 9


def test_per_algorithm_trials_come_first_and_zero_drops_an_algorithm() -> None:
    """The other algorithms divide the rest."""
    assert plan_trials(["A", "B", "C"], 10, own={"A": 7, "C": 0}, n_parameters={}).shares == {"A": 7, "B": 3}


def test_of_more_algorithms_than_trials_the_last_get_none() -> None:
    """The search never exceeds the budget."""
    assert plan_trials(["A", "B", "C"], 2, own={}, n_parameters={}).shares == {"A": 1, "B": 1}


def test_algorithms_take_turns() -> None:
    """Trials alternate, so that a search that ends early has tried each algorithm."""
    plan = TrialPlan({"A": 2, "B": 3})
    assert [plan.slot(number) for number in range(6)] == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("B", 2), None]


def test_an_algorithm_of_more_parameters_has_more_turns() -> None:
    """After one trial each, algorithms take turns by their numbers of parameters. The shares do not change."""
    plan = TrialPlan({"A": 3, "B": 5, "Pop": 1}, {"A": 1, "B": 2, "Pop": 0})
    found = [plan.slot(number) for number in range(plan.total)]
    assert [slot[0] for slot in found if slot] == ["A", "B", "Pop", "B", "A", "B", "B", "A", "B"]
    assert [slot[1] for slot in found if slot and slot[0] == "B"] == [0, 1, 2, 3, 4]


def test_lost_trials_do_not_use_the_budget() -> None:
    """A failed trial counts only if its training was tried."""
    trials = [
        trial(0, TrialState.COMPLETE, algorithm="A"),
        trial(1, TrialState.FAIL, algorithm="B"),
        trial(2, TrialState.FAIL, algorithm="B", spent="ValueError"),
        trial(3, TrialState.RUNNING, algorithm="A"),
    ]
    assert budget.n_used(trials) == 3
    assert budget.n_finished(trials) == 2
    assert budget.is_within(trials, 3, 3)
    assert not budget.is_within(trials, 3, 2)


def test_a_replaced_trial_goes_to_the_algorithm_with_most_remaining() -> None:
    """The algorithm that lacks most of its share gets the trial that replaces a lost one."""
    plan = TrialPlan({"A": 1, "B": 2})
    assert plan.most_remaining([trial(0, TrialState.COMPLETE, algorithm="A")]) == "B"


@pytest.mark.parametrize("n_trials", [1, 7, 40])
def test_the_shares_of_every_plan_sum_to_the_budget(n_trials: int) -> None:
    assert plan_trials(["A", "B", "C", "D", "E", "Pop"], n_trials, own={}, n_parameters={"Pop": 0}).total == n_trials


def test_an_algorithm_that_is_clearly_behind_is_eliminated_after_a_fair_part_of_its_trials() -> None:
    """A few bad trials are not enough. Algorithms with a close score or their own number of trials stay."""
    plan = plan_trials(("A", "B", "C", "D"), 40, own={"D": 10}, n_parameters=dict.fromkeys("ABCD", 99))
    scores = {"A": [0.1, 0.2, 0.5], "B": [0.1, 0.1], "C": [0.1, 0.1, 0.45], "D": [0.1] * 9}

    def behind() -> frozenset[str]:
        trials = [
            create_trial(value=score, user_attrs={budget.ALGORITHM: name}) for name in scores for score in scores[name]
        ]
        return plan.find_eliminated(trials, scores)

    assert behind() == frozenset()
    scores["B"].append(0.1)
    assert behind() == {"B"}
    assert plan.find_eliminated([], scores) == frozenset()


@pytest.mark.parametrize("n_parameters", [1, 2, 4])
def test_a_stalled_algorithm_below_the_best_is_eliminated(n_parameters: int) -> None:
    """An algorithm has stalled after one trial more than it has parameters, pruned trials included.

    A gain or a score close to the best keeps the algorithm.
    """
    plan = plan_trials(("A", "B"), 12, own={}, n_parameters=dict.fromkeys("AB", n_parameters))

    def is_eliminated(first: float, *later: float | None) -> bool:
        scored = [("A", 0.5)] * 4 + [("B", score) for score in [*[first] * 3, *later]]
        trials = [
            create_trial(
                state=TrialState.PRUNED if score is None else TrialState.COMPLETE,
                value=score,
                user_attrs={budget.ALGORITHM: name},
            )
            for name, score in scored
        ]
        for number, one in enumerate(trials):
            one.number = number
        return "B" in plan.find_eliminated(trials[::-1], "AB")

    stalled = [None, 0.1, 0.43, None, 0.431][: n_parameters + 1]
    assert not is_eliminated(0.43, 0.45, *stalled[1:])
    assert is_eliminated(0.43, 0.45, *stalled)
    assert not is_eliminated(0.43, *stalled[:-1], 0.44)
    assert not is_eliminated(0.48, *stalled)
    assert is_eliminated(0.0)


def test_the_best_algorithm_that_a_blend_needs_keeps_its_trials() -> None:
    """Its score does not matter. Worse algorithms of the same kind are eliminated."""
    plan = plan_trials(("A", "F", "G"), 9, own={}, n_parameters={}, needed=("F", "G", "absent"))
    scored = [("A", 0.5)] * 3 + [("F", 0.1)] * 3 + [("G", 0.2)] * 3
    trials = [
        create_trial(state=TrialState.COMPLETE, value=score, user_attrs={budget.ALGORITHM: name})
        for name, score in scored
    ]
    for number, one in enumerate(trials):
        one.number = number
    assert plan.find_eliminated(trials, "AFG") == {"F"}
