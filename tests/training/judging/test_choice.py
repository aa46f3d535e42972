"""Intervals of a winner that was chosen on the same users have their nominal coverage.

Scores of single users are simulated, for equally good trials and for trials of different worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.training.judging.choice import Choice
from svc.training.judging.intervals import interval, lead, paired_change

N_TRIALS, N_ALGORITHMS, N_USERS, N_SEARCHES = 40, 6, 150, 120
TRUTH = 0.5
FEW = 500
"""Resamplings, so that a test takes seconds."""


@pytest.fixture(autouse=True)
def few_resamplings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fewer resamplings, which suffice for quantiles of 1%."""
    monkeypatch.setattr("svc.training.judging.intervals.RESAMPLINGS", FEW)


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """Simulated search: forty trials of six algorithms, best first, and the `worth` of each.

    `rival` has the worth TRUTH and is not among the trials. `alike` is the share of a score that all trials have in
    common.
    """

    choice: Choice
    worth: NDArray[np.float64]
    rival: NDArray[np.float64]

    @classmethod
    def of(cls, rng: np.random.Generator, worth: NDArray[np.float64], alike: float) -> Searched:
        common = rng.normal(size=(N_USERS, 1)) * np.sqrt(alike)
        scores = np.append(worth, TRUTH) + common + rng.normal(size=(N_USERS, N_TRIALS + 1)) * np.sqrt(1.0 - alike)
        order = np.argsort(-scores[:, :-1].mean(axis=0))
        names = [f"algorithm {place % N_ALGORITHMS}" for place in order]
        return cls(Choice(scores[:, order], names, resamplings=FEW), worth[order], scores[:, -1])


def searches(alike: float, spread: float = 0.0) -> Iterator[tuple[int, Searched]]:
    for seed in range(N_SEARCHES):
        rng = np.random.default_rng([seed, 31])
        yield seed, Searched.of(rng, TRUTH + spread * rng.normal(size=N_TRIALS), alike)


@pytest.mark.parametrize(("alike", "spread"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_the_interval_of_a_winner_holds_its_worth(alike: float, spread: float) -> None:
    """At least 93% of the intervals hold it. Intervals without the correction for the choice lie too high."""
    held = forgetful = 0
    for seed, found in searches(alike, spread):
        scores, truth = found.choice.scores[:, 0], found.worth[0]
        low, high = interval(scores, seed=seed, choice=found.choice)
        held += low <= truth <= high
        low, high = interval(scores, seed=seed)
        forgetful += low <= truth <= high
    assert held / N_SEARCHES >= 0.93
    assert forgetful < held
    assert alike or forgetful / N_SEARCHES < 0.6, "the choice among equal trials is what this test is about"


@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_at_most_5_percent_of_leads_among_equal_trials_are_more_than_chance(alike: float) -> None:
    """All trials have the same worth."""
    called = sum(lead(found.choice, seed=seed).low > 0.0 for seed, found in searches(alike))
    assert called / N_SEARCHES <= 0.05


def test_a_lead_of_one_trial_over_one_other_is_that_of_the_pair() -> None:
    """With two trials, only the order of the pair was chosen."""
    rng = np.random.default_rng(1)
    scores = rng.random((400, 2))
    scores[:, 0] += 0.05
    pair = Choice(scores, ["one", "other"])
    assert lead(pair, seed=1).value == pytest.approx(float((scores[:, 0] - scores[:, 1]).mean()))
    found, plain = lead(pair, seed=1), paired_change(scores[:, 0], scores[:, 1], seed=1)
    assert found.high - found.low == pytest.approx(plain.high - plain.low, rel=0.05)


def test_a_clear_lead_is_found() -> None:
    """Trials far behind the winner do not widen the interval."""
    worth = np.full(N_TRIALS, 0.0)
    worth[0] = 3.0
    choice = Searched.of(np.random.default_rng(5), worth, alike=0.5).choice
    assert lead(choice, seed=1).low > 0.0
    assert choice.stretch(seed=1, confidence=0.95) == pytest.approx(1.0, abs=0.1)


def test_a_model_below_the_bound_is_promoted_in_at_most_5_percent_of_trainings() -> None:
    """A model just below the bound is promoted in 2.5% of the trainings, not ten times as often."""
    promoted = forgetful = 0
    for seed, found in searches(alike=0.5):
        first = found.choice.scores[:, 0]
        promoted += paired_change(first, found.rival, seed=seed, relative=True, choice=found.choice).low > 0.0
        forgetful += paired_change(first, found.rival, seed=seed, relative=True).low > 0.0
    assert promoted / N_SEARCHES <= 0.05
    assert forgetful / N_SEARCHES > 0.25


def test_a_model_that_equals_its_rival_stays_equal() -> None:
    """With the same recipe and data, the difference is zero for each user, and the correction keeps it zero."""
    choice = Searched.of(np.random.default_rng(2), np.full(N_TRIALS, TRUTH), alike=0.5).choice
    same = choice.scores[:, 0]
    change = paired_change(same, same.copy(), seed=1, relative=True, choice=choice)
    assert (change.low, change.value, change.high) == (0.0, 0.0, 0.0)


def test_trials_of_other_processes_count_as_independent_ones() -> None:
    """Missing per-user scores never shorten an interval."""
    everything = Searched.of(np.random.default_rng(3), np.full(N_TRIALS, TRUTH), alike=0.8).choice
    everything = replace(everything, resamplings=4000)
    part = replace(everything, scores=everything.scores[:, :10], algorithms=everything.algorithms[:10])
    unknown = replace(part, n_unknown=N_TRIALS - 10)
    stretches = [choice.stretch(seed=1, confidence=0.95) for choice in (part, everything, unknown)]
    assert stretches == sorted(stretches)
    assert unknown.stretch_of_lead(seed=1, confidence=0.95) >= part.stretch_of_lead(seed=1, confidence=0.95)


def test_a_single_trial_needs_no_correction() -> None:
    """Its interval is that of a mean."""
    scores = np.random.default_rng(4).random((300, 1))
    choice = Choice(scores, ["one"])
    assert interval(scores[:, 0], seed=1, choice=choice)[0] == pytest.approx(
        interval(scores[:, 0], seed=1)[0], abs=2e-3
    )


def test_a_rival_that_scores_zero_leaves_all_figures_finite() -> None:
    """The relative change and its interval are then very large."""
    choice = Searched.of(np.random.default_rng(6), np.full(N_TRIALS, TRUTH), alike=0.5).choice
    change = paired_change(choice.scores[:, 0], np.zeros(N_USERS), seed=1, relative=True, choice=choice)
    assert np.isfinite([change.low, change.value, change.high]).all()
    few = np.zeros(N_USERS)
    few[0] = 1.0
    assert np.isfinite(paired_change(choice.scores[:, 0], few, seed=1, relative=True, choice=choice).low)


def test_the_interval_of_a_refit_holds_its_worth_as_often_as_that_of_the_search() -> None:
    """A refit is scored on the users on which its parameters were chosen, so it inherits the correction.

    The same holds for a comparison with a rival that no trial is better than.
    """
    held, proven = np.zeros(3), np.zeros(3)
    for seed, found in searches(0.5):
        scores = found.choice.scores[:, :1]
        stretch = found.choice.stretch(seed=seed, confidence=0.95)
        refitted = Choice(scores, found.choice.algorithms[:1], resamplings=FEW, carried=stretch)
        for place, choice in enumerate((found.choice, refitted, None)):
            low, high = interval(scores[:, 0], seed=seed, choice=choice)
            held[place] += low <= TRUTH <= high
            change = paired_change(scores[:, 0], found.rival, seed=seed, relative=True, choice=choice)
            proven[place] += change.low > 0
    assert held[1] == held[0] >= 0.93 * N_SEARCHES
    assert proven[1] <= 0.05 * N_SEARCHES < proven[2]
    assert held[2] < held[1] - 0.15 * N_SEARCHES
