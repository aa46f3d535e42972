"""Divide one budget of trials among the algorithms of a recipe and among all processes of a study.

The storage assigns each trial number once, and `TrialPlan` maps the number to an algorithm. A trial is within the
budget if fewer than `total` trials with lower numbers have used the budget. So processes that create trials at the same
moment need no further coordination. A process marks its trial as failed if the trial is beyond the budget.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial, TrialState

ALGORITHM = "svc:algorithm"
OWNER = "svc:owner"
BEAT = "svc:beat"
SPENT = "svc:spent"
"""Attributes of a trial: its algorithm, the process that trains it, that process's heartbeat counter, and its error.

A failed trial without an error was abandoned and does not use the budget.
"""


_FAIR_TRIALS = 3
_CLEARLY = 0.85
"""An algorithm is clearly behind if its best score is below this fraction of the best score of all algorithms. It is
compared only after it has completed _FAIR_TRIALS trials and a third of its share of the trials.
"""
MOST_OF_ONE_NUMBER = 5
"""Trials that usually suffice if an algorithm has only one parameter and this is a number (see `next_position` in
sampler.py). Further trials are worth more for other algorithms.
"""
_CLOSE = 0.95
_A_GAIN = 1.01
"""An algorithm with n parameters has stalled if its last n + 1 trials have not raised its best score by this factor.
A stalled algorithm is behind if its best score is below the fraction _CLOSE of the best score of all algorithms.
"""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """The number of trials of each algorithm, in the order of the recipe.

    - `shares` has the number of trials of each algorithm, at least 1.
    - `n_parameters` has the number of parameters to tune for each algorithm, 1 if an algorithm is missing.
    - `kept` are algorithms whose number of trials is fixed. They keep their trials even if they score clearly lower
      than others.
    - `needed` are algorithms of which the best one keeps its trials too.
    """

    shares: Mapping[str, int]
    n_parameters: Mapping[str, int] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        return sum(self.shares.values())

    def slot(self, number: int) -> tuple[str, int] | None:
        """Return the algorithm of trial `number` and its place among that algorithm's trials, or None beyond the plan.

        Each algorithm first gets one trial. Then an algorithm with n parameters gets n trials for each trial of an
        algorithm with one parameter, because most trials change a single parameter.
        """
        slots = [(name, position) for name, share in self.shares.items() for position in range(share)]
        # The first trial of every algorithm has the key 0, and the stable sort keeps the recipe's order among equal
        # keys.
        slots.sort(key=lambda slot: slot[1] / self._n_tuned(slot[0]))
        return slots[number] if number < len(slots) else None

    def _n_tuned(self, name: str) -> int:
        return max(1, self.n_parameters.get(name, 1))

    def n_taken(self, trials: Iterable[FrozenTrial], name: str) -> int:
        """Return how many of `trials` train algorithm `name` and use the budget."""
        return sum(1 for trial in trials if trial.user_attrs.get(ALGORITHM) == name and uses_budget(trial))

    def find_eliminated(self, trials: Sequence[FrozenTrial], names: Iterable[str]) -> frozenset[str]:
        """Return which of the algorithms `names` get no further trials.

        An algorithm is eliminated if its best score is clearly below the best score of all algorithms, or if it has
        stalled and its best score is somewhat below (see _CLEARLY, _CLOSE). The `kept` algorithms and the best of the
        `needed` ones are never eliminated.
        """
        courses = {name: _course(trials, name) for name in names}
        enough = {
            name: max(course)
            for name, course in courses.items()
            # Only complete trials count. A pruned one says that it is below its own algorithm's median, nothing of
            # others.
            if sum(score >= 0.0 for score in course) >= max(_FAIR_TRIALS, self.shares.get(name, 0) // 3)
        }
        top = max(enough.values(), default=0.0)
        needed = max((name for name in enough if name in self.needed), key=lambda name: enough[name], default=None)
        return frozenset(
            name
            for name, best in enough.items()
            if name not in self.kept
            and name != needed
            and best < (_CLOSE if _has_stalled(courses[name], self._n_tuned(name) + 1) else _CLEARLY) * top
        )

    def most_remaining(self, trials: Sequence[FrozenTrial]) -> str:
        """Return the algorithm that is furthest below its number of trials in `shares`.

        This algorithm gets the trials that replace abandoned ones.
        """
        return max(self.shares, key=lambda name: self.shares[name] - self.n_taken(trials, name))


def _course(trials: Iterable[FrozenTrial], name: str) -> list[float]:
    """Return the scores of the finished trials of algorithm `name` in order of trial number, −inf if pruned."""
    return [
        trial.value or 0.0 if trial.state is TrialState.COMPLETE else -math.inf
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.user_attrs.get(ALGORITHM) == name and trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
    ]


def _has_stalled(course: Sequence[float], n_trials: int) -> bool:
    """Return whether the best score of `course` is still below _A_GAIN times the best score before the last `n_trials`.

    Return False if there are no earlier scores.
    """
    before = course[:-n_trials]
    return bool(before) and max(course) < _A_GAIN * max(before)


def plan_trials(
    algorithms: Sequence[str],
    n_trials: int,
    *,
    own: Mapping[str, int],
    n_parameters: Mapping[str, int],
    needed: Iterable[str] = (),
    one_number: Container[str] = (),
) -> TrialPlan:
    """Divide `n_trials` evenly among `algorithms`.

    - `own` sets the number of trials of single algorithms, and 0 drops an algorithm. The other algorithms divide the
      remaining trials. If `own` adds up to more than `n_trials`, so does the plan.
    - An algorithm gets at most one trial if `n_parameters` says that it has nothing to tune.
    - Algorithms in `one_number` tune only one number. They get at most MOST_OF_ONE_NUMBER trials if other algorithms
      can use the rest.
    - `needed` is passed to the plan.

    If the trials cannot be divided evenly, the first algorithms get one more. If there are more algorithms than trials,
    those with nothing to tune come first, and the last algorithms get none.
    """
    fixed = {name for name in algorithms if n_parameters.get(name) == 0}
    shares = {name: min(own[name], 1) if name in fixed else own[name] for name in algorithms if name in own}
    others = [name for name in algorithms if name not in own]
    remaining = max(0, n_trials - sum(shares.values()))
    once = [name for name in others if name in fixed][:remaining]
    shares.update(dict.fromkeys(once, 1))
    remaining -= len(once)
    tuned = [name for name in others if name not in fixed]
    soon_found = [name for name in tuned if name in one_number]
    if len(soon_found) < len(tuned) and remaining // len(tuned) > MOST_OF_ONE_NUMBER:
        shares.update(dict.fromkeys(soon_found, MOST_OF_ONE_NUMBER))
        remaining -= MOST_OF_ONE_NUMBER * len(soon_found)
        tuned = [name for name in tuned if name not in one_number]
    for index, name in enumerate(tuned):
        shares[name] = remaining // len(tuned) + (index < remaining % len(tuned))
    kept_shares = {name: shares[name] for name in algorithms if shares.get(name, 0) > 0}
    return TrialPlan(kept_shares, n_parameters, frozenset(own), frozenset(needed))


def uses_budget(trial: FrozenTrial) -> bool:
    """Return True if a trial runs, is complete or pruned, or failed by an error, and False if it was abandoned."""
    if trial.state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING):
        return True
    # Optuna has one state for both kinds of failure, so an attribute tells them apart.
    return trial.state is TrialState.FAIL and bool(trial.user_attrs.get(SPENT))


def is_within(trials: Iterable[FrozenTrial], number: int, total: int) -> bool:
    """Return True if trial `number` is one of the first `total` that use the budget."""
    return sum(1 for trial in trials if trial.number < number and uses_budget(trial)) < total


def n_used(trials: Iterable[FrozenTrial]) -> int:
    return sum(1 for trial in trials if uses_budget(trial))


def n_finished(trials: Iterable[FrozenTrial]) -> int:
    return sum(1 for trial in trials if uses_budget(trial) and trial.state.is_finished())
