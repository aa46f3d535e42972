"""End trials early that are clearly worse than their like."""

from __future__ import annotations

import statistics

from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from svc.training.budget import ALGORITHM


class AlgorithmMedianPruner(BasePruner):
    """Prune a trial whose best score so far is below the median of its algorithm's finished trials at that epoch.

    The first `n_startup` finished trials of an algorithm and the first `n_warmup` epochs are never pruned.
    """

    def __init__(self, n_startup: int = 5, n_warmup: int = 3) -> None:
        self._n_startup = n_startup
        self._n_warmup = n_warmup

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        step = trial.last_step
        if step is None or len(trial.intermediate_values) <= self._n_warmup:
            return False
        others = [
            _best_until(other, step)
            for other in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if other.user_attrs.get(ALGORITHM) == trial.user_attrs.get(ALGORITHM) and other.intermediate_values
        ]
        if len(others) < self._n_startup:
            return False
        return _best_until(trial, step) < statistics.median(others)


def _best_until(trial: FrozenTrial, step: int) -> float:
    return max((value for at, value in trial.intermediate_values.items() if at <= step), default=float("-inf"))
