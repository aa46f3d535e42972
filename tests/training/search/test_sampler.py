"""The algorithm and the parameters of a trial."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.fitting.algorithms.registry import Space
from svc.training.search.budget import ALGORITHM, TrialPlan
from svc.training.search.sampler import AlgorithmSampler


def test_a_trial_beyond_the_plan_keeps_its_algorithm_while_others_finish() -> None:
    spaces = {
        name: Space({"top_k": IntDistribution(1, 100)}) for name in ("CosineKNNRecommender", "RP3betaRecommender")
    }
    sampler = AlgorithmSampler(TrialPlan({"CosineKNNRecommender": 1, "RP3betaRecommender": 1}), spaces, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    first, second = study.ask(), study.ask()
    first.set_user_attr(ALGORITHM, "CosineKNNRecommender")
    second.set_user_attr(ALGORITHM, "RP3betaRecommender")
    study.tell(first, state=TrialState.FAIL)  # as if its process had died: CosineKNN lacks one
    third = study.ask()
    assert sampler.slot(study, third.number)[0] == "CosineKNNRecommender"
    # Another process fills that gap, and RP3beta loses its trial.
    study.add_trial(create_trial(state=TrialState.RUNNING, user_attrs={ALGORITHM: "CosineKNNRecommender"}))
    study.tell(second, state=TrialState.FAIL)
    assert sampler.slot(study, third.number)[0] == "CosineKNNRecommender"
    assert 1 <= third.suggest_int("CosineKNNRecommender.top_k", 1, 100) <= 100


def size_after(
    *scored: tuple[int, float],
    seconds: float = 1.0,
    most_seconds: float | None = None,
    is_better: Callable[[int, int], bool] = operator.ne,
) -> int:
    """Return the largest of 40 suggested sizes after trials with these sizes and scores."""
    distributions: dict[str, BaseDistribution] = {
        "size": IntDistribution(4, 1024, log=True),
        "reg": FloatDistribution(0.0, 1.0),
    }
    space = Space(distributions, grows=frozenset({"size"}))
    plan = TrialPlan({"IALSRecommender": 100})
    found = []
    for seed in range(40):
        sampler = AlgorithmSampler(
            plan, {"IALSRecommender": space}, seed, most_seconds=most_seconds, is_better=is_better
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for size, score in scored:
            study.add_trial(complete(size, score, distributions, seconds))
        trial = study.ask()
        trial.suggest_float("IALSRecommender.reg", 0.0, 1.0)
        found.append(trial.suggest_int("IALSRecommender.size", 4, 1024, log=True))
    return max(found)


def complete(size: int, score: float, distributions: dict[str, BaseDistribution], seconds: float) -> FrozenTrial:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    trial = create_trial(
        value=score,
        params={"IALSRecommender.size": size, "IALSRecommender.reg": 0.5},
        distributions={f"IALSRecommender.{name}": distribution for name, distribution in distributions.items()},
        user_attrs={ALGORITHM: "IALSRecommender"},
    )
    trial.datetime_start, trial.datetime_complete = begun, begun + timedelta(seconds=seconds)
    return trial


def test_sizes_grow_while_larger_ones_score_better() -> None:
    """The range ends at twice the size of the best trial. It never shrinks below a tried size or the initial range."""
    assert size_after((64, 0.2)) <= 128
    assert 128 < size_after((64, 0.1), (128, 0.2)) <= 256
    assert 128 < size_after((64, 0.3), (256, 0.2)) <= 256
    assert 512 < size_after((1000, 0.3), (256, 0.2)) <= 1024


def test_sizes_do_not_grow_for_a_gain_that_may_be_chance() -> None:
    """The range ends at twice the smallest size that is no worse than the best."""
    trials = (100, 0.3), (160, 0.2), (200, 0.31)
    assert 256 < size_after(*trials) <= 400
    assert size_after(*trials, is_better=lambda first, second: {first, second} == {1, 2}) <= 200


def test_sizes_do_not_grow_beyond_the_time_limit_of_a_trial() -> None:
    """Twice the size takes up to four times as long."""
    assert size_after((128, 0.2), seconds=30, most_seconds=60) <= 128
    assert size_after((128, 0.2), seconds=10, most_seconds=60) > 128


def test_the_first_trials_have_the_guesses_in_turn() -> None:
    space = Space({"size": IntDistribution(4, 1024)}, guesses=({"size": 7}, {"size": 9}))
    sampler = AlgorithmSampler(TrialPlan({"IALSRecommender": 5}), {"IALSRecommender": space}, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    found = [study.ask().suggest_int("IALSRecommender.size", 4, 1024) for _ in range(2)]
    assert found == [7, 9]


def test_an_algorithm_without_other_choices_inherits_no_trials() -> None:
    """TopPop with two half-lives has two useful trials, with any lead."""
    spaces = {
        "TopPopRecommender": Space({"half_life": CategoricalDistribution(("7d", "none"))}),
        "CosineKNNRecommender": Space({"top_k": IntDistribution(1, 100)}),
        "RP3betaRecommender": Space({"top_k": IntDistribution(1, 100)}),
    }
    plan = TrialPlan({"TopPopRecommender": 3, "CosineKNNRecommender": 9, "RP3betaRecommender": 9})
    sampler = AlgorithmSampler(plan, spaces, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for score, name in ((0.9, "TopPopRecommender"), (0.1, "CosineKNNRecommender"), (0.8, "RP3betaRecommender")):
        for gain in (0.0, 0.01, 0.02):
            study.add_trial(create_trial(value=score + gain, user_attrs={ALGORITHM: name}))
    names = [sampler.slot(study, study.ask().number)[0] for _ in range(8)]
    assert set(names) == {"RP3betaRecommender"}


def test_after_the_guesses_two_of_three_trials_change_one_parameter_of_the_best() -> None:
    """This holds with any results of other trials. The third is suggested by TPE."""
    space = Space(
        {
            "top_k": IntDistribution(1, 1000, log=True),
            "beta": FloatDistribution(0, 1),
            "of": CategoricalDistribution("ab"),
        },
        guesses=({"top_k": 50, "beta": 0.1, "of": "a"}, {"top_k": 70, "beta": 0.5, "of": "b"}),
    )
    name = "RP3betaRecommender"
    sampler = AlgorithmSampler(TrialPlan({name: 99}), {name: space}, seed=1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    changed = []
    for number in range(62):
        trial = study.ask()
        for parameter, distribution in sampler.space(name).items():
            trial._suggest(parameter, distribution)
        trial.set_user_attr(ALGORITHM, name)
        best = study.best_trial.params if number else {}
        changed.append(sum(best.get(parameter) != value for parameter, value in trial.params.items()))
        study.tell(trial, 0.9 if number == 1 else 0.1)
    steps = [count for place, count in enumerate(changed[2:]) if place % 3 < 2]
    assert set(steps) == {1}
    assert max(changed[4::3]) == 3


@pytest.mark.parametrize("peak", [0.02, 1.0, 8.0, 40.0, 900.0])
def test_a_single_parameter_is_near_its_best_after_five_trials(peak: float) -> None:
    """The best value may be far from the guess."""
    name, space = "DenseSLIMRecommender", Space({"reg": FloatDistribution(0.01, 1000, log=True)}, ({"reg": 3.0},))
    distances = []
    for seed in range(25):
        sampler = AlgorithmSampler(TrialPlan({name: 5}), {name: space}, seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for _ in range(5):
            trial = study.ask()
            trial.set_user_attr(ALGORITHM, name)
            reg = trial.suggest_float(f"{name}.reg", 0.01, 1000, log=True)
            study.tell(trial, 5.0 - abs(math.log(reg / peak)))
        distances.append(abs(math.log(study.best_params[f"{name}.reg"] / peak)) / math.log(1000 / 0.01))
    assert sum(distances) / len(distances) < 0.04
