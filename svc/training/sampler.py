"""Which parameters a trial tries: TPE for each algorithm by itself, the same in every process for the same seed.

One study holds the trials of all algorithms. What TPE learns from must be of one algorithm only, so each suggestion
comes from a small study in memory that holds just those, with a generator seeded by the number of the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from svc.training.algorithms import Params, Space, first_guess
from svc.training.budget import ALGORITHM, TrialPlan

_ATTEMPTS = 16


def parameter_name(algorithm: str, parameter: str) -> str:
    """The name in the study: two algorithms may both have `n_components`, over different ranges."""
    return f"{algorithm}.{parameter}"


def own_parameters(algorithm: str, params: Mapping[str, Any]) -> Params:
    """The parameters of `algorithm` among those of a trial, under irspack's names."""
    prefix = parameter_name(algorithm, "")
    return {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}


class AlgorithmSampler(BaseSampler):
    """Suggests for the algorithm that `plan` gives to the trial, within `spaces[algorithm]`."""

    def __init__(self, plan: TrialPlan, spaces: Mapping[str, Space], seed: int) -> None:
        self._plan = plan
        self._spaces = spaces
        self._seed = seed
        self._beyond_plan: dict[int, str] = {}

    def slot(self, study: Study, number: int) -> tuple[str, int]:
        """(algorithm, place among its trials) for trial `number`; beyond the plan the neediest algorithm.

        Decided once for each trial: while it is being suggested, other processes may change who is neediest.
        """
        planned = self._plan.slot(number)
        if planned is not None:
            return planned
        if number not in self._beyond_plan:
            others = [trial for trial in study.get_trials(deepcopy=False) if trial.number != number]
            self._beyond_plan[number] = self._plan.most_wanting(others)
        return self._beyond_plan[number], number

    def space(self, algorithm: str) -> dict[str, BaseDistribution]:
        """The parameters of `algorithm` under their names in the study."""
        return {parameter_name(algorithm, name): found for name, found in self._spaces[algorithm].items()}

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        algorithm, _place = self.slot(study, trial.number)
        return self.space(algorithm)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        algorithm, place = self.slot(study, trial.number)
        if place == 0:
            guess = first_guess(algorithm, self._spaces[algorithm])
            return {parameter_name(algorithm, name): value for name, value in guess.items()}
        known = [
            other
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number and other.user_attrs.get(ALGORITHM) == algorithm
        ]
        return self._suggest(known, search_space, trial.number, self._plan.shares[algorithm])

    def sample_independent(
        self,
        study: Study,  # noqa: ARG002 - Optuna's signature
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,  # noqa: ARG002 - Optuna's signature
    ) -> Any:
        raise ValueError(f"{param_name} is not a parameter of trial {trial.number}")

    def _suggest(
        self, known: Sequence[FrozenTrial], space: dict[str, BaseDistribution], number: int, share: int
    ) -> dict[str, Any]:
        """A suggestion that no known trial has tried, or after some attempts one that has."""
        tried = [trial.params for trial in known]
        suggestion: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS):
            seed = int(np.random.SeedSequence([self._seed, number, attempt]).generate_state(1)[0])
            sampler = TPESampler(seed=seed, n_startup_trials=min(10, max(3, share // 3)), constant_liar=True)
            local = optuna.create_study(direction="maximize", sampler=sampler)
            local.add_trials([_copy(trial) for trial in known if trial.state is not TrialState.FAIL])
            suggestion = local.ask(fixed_distributions=space).params
            if suggestion not in tried:
                break
        return suggestion


def _copy(trial: FrozenTrial) -> FrozenTrial:
    return optuna.trial.create_trial(
        state=trial.state,
        value=trial.value if trial.state is TrialState.COMPLETE else None,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
    )
