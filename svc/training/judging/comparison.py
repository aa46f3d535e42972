"""Compare the new model with another one on the same held-out users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from scipy import sparse

from svc.training.judging.baselines import ComparedModel
from svc.training.judging.choice import Choice
from svc.training.judging.evaluator import Evaluator, Rankings, Rows
from svc.training.judging.intervals import paired_change
from svc.training.judging.task import Task

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of the new model and another one by the recipe's metric. `change` and its interval are relative.

    `coverage` has for both models the share of the items that stand in at least one evaluated user's list.
    """

    name: str
    candidate: float
    other: float
    change: float
    interval: tuple[float, float]
    n_users: int
    scored: Literal["live", "refitted"]
    coverage: tuple[float, float]

    def as_fields(self) -> dict[str, Any]:
        """Return the fields of the artifact's header."""
        return {
            "name": self.name,
            "candidate": round_value(self.candidate),
            "other": round_value(self.other),
            "change": round_value(self.change),
            "interval": [round_value(end) for end in self.interval],
            "n_users": self.n_users,
            "scored": self.scored,
        }


class ExcludingRanker(Protocol):
    """A ranker of the rows of a split that can leave out more items."""

    def __call__(self, users: Rows, size: int) -> Rankings: ...
    def excluding(self, pairs: sparse.csr_matrix) -> ExcludingRanker: ...


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """The new model, trained on the training part of the split.

    `rank_ms` is the ranking time of the final model, which was trained on all data. `choice` has the trials that the
    winner was chosen from, scored on the validation users, or None if these scores are missing.
    """

    ranker: ExcludingRanker
    rank_ms: float
    choice: Choice | None = None

    def choice_by(self, task: Task, evaluator: Evaluator) -> Choice | None:
        """Return the choice on the users of `evaluator`, or None for test users, on whom nothing was chosen."""
        if self.choice is None or task.split.test is not None:
            return None
        return self.choice.of_users(
            np.flatnonzero(np.isin(task.holdout.evaluators.full.evaluated_users, evaluator.evaluated_users))
        )


def compare(task: Task, candidate: Candidate, compared: ComparedModel, confidence: float) -> Comparison:
    """Evaluate the candidate and the compared model on the same users."""
    ranker = candidate.ranker if compared.excluded is None else candidate.ranker.excluding(compared.excluded)
    own, other = compared.evaluator.evaluate(ranker), compared.evaluator.evaluate(compared.ranker)
    first, second = own.by_user(task.holdout.metric), other.by_user(task.holdout.metric)
    seed = task.loaded.recipe.training.seed
    choice = candidate.choice_by(task, compared.evaluator)
    change = paired_change(first, second, seed=seed, confidence=confidence, relative=True, choice=choice)
    return Comparison(
        name=compared.name,
        candidate=float(first.mean()),
        other=float(second.mean()),
        change=change.value,
        interval=(change.low, change.high),
        n_users=len(first),
        scored=compared.scored,
        coverage=(own.metrics["catalog_coverage"], other.metrics["catalog_coverage"]),
    )


def round_value(value: float) -> float:
    return value if isinstance(value, int) else round(value, _DIGITS)
