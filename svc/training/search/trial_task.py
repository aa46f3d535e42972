"""Train one trial in a worker, and prune it if it is clearly worse than other trials of the same algorithm.

The curve of a trial is compared with the curves that were known when the trial was suggested. Later curves are ignored,
because they depend on how long each trial takes. So the same search prunes the same trials.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from optuna.trial import FrozenTrial, TrialState

from svc.training.fitting.algorithms.registry import Params
from svc.training.judging.recency import Fitted
from svc.training.search.budget import ALGORITHM

Curve = dict[int, float]
"""The scores of a trial by epoch. A trial without epochs has only a screening score, at SCREENING_STEP."""

SCREENING_STEP = 0
"""The key of the screening score in a curve.

A trial without epochs is scored on a sample of the validation users first. If this screening score is too low, the
trial is pruned before it is scored on all of them. The model itself is trained on all users. With fewer users, each
item would have fewer interactions, and other parameters would score best.
"""
_N_STARTUP = 3
_N_WARMUP = 3


class Objective(Protocol):
    """Trains and scores one algorithm with one set of parameters, in a worker.

    An objective calls `report(step, score)` with each new score. This may raise TrialPruned to end the trial, which the
    objective must not catch. The objective itself raises TrialPruned for parameters that cannot be trained.
    """

    def __call__(self, algorithm: str, params: Params, report: Callable[[int, float], None]) -> Fitted: ...


class TrialPruned(Exception):
    """These parameters cannot be trained on this data, or are clearly worse than others. The search goes on."""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One trial to train, as it is sent to a worker.

    `known_curves` are the curves of earlier trials of the same algorithm, read when this trial was suggested.
    """

    number: int
    algorithm: str
    params: Params
    known_curves: tuple[Curve, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial, as a worker sends it back.

    `fitted` is set if the trial is complete, and `error` if it failed. Without both, it was pruned. `curve` has the
    scores until its end.
    """

    seconds: float
    fitted: Fitted | None = None
    error: str = ""
    curve: Curve = field(default_factory=dict)


def run_trial(objective: Objective, task: TrialTask) -> TrialOutcome:
    """Train and score the trial of `task`.

    An error becomes an outcome with its text, so it does not leave this function.
    """
    begin, curve = time.monotonic(), Curve()

    def report(step: int, score: float) -> None:
        curve[step] = score
        if is_outclassed(curve, task.known_curves):
            raise TrialPruned("clearly below its algorithm's median")

    fitted, error = None, ""
    try:
        fitted = objective(task.algorithm, task.params, report)
    except TrialPruned:
        pass
    except Exception as caught:  # also MemoryError, which a smaller trial may not meet
        error = f"{type(caught).__name__}: {caught}"
    return TrialOutcome(time.monotonic() - begin, fitted, error, curve)


def known_curves(trials: Iterable[FrozenTrial], algorithm: str) -> tuple[Curve, ...]:
    """Return the curves of complete trials of `algorithm`, and the screening scores of pruned ones."""
    return tuple(
        dict(trial.intermediate_values)
        for trial in trials
        if trial.user_attrs.get(ALGORITHM) == algorithm
        and trial.intermediate_values
        and (
            trial.state is TrialState.COMPLETE
            or (trial.state is TrialState.PRUNED and SCREENING_STEP in trial.intermediate_values)
        )
    )


def is_outclassed(curve: Curve, others: Sequence[Curve]) -> bool:
    """Return True if the best score of `curve` is below the median of the best scores of `others` up to its last step.

    Return False if there are fewer than _N_STARTUP other curves, and in the first _N_WARMUP epochs.
    """
    step = max(curve)
    if len(others) < _N_STARTUP or (step != SCREENING_STEP and len(curve) <= _N_WARMUP):
        return False
    # Best so far against best so far, because a curve may fall after its peak.
    best_until = [max(score for at, score in other.items() if at <= step) for other in others]
    return max(curve.values()) < statistics.median(best_until)
