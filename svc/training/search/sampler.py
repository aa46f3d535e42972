"""Suggest the parameters of a trial by TPE or near the best trial, separately for each algorithm.

One study holds the trials of all algorithms, but TPE must learn from trials of one algorithm only. So each suggestion
comes from a small study in memory with the trials of this algorithm. Its random generator is seeded by the recipe's
seed and the trial's number, so every process makes the same suggestion for the same trials. Only the limit of a model
size may differ, because it depends on scores for each user, which a process has only for its own trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState

from svc.training.fitting.algorithms.registry import GROWS_FROM, Params, Space, nearest
from svc.training.judging.intervals import is_gain
from svc.training.search.budget import ALGORITHM, MOST_OF_ONE_NUMBER, TrialPlan

_ATTEMPTS = 16
# On sparse data TPE alone reached ndcg@20 0.1047 in 40 trials, with variations 0.1061. On two other sets they
# hardly differ.
_EVERY = 3
"""After the guesses, every third trial is suggested by TPE. The other trials vary the best trial, because TPE learns
little from few trials. An algorithm with only one parameter, a number, is searched by `next_position` instead.
"""
_STEPS = (0.05, 0.2)
"""The shortest and longest change of a number in the best trial, as fractions of its range. The range is logarithmic if
the parameter is.
"""


def parameter_name(algorithm: str, parameter: str) -> str:
    """Return the parameter's name in the study.

    It contains the algorithm, because algorithms may have parameters of the same name with different ranges.
    """
    return f"{algorithm}.{parameter}"


def own_parameters(algorithm: str, params: Mapping[str, Any]) -> Params:
    """Return the parameters of `algorithm` in the study's `params`, under irspack's names."""
    prefix = parameter_name(algorithm, "")
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


@dataclass(slots=True, eq=False)
class AlgorithmSampler:
    """Chooses the algorithm of each trial and suggests its parameters.

    - `plan` gives the algorithm of each trial number, and `spaces` the search space of each algorithm.
    - `most_seconds` is the time limit of a trial. Model sizes do not grow if a larger model is unlikely to be trained
      in time.
    - `by_user` has the scores for each user, (users,), of the complete trials of this process, by trial number. The
      search adds to it.
    """

    plan: TrialPlan
    spaces: Mapping[str, Space]
    seed: int
    most_seconds: float | None = None
    by_user: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    def choose_algorithm(self, number: int, others: list[FrozenTrial]) -> tuple[str, int]:
        """Return the algorithm of trial `number`, and the trial's place among the trials of this algorithm.

        `others` are the other trials of the study. A trial planned for an eliminated algorithm goes to another
        algorithm. Of the remaining algorithms that can use more trials, this is the algorithm with the fewest. If there
        is none, the trial stays as planned. A trial beyond the plan replaces an abandoned trial, so it goes to the
        algorithm that is furthest below its planned number, and its place is `number`.
        """
        planned = self.plan.slot(number)
        if planned is None:
            return self.plan.most_remaining(others), number
        name, position = planned
        tuned = [name for name, space in self.spaces.items() if space]
        eliminated = self.plan.find_eliminated(others, tuned)
        if name not in eliminated:
            return planned
        used = {other: self.plan.n_taken(others, other) for other in tuned}
        receivers = [other for other in tuned if other not in eliminated and used[other] < self._most_trials(other)]
        if not receivers:
            return planned
        receiver = min(receivers, key=lambda other: used[other])
        return receiver, max(position, used[receiver])

    def space(self, algorithm: str) -> dict[str, BaseDistribution]:
        """Return the search space of `algorithm`, with the names of parameters in the study."""
        return {parameter_name(algorithm, name): distribution for name, distribution in self.spaces[algorithm].items()}

    def suggest(self, number: int, algorithm: str, position: int, others: list[FrozenTrial]) -> dict[str, Any]:
        """Return parameters for trial `number`, under their names in the study.

        `position` is the trial's place among the trials of `algorithm`, and `others` are the other trials of the study.
        """
        if not self.spaces[algorithm]:
            return {}
        guesses = self.spaces[algorithm].guesses
        if position < len(guesses):
            return {parameter_name(algorithm, name): value for name, value in guesses[position].items()}
        trials = [other for other in others if other.user_attrs.get(ALGORITHM) == algorithm]
        space, share = self._grown(algorithm, trials), self.plan.shares[algorithm]
        if self.spaces[algorithm].is_one_number:
            return self._step(trials, space, number)
        if (position - len(guesses)) % _EVERY == _EVERY - 1:
            return self._suggest(trials, space, number, share)
        return self._vary(trials, space, number, share)

    def _most_trials(self, algorithm: str) -> float:
        """Return the largest useful number of trials of an algorithm.

        It is MOST_OF_ONE_NUMBER if there is only one parameter and this is a number. If all parameters are choices, it
        is the number of their combinations. Otherwise it is infinite.
        """
        space = self.spaces[algorithm]
        if space.is_one_number:
            return MOST_OF_ONE_NUMBER
        sizes = [
            len(distribution.choices) if isinstance(distribution, CategoricalDistribution) else math.inf
            for distribution in space.values()
        ]
        return math.prod(sizes)

    def _is_better(self, first: int, second: int) -> bool:
        """Return whether trial `first` scores better than trial `second` for the same users by more than chance.

        Return True if the scores for each user are unknown for one of the trials, because chance cannot then be judged.
        """
        if first not in self.by_user or second not in self.by_user:
            return True
        return is_gain(self.by_user[first], self.by_user[second])

    def _grown(self, algorithm: str, trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
        """Return the current search space of `algorithm`, in which the range of a model size ends at a limit.

        The limit is twice the size of the best trial so far, so it grows as long as larger models score better. If a
        smaller model is worse only by chance, twice its size is the limit. A larger model without better scores costs
        time in the search and in each answer.

        The limit is at least GROWS_FROM and at least the largest size tried. The size is not doubled if such a model is
        unlikely to be trained in time. Before the first complete trial, there is no limit.
        """
        space = self.space(algorithm)
        complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        for parameter in self.spaces[algorithm].grows if complete else ():
            name = parameter_name(algorithm, parameter)
            whole = space[name]
            assert isinstance(whole, IntDistribution), "only sizes grow"
            best = max(complete, key=lambda trial: trial.value or 0.0)
            equals = [trial for trial in complete if not self._is_better(best.number, trial.number)]
            smallest = min([best, *equals], key=lambda trial: int(trial.params[name]))
            largest = max(int(trial.params[name]) for trial in trials if name in trial.params)
            reached = max(GROWS_FROM, largest, 2 * int(smallest.params[name]) if self._may_double(smallest) else 0)
            space[name] = IntDistribution(whole.low, max(whole.low, min(whole.high, reached)), log=whole.log)
        return space

    def _may_double(self, trial: FrozenTrial) -> bool:
        """Return whether a trial with twice the model size of `trial` is likely to finish in time.

        It may take up to four times as long as `trial`.
        """
        if self.most_seconds is None or trial.duration is None:
            return True
        return 4 * trial.duration.total_seconds() <= self.most_seconds

    def _vary(
        self, trials: Sequence[FrozenTrial], space: dict[str, BaseDistribution], number: int, share: int
    ) -> dict[str, Any]:
        """Return untried parameters near those of the best complete trial, or ask TPE if no trial is complete."""
        complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
        if not complete:
            return self._suggest(trials, space, number, share)
        best = max(complete, key=lambda trial: trial.value or 0.0)
        return _first_untried(
            trials,
            lambda attempt: _near(best.params, trials, space, np.random.default_rng([self.seed, number, attempt])),
        )

    def _step(self, trials: Sequence[FrozenTrial], space: dict[str, BaseDistribution], number: int) -> dict[str, Any]:
        """Return the next value of an algorithm's only parameter, a number (see `next_position`).

        TPE suggests it if no trial has ended, or if the next value has been tried.
        """
        ((name, distribution),) = space.items()
        assert isinstance(distribution, IntDistribution | FloatDistribution), "only numbers are searched step by step"
        low, high = _on_scale(distribution.low, distribution), _on_scale(distribution.high, distribution)
        scores, running = {}, []
        for trial in trials:
            if name not in trial.params or trial.state is TrialState.FAIL:
                continue
            position = min(1.0, max(0.0, (_on_scale(trial.params[name], distribution) - low) / (high - low)))
            if trial.state is TrialState.COMPLETE:
                scores[position] = trial.value or 0.0
            elif trial.state is TrialState.PRUNED:
                scores[position] = -math.inf
            else:
                running.append(position)
        upwards_first = bool(np.random.default_rng([self.seed, number]).integers(2))
        if not scores:
            return self._suggest(trials, space, number, 1)
        position = next_position(scores, running, upwards_first=upwards_first)
        step = {name: _from_scale(low + position * (high - low), distribution)}
        # In a range of few whole numbers the step may lead to a tried value. TPE then suggests an untried one.
        return self._suggest(trials, space, number, 1) if step in [trial.params for trial in trials] else step

    def _suggest(
        self, trials: Sequence[FrozenTrial], space: dict[str, BaseDistribution], number: int, share: int
    ) -> dict[str, Any]:
        """Return the first suggestion of TPE that no trial has tried, or the last of _ATTEMPTS suggestions.

        `share` is the algorithm's number of trials. About a third of them, from 3 to 10, are random before TPE learns.
        """

        def suggest(attempt: int) -> dict[str, Any]:
            seed = int(np.random.SeedSequence([self.seed, number, attempt]).generate_state(1)[0])
            # `constant_liar` counts running trials as bad, so that two workers do not try neighbouring parameters.
            sampler = TPESampler(seed=seed, n_startup_trials=min(10, max(3, share // 3)), constant_liar=True)
            local = optuna.create_study(direction="maximize", sampler=sampler)
            # An abandoned trial says nothing of its parameters, and Optuna has no other state for it.
            local.add_trials([trial for trial in trials if trial.state is not TrialState.FAIL])
            return local.ask(fixed_distributions=space).params

        return _first_untried(trials, suggest)


def _first_untried(trials: Sequence[FrozenTrial], suggest: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Return the first suggestion that no trial has tried, or the last of _ATTEMPTS suggestions if all were tried."""
    tried = [trial.params for trial in trials]
    suggestion: dict[str, Any] = {}
    for attempt in range(_ATTEMPTS):
        suggestion = suggest(attempt)
        if suggestion not in tried:
            break
    return suggestion


def _near(
    params: Mapping[str, Any],
    trials: Sequence[FrozenTrial],
    space: Mapping[str, BaseDistribution],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return `params` with one randomly selected parameter changed.

    A choice is drawn anew, and may be the same. A number changes by _STEPS of its range. From an end of the range it
    moves away. Otherwise it moves to the side with fewer trials, or to a random side if both have equally many. Only
    those of `trials` count that differ from `params` in nothing but this number, and by no more than the longest step.
    """
    changed = list(space)[int(rng.integers(len(space)))]
    # A study begun with another recipe may hold values outside of this space.
    nearby = {name: nearest(params.get(name), distribution) for name, distribution in space.items()}
    others = [trial.params for trial in trials if changed in trial.params]
    tried = [other[changed] for other in others if {**other, changed: nearby[changed]} == nearby]
    return {**nearby, changed: _move(nearby[changed], space[changed], tried, rng)}


def _move(value: Any, distribution: BaseDistribution, tried: Sequence[Any], rng: np.random.Generator) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[int(rng.integers(len(distribution.choices)))]
    assert isinstance(distribution, IntDistribution | FloatDistribution), "irspack tunes numbers and choices"
    low, high, at, *others = (
        _on_scale(number, distribution) for number in (distribution.low, distribution.high, value, *tried)
    )
    least, most = (part * (high - low) for part in _STEPS)
    steps = [other - at for other in others if abs(other - at) <= most]
    # Positive if the number should rise: it is at the lower end, or fewer tried values are above than below.
    lean = int(at <= low) - int(at >= high) or sum(step < 0 for step in steps) - sum(step > 0 for step in steps)
    side = np.sign(lean) or rng.choice((-1, 1))
    return _from_scale(at + side * rng.uniform(least, most), distribution)


def _on_scale(value: float, distribution: IntDistribution | FloatDistribution) -> float:
    """Return the value, or its logarithm if the range of the parameter is searched on a logarithmic scale."""
    return math.log(value) if distribution.log else value


def _from_scale(at: float, distribution: IntDistribution | FloatDistribution) -> Any:
    """Return the permitted value nearest to `at`, a position on the scale of `_on_scale`."""
    value = math.exp(min(at, math.log(distribution.high))) if distribution.log else at
    return nearest(round(value) if isinstance(distribution, IntDistribution) else float(value), distribution)


STEP = 0.2
"""Distance from the best position to the next one, on a side without evaluated positions."""
_CLOSEST = 0.02
"""If the peak of the parabola is closer than this to an evaluated position, the middle of the wider gap is evaluated
instead.
"""


def next_position(scores: Mapping[float, float], running: Sequence[float], *, upwards_first: bool) -> float:
    """Return the position from 0 to 1 to evaluate next, when searching for the highest score on a line.

    If one side of the best position has not been evaluated, the next position is one STEP to that side, or 0 or 1 if
    these are nearer. Otherwise it is the peak of the parabola through the best position and its two neighbours, or the
    middle of the wider gap if that peak is unknown, not between the neighbours, or closer than _CLOSEST to an evaluated
    position.

    `scores` has at least one evaluated position, −inf for a pruned trial. The positions in `running` are being
    evaluated, and count as evaluated without a score. If neither side has been evaluated, the upper side comes first if
    `upwards_first`.
    """
    best = max(scores, key=lambda position: scores[position])
    evaluated = sorted({*scores, *running})
    below = max((position for position in evaluated if position < best), default=None)
    above = min((position for position in evaluated if position > best), default=None)
    up = None if above is not None or best >= 1.0 else min(1.0, best + STEP)
    down = None if below is not None or best <= 0.0 else max(0.0, best - STEP)
    step = next((side for side in ((up, down) if upwards_first else (down, up)) if side is not None), None)
    if step is not None:
        return step
    low, high = best if below is None else below, best if above is None else above
    peak = _peak([(low, scores.get(low)), (best, scores[best]), (high, scores.get(high))])
    if peak is not None and low < peak < high and min(abs(peak - position) for position in evaluated) >= _CLOSEST:
        return peak
    return (best + (high if high - best >= best - low else low)) / 2


def _peak(points: Sequence[tuple[float, float | None]]) -> float | None:
    """Return the position of the peak of the parabola through three (position, score) points.

    Return None if the points are on a line, or if a score is missing or −inf.
    """
    (x1, y1), (x2, y2), (x3, y3) = points
    if y1 is None or y2 is None or y3 is None or not all(map(math.isfinite, (y1, y2, y3))):
        return None
    left, right = (x2 - x1) * (y2 - y3), (x2 - x3) * (y2 - y1)
    if left == right:
        return None
    return x2 - ((x2 - x1) * left - (x2 - x3) * right) / (2 * (left - right))
