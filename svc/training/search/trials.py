"""The finished trials of a study as svc's own records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from svc.model.recommenders.base import Scorer
from svc.recipe.algorithms import TOP_POP
from svc.training.algorithms.registry import Params
from svc.training.evaluation.evaluator import Evaluation
from svc.training.search import budget
from svc.training.search.fit import Fitted
from svc.training.search.sampler import own_parameters
from svc.training.search.warm_start import WarmStart

METRICS = "svc:metrics"
EPOCHS = "svc:train_epochs"
RECENCY = "svc:recency"
SECONDS = "svc:seconds"
RANK_MS = "svc:rank_ms"
TOO_SLOW = "svc:too_slow"
REUSED = "svc:reused"
"""Attributes of a finished trial; REUSED is the number of the equal trial whose value it took."""

FEATURES_AND_SEEDS = "features and seeds"
"""What the part of a model answers that learned from features where another part answers for known users."""


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial. `score` and `metrics` are there if it is complete, `epochs` if it trained in epochs.

    `rank_ms` are the milliseconds of a single ranking by its model, where that was measured; a trial is `too_slow`, and
    not complete, where they are more than the recipe allows.

    `parts` are the trials that a blend is made of, in the order of its weights. `recency` is what the validation chose;
    of a blend it is the highest of its parts, each of which has the one that it has in the blend.
    """

    number: int
    algorithm: str
    params: Params
    state: str
    score: float | None
    metrics: dict[str, float]
    epochs: int | None
    seconds: float
    parts: tuple[TrialRecord, ...] = ()
    recency: float = 0.0
    rank_ms: float | None = None
    too_slow: bool = False

    @property
    def final_params(self) -> Params:
        """The parameters, with the number of epochs that the validation chose."""
        return dict(self.params) if self.epochs is None else {**self.params, "train_epochs": self.epochs}

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"

    @property
    def recency_by_part(self) -> bool:
        """Whether the parts of a blend weigh histories differently."""
        return len({part.recency for part in self.parts if part.algorithm != TOP_POP}) > 1

    def at_recency(self, recency: float) -> TrialRecord:
        """The same model with one recency, for all of its parts."""
        return replace(self, recency=recency, parts=tuple(replace(part, recency=recency) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Reused:
    """Where the parameters of a training without a search come from: a version, and when it was searched (ISO 8601).

    `feature_aware` is the trial of its part for features and seeds, where that is not the winner or a part of it.
    `start` has the vectors from which the final model starts to learn; None: from random ones. `stretch` is that of the
    search's interval (see evaluation/choice.py): the parameters are still those that were chosen among its trials.
    """

    sha8: str
    searched_at: str
    feature_aware: TrialRecord | None = None
    start: WarmStart | None = None
    stretch: float = 1.0

    def as_fields(self) -> dict[str, str]:
        """As the header of the artifact has it."""
        return {"sha8": self.sha8, "searched_at": self.searched_at}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """`trials` are those of the whole study that used its budget; `seconds`, `n_orphaned` and `workers`, which
    trained at once, are this process's. So is `by_user`: the (users,) scores of single users of the complete trials
    that this process has trained, by number (see kept_scores.py). `trained` is the model of the best trial on what the
    search trained on, where it was kept: it need not be trained again to be measured. With `reused` there was
    no search, and `trials` has the one trial whose parameters an earlier search chose. `evaluation` is that of
    `trained`, with rankings for all cutoffs, where it was made."""

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
        """The highest score; of equal ones the first. There must be a complete trial."""
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
    """The attributes to store with a complete trial."""
    stored: dict[str, object] = {METRICS: fitted.metrics, EPOCHS: fitted.epochs, SECONDS: round(seconds, 3)}
    if fitted.rank_ms is not None:
        stored[RANK_MS] = fitted.rank_ms
    return {**stored, RECENCY: fitted.recency} if fitted.recency else stored


def records(trials: list[FrozenTrial]) -> list[TrialRecord]:
    """The finished ones of `trials` that used the budget."""
    return [_record(trial) for trial in trials if budget.uses_budget(trial) and trial.state.is_finished()]


def find_source(trials: list[FrozenTrial], number: int, algorithm: str, params: Params, own: Collection[int]) -> int:
    """Return which trial decides the result of trial `number`: an equal one, or itself if it is to be trained.

    An equal one is taken if it is finished, or one of this process's `own` that have not been told.
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
