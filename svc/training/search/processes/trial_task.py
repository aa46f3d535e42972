"""The task that a worker gets for one trial, and the outcome that it returns. Both are sent between processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from svc.training.fitting.algorithms.registry import Params
from svc.training.judging.recency import Fitted
from svc.training.search import screening
from svc.training.search.pruner import Curve, is_outclassed

State = Literal["complete", "pruned", "failed"]


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
    """One trial to train, with the results of the same algorithm that were known when it was suggested.

    `complete_curves` are the learning curves of complete trials, `screenings` the screening scores of all.
    """

    number: int
    algorithm: str
    params: Params
    complete_curves: tuple[Curve, ...] = ()
    screenings: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """The result of a trial: `fitted` if it is complete, `error` if it failed, and the `curve` between epochs."""

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

    def report(epoch: int, score: float) -> None:
        check()
        curve[epoch] = score
        if epoch == screening.SCREENING_STEP and not screening.is_passed(score, task.screenings):
            raise TrialPruned("its screening score was below its algorithm's median")
        if is_outclassed(curve, task.complete_curves):
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
