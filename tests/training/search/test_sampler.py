"""The sampler of a search, which chooses the algorithm and the parameters of each trial."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from svc.training.fitting.algorithms.registry import Space
from svc.training.search.budget import ALGORITHM, TrialPlan
from svc.training.search.sampler import STEP, AlgorithmSampler, next_position


def suggest(sampler: AlgorithmSampler, trials: list[FrozenTrial]) -> FrozenTrial:
    """Return the next trial of a study that has these trials."""
    algorithm, position = sampler.choose_algorithm(len(trials), trials)
    params = sampler.suggest(len(trials), algorithm, position, trials)
    trial = create_trial(
        state=TrialState.RUNNING,
        params=params,
        distributions=sampler.space(algorithm),
        user_attrs={ALGORITHM: algorithm},
    )
    trial.number = len(trials)
    return trial


def complete(trial: FrozenTrial, score: float, seconds: float = 1.0) -> FrozenTrial:
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    trial.state, trial.value = TrialState.COMPLETE, score
    trial.datetime_start, trial.datetime_complete = begun, begun + timedelta(seconds=seconds)
    return trial


def test_a_trial_beyond_the_plan_replaces_a_lost_one() -> None:
    """The algorithm that lacks a trial gets it."""
    names = ("CosineKNNRecommender", "RP3betaRecommender")
    sampler = AlgorithmSampler(
        TrialPlan(dict.fromkeys(names, 1)), {name: Space({"top_k": IntDistribution(1, 100)}) for name in names}, seed=1
    )
    trials: list[FrozenTrial] = []
    for _ in names:
        trials.append(suggest(sampler, trials))
    trials[0].state = TrialState.FAIL  # as if its process had died
    third = suggest(sampler, trials)
    assert third.user_attrs[ALGORITHM] == "CosineKNNRecommender"
    assert 1 <= third.params["CosineKNNRecommender.top_k"] <= 100


def size_after(
    *scored: tuple[int, float],
    seconds: float = 1.0,
    most_seconds: float | None = None,
    by_user: dict[int, NDArray[np.float64]] | None = None,
) -> int:
    """Return the largest of 40 suggested sizes after trials of these sizes and scores."""
    name = "IALSRecommender"
    space = Space(
        {"size": IntDistribution(4, 1024, log=True), "reg": FloatDistribution(0.0, 1.0)}, grows=frozenset({"size"})
    )
    sizes = []
    for seed in range(40):
        sampler = AlgorithmSampler(TrialPlan({name: 100}), {name: space}, seed, most_seconds=most_seconds)
        sampler.by_user.update(by_user or {})
        trials: list[FrozenTrial] = []
        for size, score in scored:
            trial = suggest(sampler, trials)
            trial.params = {f"{name}.size": size, f"{name}.reg": 0.5}
            trials.append(complete(trial, score, seconds))
        sizes.append(suggest(sampler, trials).params[f"{name}.size"])
    return max(sizes)


def test_sizes_grow_while_larger_ones_score_better() -> None:
    """The range ends at twice the best size. It always includes the tried sizes and the initial range."""
    assert size_after((64, 0.2)) <= 128
    assert 128 < size_after((64, 0.1), (128, 0.2)) <= 256
    assert 128 < size_after((64, 0.3), (256, 0.2)) <= 256
    assert 512 < size_after((1000, 0.3), (256, 0.2)) <= 1024


def test_sizes_do_not_grow_for_a_gain_that_may_be_chance() -> None:
    """The range ends at twice the smallest size that is no worse than the best."""
    trials = (100, 0.3), (160, 0.2), (200, 0.31)
    assert 256 < size_after(*trials) <= 400
    base, rng = np.random.default_rng(3).random(400), np.random.default_rng(4)
    chance = base + 0.001 * (-1.0) ** np.arange(400)
    worse = base - 0.01 + rng.normal(0.0, 0.02, 400)
    assert size_after(*trials, by_user={0: base, 1: worse, 2: chance}) <= 200
    assert 256 < size_after(*trials, by_user={0: worse, 1: worse, 2: base}) <= 400


def test_sizes_do_not_grow_beyond_the_time_limit_of_a_trial() -> None:
    """A trial of twice the size is expected to take up to four times as long."""
    assert size_after((128, 0.2), seconds=30, most_seconds=60) <= 128
    assert size_after((128, 0.2), seconds=10, most_seconds=60) > 128


def test_the_first_trials_try_the_guesses_in_turn() -> None:
    space = Space({"size": IntDistribution(4, 1024)}, guesses=({"size": 7}, {"size": 9}))
    sampler = AlgorithmSampler(TrialPlan({"IALSRecommender": 5}), {"IALSRecommender": space}, seed=1)
    first = suggest(sampler, [])
    assert [first.params, suggest(sampler, [first]).params] == [{"IALSRecommender.size": size} for size in (7, 9)]


def test_an_algorithm_without_other_choices_inherits_no_trials() -> None:
    """TopPop has the best score, but only two different trials. The second-best algorithm inherits the trials."""
    spaces = {
        "TopPopRecommender": Space({"half_life": CategoricalDistribution(("7d", "none"))}),
        "CosineKNNRecommender": Space({"top_k": IntDistribution(1, 100)}),
        "RP3betaRecommender": Space({"top_k": IntDistribution(1, 100)}),
    }
    plan = TrialPlan({"TopPopRecommender": 3, "CosineKNNRecommender": 9, "RP3betaRecommender": 9})
    sampler = AlgorithmSampler(plan, spaces, seed=1)
    trials: list[FrozenTrial] = []
    for score, name in ((0.9, "TopPopRecommender"), (0.1, "CosineKNNRecommender"), (0.8, "RP3betaRecommender")):
        trials += [create_trial(value=score + gain, user_attrs={ALGORITHM: name}) for gain in (0.0, 0.01, 0.02)]
    for number, trial in enumerate(trials):
        trial.number = number
    chosen = {sampler.choose_algorithm(number, trials)[0] for number in range(9, 17)}
    assert chosen == {"RP3betaRecommender"}


def test_tpe_learns_from_the_scores_of_trials() -> None:
    """Its suggestions are closer to the best parameters than random ones, which are .68 away on average."""
    name, space = "RP3betaRecommender", Space({"alpha": FloatDistribution(0, 1), "beta": FloatDistribution(0, 1)})

    def distance(trial: FrozenTrial) -> float:
        return sum(abs(value - best) for value, best in zip(trial.params.values(), (0.8, 0.2), strict=True))

    samplers = [AlgorithmSampler(TrialPlan({name: 99}), {name: space}, seed) for seed in range(6)]
    trials: list[FrozenTrial] = []
    for alpha, beta in np.random.default_rng(1).random((32, 2)):  # TPE suggests every third trial
        trial = suggest(samplers[0], [])
        trial.params = dict(zip(trial.params, (alpha, beta), strict=True))
        trials.append(complete(trial, 2 - distance(trial)))
    assert np.mean([distance(suggest(sampler, trials)) for sampler in samplers]) < 0.4


def test_after_the_guesses_two_of_three_trials_change_one_parameter_of_the_best() -> None:
    """Results of other trials do not matter. TPE suggests the third trial."""
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
    trials: list[FrozenTrial] = []
    changed = []
    for number in range(62):
        trial = suggest(sampler, trials)
        best = max(trials, key=lambda trial: trial.value or 0.0).params if trials else {}
        changed.append(sum(best.get(parameter) != value for parameter, value in trial.params.items()))
        trials.append(complete(trial, 0.9 if number == 1 else 0.1))
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
        trials: list[FrozenTrial] = []
        for _ in range(5):
            trial = suggest(sampler, trials)
            trials.append(complete(trial, 5.0 - abs(math.log(trial.params[f"{name}.reg"] / peak))))
        best = max(trials, key=lambda trial: trial.value or 0.0)
        distances.append(abs(math.log(best.params[f"{name}.reg"] / peak)) / math.log(1000 / 0.01))
    assert sum(distances) / len(distances) < 0.04


def searched(score: Callable[[float], float], start: float, n_evaluations: int, *, upwards_first: bool) -> float:
    """Return the best position after this number of evaluations, the first of them at `start`."""
    scores = {start: score(start)}
    while len(scores) < n_evaluations:
        position = next_position(scores, (), upwards_first=upwards_first)
        assert 0.0 <= position <= 1.0
        assert position not in scores
        scores[position] = score(position)
    return max(scores, key=lambda position: scores[position])


@pytest.mark.parametrize("upwards_first", [False, True])
@pytest.mark.parametrize("peak", [0.0, 0.12, 0.3, 0.47, 0.66, 0.9, 1.0])
@pytest.mark.parametrize("shape", [lambda x: -(x**2), lambda x: -abs(x), lambda x: math.exp(-8 * x * x)])
def test_five_evaluations_come_near_a_peak_within_two_steps(
    shape: Callable[[float], float], peak: float, upwards_first: bool
) -> None:
    """The peak may be anywhere, also at an end of the range. Either side may be tried first."""
    start = min(1.0, max(0.0, peak + 0.25 if peak < 0.5 else peak - 0.25))
    best = searched(lambda x: shape(x - peak), start, 5, upwards_first=upwards_first)
    assert abs(best - peak) < 0.08


def test_the_peak_of_a_parabola_is_found_in_one_step() -> None:
    scores = {position: -((position - 0.43) ** 2) for position in (0.2, 0.4, 0.6)}
    assert next_position(scores, (), upwards_first=True) == pytest.approx(0.43)


def test_a_failed_position_bounds_the_search() -> None:
    """The next position is the middle of the wider side."""
    assert next_position({0.2: -math.inf, 0.5: 1.0, 0.6: 0.9}, (), upwards_first=True) == pytest.approx(0.35)


def test_running_evaluations_are_not_repeated() -> None:
    """A side with a running evaluation counts as tried."""
    assert next_position({0.5: 1.0}, (0.5 + STEP,), upwards_first=True) == pytest.approx(0.5 - STEP)


@pytest.mark.parametrize("upwards_first", [False, True])
def test_equal_scores_do_not_stop_the_search(upwards_first: bool) -> None:
    """Data without anything to learn gives equal scores."""
    searched(lambda _: 0.0, 0.5, 12, upwards_first=upwards_first)
