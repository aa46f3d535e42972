"""Train one trial in a worker, and end it early if it is clearly worse than others of the same algorithm.

A trial is compared with the curves that were known when it was suggested, not with later ones. So the same search
prunes the same trials, however long each takes. Tasks and outcomes are sent between processes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from optuna.trial import FrozenTrial, TrialState

from svc.training.fitting.algorithms.registry import Params
from svc.training.judging.recency import Fitted
from svc.training.search.budget import ALGORITHM

State = Literal["complete", "pruned", "failed"]
Curve = dict[int, float]
"""The scores between epochs by epoch, or the score of the screening alone."""

SCREENING_STEP = 0
"""The step of a score on a sample of the validation users. A trial without epochs has it before the score on all users.

The screened model is trained on all data, because fewer users would make histories of items shorter and favour other
parameters.
"""
_N_STARTUP = 3
_N_WARMUP = 3


class Objective(Protocol):
    """Trains and scores one algorithm with one set of parameters, in a worker.

    It may raise `TrialPruned`. Exceptions of `check` and `report` must pass through it.
    """

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted: ...


class Stop(Exception):
    """Raised by a `check` to end a training, because its time is over or its score is too low."""


class TrialPruned(Exception):
    """These parameters cannot be trained on this data, or are clearly worse than others. The search goes on."""


@dataclass(frozen=True, slots=True)
class TrialTask:
    """One trial to train, with the `known_curves` of its algorithm when it was suggested."""

    number: int
    algorithm: str
    params: Params
    known_curves: tuple[Curve, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial: `fitted` if it is complete, `error` if it failed, and the `curve` until its end."""

    state: State
    seconds: float
    fitted: Fitted | None = None
    error: str = ""
    curve: Curve = field(default_factory=dict)


def run_trial(objective: Objective, task: TrialTask, check: Callable[[], None]) -> TrialOutcome:
    """Train and score the trial of `task`.

    `check` may raise Stop. Nothing is raised: the outcome holds the error.
    """
    begin, curve = time.monotonic(), Curve()

    def report(step: int, score: float) -> None:
        check()
        curve[step] = score
        if is_outclassed(curve, task.known_curves):
            raise TrialPruned("clearly below its algorithm's median")

    fitted, error = None, ""
    try:
        fitted = objective(task.algorithm, task.params, check=check, report=report)
        state: State = "complete"
    except (TrialPruned, Stop):
        state = "pruned"
    except Exception as caught:
        state, error = "failed", f"{type(caught).__name__}: {caught}"
    return TrialOutcome(state, time.monotonic() - begin, fitted, error, curve)


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
    """Return True if the best of `curve` is below the median of `others` up to the same step.

    Return False for fewer than _N_STARTUP others, and in the first _N_WARMUP epochs.
    """
    step = max(curve)
    if len(others) < _N_STARTUP or (step != SCREENING_STEP and len(curve) <= _N_WARMUP):
        return False
    best_until = [max(score for at, score in other.items() if at <= step) for other in others]
    return max(curve.values()) < statistics.median(best_until)
