"""The finished trials of a study as svc's own records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from svc.model.recommenders.base import Scorer
from svc.training.evaluation.evaluator import Evaluation
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.search import budget
from svc.training.search.fit import Fitted
from svc.training.search.sampler import own_parameters

METRICS = "svc:metrics"
EPOCHS = "svc:train_epochs"
RECENCY = "svc:recency"
SECONDS = "svc:seconds"
RANK_MS = "svc:rank_ms"
TOO_SLOW = "svc:too_slow"
REUSED = "svc:reused"
"""Attributes of a finished trial; REUSED is the number of the equal trial whose value it took."""


@dataclass(frozen=True, slots=True)
class Reused:
    """Origin of the parameters of a training without a search: a version, and the time of its search (ISO 8601).

    `feature_aware` is the trial of its part for features and seeds, if that is not the winner or a part of it. `start`
    has the vectors from which the final model starts to learn, or None for random ones. `stretch` is that of the
    interval of the search (see evaluation/choice.py), as the parameters are still those chosen among its trials.
    """

    sha8: str
    searched_at: str
    feature_aware: TrialRecord | None = None
    start: WarmStart | None = None
    stretch: float = 1.0

    def as_fields(self) -> dict[str, str]:
        """Return the fields of the artifact's header."""
        return {"sha8": self.sha8, "searched_at": self.searched_at}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`trials` are the trials of the whole study that used its budget.

    `seconds`, `n_orphaned` and `workers`, the number of simultaneous trials, are those of this process. So is
    `by_user`, the (users,) scores of its complete trials by number (see kept_scores.py).

    `trained` is the model of the best trial, trained on the training part of the split. If it was kept, measuring it
    needs no second training. `evaluation` is that of `trained`, with rankings for all cutoffs, or None.

    With `reused` there was no search, and `trials` has the one trial with the parameters of an earlier search.
    """

    trials: list[TrialRecord]
    seconds: float
    n_orphaned: int
    workers: int = 1
    by_user: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    trained: Scorer | None = None
    evaluation: Evaluation | None = None
    reused: Reused | None = None

    @property
    def completed(self) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.is_complete]

    def count(self, state: str) -> int:
        return sum(1 for trial in self.trials if trial.state == state)

    @property
    def n_too_slow(self) -> int:
        return sum(trial.too_slow for trial in self.trials)

    @property
    def best(self) -> TrialRecord:
        """Return the trial with the highest score, the first of equal ones.

        There must be a complete trial.
        """
        return next(iter(by_score(self.completed)))

    @property
    def best_per_algorithm(self) -> dict[str, TrialRecord]:
        best: dict[str, TrialRecord] = {}
        for trial in by_score(self.completed):
            best.setdefault(trial.algorithm, trial)
        return best


def by_score(trials: list[TrialRecord]) -> list[TrialRecord]:
    return sorted(trials, key=lambda trial: (-(trial.score or 0.0), trial.number))


def attributes(fitted: Fitted, seconds: float) -> dict[str, object]:
    """Return the attributes to store with a complete trial."""
    stored: dict[str, object] = {METRICS: fitted.metrics, EPOCHS: fitted.epochs, SECONDS: round(seconds, 3)}
    if fitted.rank_ms is not None:
        stored[RANK_MS] = fitted.rank_ms
    return {**stored, RECENCY: fitted.recency} if fitted.recency else stored


def records(trials: list[FrozenTrial]) -> list[TrialRecord]:
    """Return the finished ones of `trials` that used the budget."""
    return [_record(trial) for trial in trials if budget.uses_budget(trial) and trial.state.is_finished()]


def find_source(trials: list[FrozenTrial], number: int, algorithm: str, params: Params, own: Collection[int]) -> int:
    """Return the number of the trial that decides the result of trial `number`: an equal one, or itself.

    An equal trial is taken if it is finished, or one of this process's `own` that have not been told. Without one,
    trial `number` is trained.
    """
    finished = (TrialState.COMPLETE, TrialState.PRUNED)
    equal = (trial for trial in trials if trial.number != number and _is_equal(trial, algorithm, params))
    return next((trial.number for trial in equal if trial.state in finished or trial.number in own), number)


def _is_equal(trial: FrozenTrial, algorithm: str, params: Params) -> bool:
    return trial.user_attrs.get(budget.ALGORITHM) == algorithm and own_parameters(algorithm, trial.params) == params


def _record(trial: FrozenTrial) -> TrialRecord:
    attrs = trial.user_attrs
    algorithm = str(attrs.get(budget.ALGORITHM, ""))
    return TrialRecord(
        number=trial.number,
        algorithm=algorithm,
        params=own_parameters(algorithm, trial.params),
        state={TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed"),
        score=trial.value if trial.state is TrialState.COMPLETE else None,
        metrics=dict(attrs.get(METRICS) or {}),
        epochs=attrs.get(EPOCHS),
        seconds=float(attrs.get(SECONDS) or 0.0),
        recency=float(attrs.get(RECENCY) or 0.0),
        rank_ms=attrs.get(RANK_MS),
        too_slow=bool(attrs.get(TOO_SLOW)),
    )
