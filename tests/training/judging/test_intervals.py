"""Bootstrap intervals have their nominal coverage, also for a winner that was chosen on the same users.

Scores of users are simulated for trials of equal and of different true score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from svc.training.judging.intervals import (
    RESAMPLINGS,
    Change,
    Choice,
    central,
    interval,
    is_gain,
    lead,
    paired_change,
    plain_lead,
    resample,
)

N_TRIALS, N_ALGORITHMS, N_USERS, N_SEARCHES = 40, 6, 150, 120
TRUTH = 0.5
FEW = 500
"""Number of resamplings with which a test takes seconds."""


@pytest.mark.parametrize("n_users", [50, 6000])
def test_resampled_means_have_the_mean_and_the_error_of_theory(n_users: int) -> None:
    """Few users are drawn singly, many in groups. Columns vary together, because a draw takes a user in all columns."""
    scores = np.random.default_rng(n_users).random((n_users, 2))
    scores[:, 1] += scores[:, 0]
    means = resample(scores, seed=1, n=3000)
    assert means.mean(axis=0) == pytest.approx(scores.mean(axis=0), abs=0.01)
    assert means.std(axis=0) == pytest.approx(scores.std(axis=0) / np.sqrt(n_users), rel=0.06)
    assert np.corrcoef(means.T)[0, 1] == pytest.approx(np.corrcoef(scores.T)[0, 1], abs=0.06)


def test_an_interval_of_skewed_scores_reaches_further_to_the_long_side() -> None:
    """Plain quantiles of the resampled means reach less far."""
    scores = np.random.default_rng(3).random(30) ** 8
    value, means = float(scores.mean()), resample(scores[:, np.newaxis], seed=1, n=4000)[:, 0]
    low, high = central(means, value, scores - value, 0.95)
    peer = stats.bootstrap(
        (scores,), np.mean, n_resamples=0, bootstrap_result=SimpleNamespace(bootstrap_distribution=means)
    )
    assert (low, high) == pytest.approx(peer.confidence_interval, rel=1e-9)
    below, above = np.quantile(means, [0.025, 0.975])
    assert (low > below, high > above) == (True, True)
    assert high - value > value - low


@pytest.mark.parametrize("n_users", [50, 4096, 20_000])
def test_an_interval_is_as_wide_as_theory_says(n_users: int) -> None:
    """The width is 2·1.96·s/√n for many users, whether users or groups are drawn."""
    scores = np.random.default_rng(n_users).random(n_users) ** 3
    low, high = interval(scores, seed=1)
    assert low < scores.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * scores.std() / np.sqrt(n_users), rel=0.06)


def test_a_paired_interval_finds_a_difference_that_single_intervals_hide() -> None:
    """If one model is slightly better for every user, single intervals overlap. The paired one is above zero."""
    rng = np.random.default_rng(6)
    second = rng.random(500)
    first = second + 0.01 + rng.normal(0, 0.01, 500)
    assert interval(first, seed=1)[0] < interval(second, seed=1)[1]
    change = paired_change(first, second, seed=1)
    assert change.low > 0.0
    assert change.low < change.value < change.high
    alike = paired_change(second, rng.permutation(second), seed=1)
    assert alike.low <= 0.0 <= alike.high


@pytest.mark.parametrize("other", [0.5, 0.0])
def test_a_relative_change_divides_by_the_second_and_stays_finite(other: float) -> None:
    """Twice the score is a change of 1. If the second score is 0, the change is very large."""
    first, second = np.full(10, 1.0), np.full(10, other)
    change = paired_change(first, second, seed=1, relative=True)
    assert np.isfinite([change.value, change.low, change.high]).all()
    assert change.value == pytest.approx(1.0) if other else change.value > 1e100


@pytest.mark.parametrize(("n_users", "confidence", "are_enough"), [(5, 0.95, False), (6, 0.95, True), (5, 0.9, True)])
def test_a_change_over_few_users_may_be_any(n_users: int, confidence: float, are_enough: bool) -> None:
    """All users of the sample score higher, but this also happens with a worse model. A bootstrap cannot show it."""
    change = paired_change(np.full(n_users, 0.6), np.full(n_users, 0.5), seed=1, confidence=confidence, relative=True)
    assert change.value == change.high == pytest.approx(0.2)
    assert change.low == (change.value if are_enough else -1.0)


def test_the_correction_for_a_choice_does_not_lower_a_change_below_its_least() -> None:
    """No score is lower than 0, so no model scores more than 100% less than another."""
    scores = np.zeros((20, 6))
    scores[np.arange(6), np.arange(6)] = np.linspace(0.9, 0.5, 6)
    choice = Choice(scores, list("abcdef"), resamplings=FEW)
    change = paired_change(scores[:, 0], np.roll(scores[:, 0], 9), seed=1, relative=True, choice=choice)
    assert change.low == -1.0 < change.value


def test_one_user_has_an_interval_of_zero_width_and_equal_seeds_draw_the_same_users() -> None:
    """The score of a single user cannot vary, and equal scores of all users do not."""
    assert central(np.full(10, 0.5), 0.5, np.zeros(3), 0.95) == (0.5, 0.5)
    assert interval(np.array([0.25]), seed=1) == (0.25, 0.25)
    scores = np.random.default_rng(1).random((90, 2))
    assert (resample(scores, seed=5, n=40) == resample(scores, seed=5, n=40)).all()
    assert (resample(scores, seed=5, n=40) != resample(scores, seed=6, n=40)).any()


@pytest.mark.parametrize(("n_users", "least", "n"), [(20, 0.88, RESAMPLINGS), (300, 0.92, FEW)])
def test_nineteen_of_twenty_intervals_contain_the_true_mean(
    n_users: int, least: float, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most users score 0, so the mean of few users is skewed, and slightly fewer of its intervals contain it."""
    monkeypatch.setattr("svc.training.judging.intervals.RESAMPLINGS", n)
    rng = np.random.default_rng(n_users)
    held = 0
    for seed in range(200):
        scores = np.where(rng.random(n_users) < 0.15, rng.random(n_users), 0.0)
        low, high = interval(scores, seed=seed)
        held += low <= 0.15 / 2 <= high
    assert least <= held / 200 <= 0.99


@pytest.mark.parametrize(
    ("gains", "expected"), [([1.0, 1.0, 1.1], True), ([1.0, -1.0, 0.5], False), ([0.0] * 3, False)]
)
def test_a_gain_is_more_than_chance(gains: list[float], expected: bool) -> None:
    """A gain of a single user is never significant."""
    assert is_gain(np.array(gains), np.zeros(3)) is expected
    assert not is_gain(np.array([1.0]), np.array([0.0]))


@pytest.fixture
def few_resamplings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fewer resamplings, which suffice for quantiles of 1%."""
    monkeypatch.setattr("svc.training.judging.intervals.RESAMPLINGS", FEW)


@dataclass(frozen=True, slots=True, eq=False)
class Searched:
    """A simulated search: forty trials of six algorithms, best first. `worth` is the true score of each.

    `rival` has the true score TRUTH and is not among the trials. `alike` is the share of a score that all trials have
    in common.
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


@pytest.mark.usefixtures("few_resamplings")
@pytest.mark.parametrize(("alike", "spread"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.1)])
def test_the_interval_of_a_winner_contains_its_true_score(alike: float, spread: float) -> None:
    """At least 93% of the intervals contain it.

    Without the correction for the choice among trials, they lie too high.
    """
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


@pytest.mark.usefixtures("few_resamplings")
@pytest.mark.parametrize("alike", [0.0, 0.9])
def test_at_most_5_percent_of_leads_among_equal_trials_are_more_than_chance(alike: float) -> None:
    """The simulated searches have trials of equal true score."""
    called = sum(lead(found.choice, seed=seed).low > 0.0 for seed, found in searches(alike))
    assert called / N_SEARCHES <= 0.05


@pytest.mark.usefixtures("few_resamplings")
def test_a_lead_of_one_trial_over_one_other_is_that_of_the_pair() -> None:
    """The lead needs almost no correction, because only the order of the two was chosen."""
    rng = np.random.default_rng(1)
    scores = rng.random((400, 2))
    scores[:, 0] += 0.05
    pair = Choice(scores, ["one", "other"])
    assert lead(pair, seed=1).value == pytest.approx(float((scores[:, 0] - scores[:, 1]).mean()))
    found, plain = lead(pair, seed=1), paired_change(scores[:, 0], scores[:, 1], seed=1)
    assert found.high - found.low == pytest.approx(plain.high - plain.low, rel=0.05)


@pytest.mark.usefixtures("few_resamplings")
def test_a_clear_lead_is_found() -> None:
    """Trials far behind the winner do not widen the interval."""
    worth = np.full(N_TRIALS, 0.0)
    worth[0] = 3.0
    choice = Searched.of(np.random.default_rng(5), worth, alike=0.5).choice
    assert lead(choice, seed=1).low > 0.0
    assert choice.stretch(seed=1, confidence=0.95) == pytest.approx(1.0, abs=0.1)


@pytest.mark.usefixtures("few_resamplings")
def test_a_model_that_equals_its_rival_stays_equal() -> None:
    """With the same recipe and data, the difference is zero for each user. The correction keeps it zero."""
    choice = Searched.of(np.random.default_rng(2), np.full(N_TRIALS, TRUTH), alike=0.5).choice
    same = choice.scores[:, 0]
    change = paired_change(same, same.copy(), seed=1, relative=True, choice=choice)
    assert (change.low, change.value, change.high) == (0.0, 0.0, 0.0)


@pytest.mark.usefixtures("few_resamplings")
@pytest.mark.parametrize("n_users", [2, 5, 40])
def test_the_lead_of_two_equal_models_is_zero_to_zero(n_users: int) -> None:
    """This holds for few users too, where a gate demands more."""
    same = np.random.default_rng(2).random(n_users)
    assert lead(Choice(np.column_stack([same, same]), ["one", "other"]), seed=1) == Change(0.0, 0.0, 0.0)
    assert plain_lead(same, same, seed=1) == Change(0.0, 0.0, 0.0)


@pytest.mark.usefixtures("few_resamplings")
def test_no_interval_of_a_score_leaves_0_to_1() -> None:
    """The correction for the choice of a winner made intervals of low scores negative."""
    rng = np.random.default_rng(3)
    for n_users in (3, 12, 60):
        scores = (rng.random((n_users, 30)) < 0.05).astype(np.float64)
        scores[0] = 1.0
        low, high = interval(scores[:, 0], seed=1, choice=Choice(scores, [*["one"] * 29, "other"]))
        assert 0.0 <= low <= scores[:, 0].mean() <= high <= 1.0


@pytest.mark.usefixtures("few_resamplings")
def test_trials_of_other_processes_count_as_independent_ones() -> None:
    """Missing scores of users never shorten an interval."""
    everything = Searched.of(np.random.default_rng(3), np.full(N_TRIALS, TRUTH), alike=0.8).choice
    everything = replace(everything, resamplings=4000)
    part = replace(everything, scores=everything.scores[:, :10], algorithms=everything.algorithms[:10])
    unknown = replace(part, n_unknown=N_TRIALS - 10)
    stretches = [choice.stretch(seed=1, confidence=0.95) for choice in (part, everything, unknown)]
    assert stretches == sorted(stretches)
    assert unknown.stretch_of_lead(seed=1, confidence=0.95) >= part.stretch_of_lead(seed=1, confidence=0.95)


def test_unknown_trials_lengthen_the_interval_of_a_lead_like_independent_known_ones() -> None:
    """If unknown trials counted less, equally good trials would have a false lead twice as often."""
    scores = np.random.default_rng(6).normal(1.0, 1.0, (2000, 10))
    scores[:, 9] = scores.mean() - 0.01
    known = Choice(scores, [*["one"] * 9, "other"])
    part = Choice(scores[:, [0, 9]], ["one", "other"], n_unknown=8)
    stretches = [choice.stretch_of_lead(seed=1, confidence=0.95) for choice in (known, part)]
    assert stretches == pytest.approx([ndtri((1 + 0.95 ** (1 / 9)) / 2) / ndtri(0.975)] * 2, rel=0.02)


@pytest.mark.usefixtures("few_resamplings")
def test_a_single_trial_needs_no_correction() -> None:
    """The interval of a single trial is that of a mean."""
    scores = np.random.default_rng(4).random((300, 1))
    choice = Choice(scores, ["one"])
    assert interval(scores[:, 0], seed=1, choice=choice)[0] == pytest.approx(
        interval(scores[:, 0], seed=1)[0], abs=2e-3
    )


@pytest.mark.usefixtures("few_resamplings")
def test_a_rival_that_scores_zero_leaves_all_figures_finite() -> None:
    """The relative change and its interval are then very large."""
    choice = Searched.of(np.random.default_rng(6), np.full(N_TRIALS, TRUTH), alike=0.5).choice
    change = paired_change(choice.scores[:, 0], np.zeros(N_USERS), seed=1, relative=True, choice=choice)
    assert np.isfinite([change.low, change.value, change.high]).all()
    few = np.zeros(N_USERS)
    few[0] = 1.0
    assert np.isfinite(paired_change(choice.scores[:, 0], few, seed=1, relative=True, choice=choice).low)


@pytest.mark.usefixtures("few_resamplings")
def test_the_interval_of_a_refit_contains_its_true_score_as_often_as_a_search() -> None:
    """A refit is scored on the users on which its parameters were chosen, so it inherits the correction.

    Its comparison with a rival inherits the correction, too. If no trial is better than the rival, at most 5% of the
    trainings show a significant lead. Without the correction, more than 25% show one.
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
    assert proven[0] <= 0.05 * N_SEARCHES
    assert proven[1] <= 0.05 * N_SEARCHES
    assert proven[2] > 0.25 * N_SEARCHES, "the correction is what this test is about"
    assert held[2] < held[1] - 0.15 * N_SEARCHES
