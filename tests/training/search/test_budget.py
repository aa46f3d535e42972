"""One budget for all processes: how it is divided and who may use it."""

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
    """What TopPop leaves goes to the others; a remainder goes to the first ones."""
    plan = plan_trials(["A", "Pop", "B", "C"], 12, own={}, n_parameters={"Pop": 0})
    assert plan.shares == {"A": 4, "Pop": 1, "B": 4, "C": 3}
    assert plan.total == 12


def test_a_single_number_has_five_trials_where_others_can_use_the_rest() -> None:
    """An algorithm that is alone, or has a number of its own, keeps it."""
    plan = plan_trials(["A", "Line", "B"], 30, own={}, n_parameters={}, one_number={"Line"})
    assert plan.shares == {"A": 13, "Line": 5, "B": 12}
    assert plan_trials(["A", "Line", "B"], 12, own={}, n_parameters={}, one_number={"Line"}).shares["Line"] == 4
    assert plan_trials(["Line"], 30, own={}, n_parameters={}, one_number={"Line"}).shares == {"Line": 30}
    assert plan_trials(["A", "Line"], 30, own={"Line": 9}, n_parameters={}, one_number={"Line"}).shares["Line"] == 9


def test_own_numbers_come_first_and_zero_drops() -> None:
    """`per_algorithm_trials` is taken as it stands; the others share the rest."""
    assert plan_trials(["A", "B", "C"], 10, own={"A": 7, "C": 0}, n_parameters={}).shares == {"A": 7, "B": 3}


def test_more_algorithms_than_trials_leaves_the_last_out() -> None:
    """The global budget is never exceeded."""
    assert plan_trials(["A", "B", "C"], 2, own={}, n_parameters={}).shares == {"A": 1, "B": 1}


def test_algorithms_take_turns() -> None:
    """A search that is cut short has tried each of them."""
    plan = TrialPlan({"A": 2, "B": 3})
    assert [plan.slot(number) for number in range(6)] == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("B", 2), None]


def test_an_algorithm_of_more_parameters_has_more_turns() -> None:
    """After one trial of each; the shares stay."""
    plan = TrialPlan({"A": 3, "B": 5, "Pop": 1}, {"A": 1, "B": 2, "Pop": 0})
    found = [plan.slot(number) for number in range(plan.total)]
    assert [slot[0] for slot in found if slot] == ["A", "B", "Pop", "B", "A", "B", "B", "A", "B"]
    assert [slot[1] for slot in found if slot and slot[0] == "B"] == [0, 1, 2, 3, 4]


def test_lost_trials_do_not_use_the_budget() -> None:
    """Of failed trials only those count that were really tried."""
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
    """After a crash the shares are filled up again."""
    plan = TrialPlan({"A": 1, "B": 2})
    assert plan.most_remaining([trial(0, TrialState.COMPLETE, algorithm="A")]) == "B"


@pytest.mark.parametrize("n_trials", [1, 7, 40])
def test_every_plan_adds_up(n_trials: int) -> None:
    """The shares of any plan sum to the budget."""
    assert plan_trials(["A", "B", "C", "D", "E", "Pop"], n_trials, own={}, n_parameters={"Pop": 0}).total == n_trials


def test_an_algorithm_that_is_clearly_behind_is_named_after_a_fair_part_of_its_trials() -> None:
    """A few bad trials prove nothing; a number of its own is kept; close ones stay in the race."""
    plan = plan_trials(("A", "B", "C", "D"), 40, own={"D": 10}, n_parameters=dict.fromkeys("ABCD", 99))
    scores = {"A": [0.1, 0.2, 0.5], "B": [0.1, 0.1], "C": [0.1, 0.1, 0.45], "D": [0.1] * 9}

    def behind() -> frozenset[str]:
        trials = [
            create_trial(value=score, user_attrs={budget.ALGORITHM: name}) for name in scores for score in scores[name]
        ]
        return plan.eliminated(trials, scores)

    assert behind() == frozenset()
    scores["B"].append(0.1)
    assert behind() == {"B"}
    assert plan.eliminated([], scores) == frozenset()


@pytest.mark.parametrize("n_parameters", [1, 2, 4])
def test_an_algorithm_below_the_best_is_eliminated_once_its_trials_bring_nothing(n_parameters: int) -> None:
    """One trial for each of its parameters and one more; pruned ones count. A gain or a close score keeps it."""
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
        return "B" in plan.eliminated(trials[::-1], "AB")

    stalled = [None, 0.1, 0.43, None, 0.431][: n_parameters + 1]
    assert not is_eliminated(0.43, 0.45, *stalled[1:])
    assert is_eliminated(0.43, 0.45, *stalled)
    assert not is_eliminated(0.43, *stalled[:-1], 0.44)
    assert not is_eliminated(0.48, *stalled)
    assert is_eliminated(0.0)


def test_the_best_algorithm_that_a_blend_needs_keeps_its_trials() -> None:
    """However far behind it is; the others of its kind do not."""
    plan = plan_trials(("A", "F", "G"), 9, own={}, n_parameters={}, needed=("F", "G", "absent"))
    scored = [("A", 0.5)] * 3 + [("F", 0.1)] * 3 + [("G", 0.2)] * 3
    trials = [
        create_trial(state=TrialState.COMPLETE, value=score, user_attrs={budget.ALGORITHM: name})
        for name, score in scored
    ]
    for number, one in enumerate(trials):
        one.number = number
    assert plan.eliminated(trials, "AFG") == {"F"}
