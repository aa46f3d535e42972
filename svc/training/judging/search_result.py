"""The result of a search: its trials, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from svc.model.recommenders.base import Scorer
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart
from svc.training.judging.evaluator import ModelEvaluation


@dataclass(frozen=True, slots=True)
class Reused:
    """The origin of the parameters of a training without a search.

    - `sha8` is the version whose search found the parameters, and `searched_at` the time of this search (ISO 8601).
    - `feature_aware` is the trial of the live model's extra part for features and seeds, or None if it has none.
    - `start` has the vectors from which the final model starts to learn. If it is None, they are random.
    - `stretch` is the factor by which the search lengthened its interval (see judging/intervals.py). It still applies,
      because the parameters were chosen among the trials of that search.
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
    """The trials of a search, and figures about the work of this process.

    - `trials` are the finished trials of all processes, without abandoned ones, and the blend if there is one.
    - `seconds` is the time that this process searched, and `n_orphaned` the number of trials that it abandoned.
    - `workers` is the number of trials that this process trained at once.
    - `by_user` has the scores for each user, (users,), of complete trials of this process, by trial number. Some trials
      are missing if they took too much memory (see `drop_worst_scores`).
    - `trained` is the model of the best trial, trained on the training part of the split. If it is not None, the best
      trial need not be trained again. `evaluation` is its evaluation on all validation users, or None.
    - `reused` is set if there was no search. `trials` then has one trial with the parameters of an earlier search.
    """

    trials: list[TrialRecord]
    seconds: float
    n_orphaned: int
    workers: int = 1
    by_user: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    trained: Scorer | None = None
    evaluation: ModelEvaluation | None = None
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
        """Return the complete trial with the highest score, or the first of several. There must be a complete trial."""
        return next(iter(by_score(self.completed)))

    @property
    def best_per_algorithm(self) -> dict[str, TrialRecord]:
        best: dict[str, TrialRecord] = {}
        for trial in by_score(self.completed):
            best.setdefault(trial.algorithm, trial)
        return best


def by_score(trials: list[TrialRecord]) -> list[TrialRecord]:
    # Of equal scores the earlier trial is first. Numbers do not depend on which trial ended first.
    return sorted(trials, key=lambda trial: (-(trial.score or 0.0), trial.number))
