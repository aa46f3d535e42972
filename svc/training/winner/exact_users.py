"""Whether known users are served by exact solves of their histories, or by the vectors that training left them with.

Alternating least squares stops after a number of epochs, and irspack's solver after a number of steps, so the vector
that a user ends with is not the solution for the user's history. A request with `history`, and `explain`, are
answered by the exact solution (Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM
2008, equation 4). Where exact solves of all users score no lower on the holdout, they are what is served, so that all
three answers agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from svc.training.search.prepare import Task
from svc.training.search.trials import TrialRecord

_DIGITS = 12


@dataclass(frozen=True, slots=True)
class ExactUsers:
    """`overlap` is the mean share of a user's list that both kinds of vectors have in common.

    The scores are those of the recipe's metric on the same `n_users` validation users.
    """

    overlap: float
    trained_score: float
    exact_score: float
    n_users: int

    @property
    def are_served(self) -> bool:
        return self.exact_score >= self.trained_score

    def described(self) -> dict[str, Any]:
        """As it stands in the header's `evaluation`."""
        return {
            "refit_overlap": round(self.overlap, _DIGITS),
            "exact_users": {
                "served": self.are_served,
                "score": round(self.exact_score, _DIGITS),
                "trained_score": round(self.trained_score, _DIGITS),
                "n_users": self.n_users,
            },
        }


def measure_exact_users(task: Task, winner: TrialRecord, trained: Any) -> ExactUsers | None:
    """Compare both kinds of vectors on a sample of the validation users, with `trained`, the model of `winner`.

    None for a model without least squares, and for one that weighs histories by recency: its users are solved exactly
    anyway.
    """
    objective = task.objective
    exact = objective.exact_scorer(trained, winner)
    if exact is None:
        return None
    sample, metric = objective.evaluators.quick, objective.metric
    by_trained = sample.evaluate(objective.scorer(trained, winner), objective.seen)
    by_exact = sample.evaluate(exact, objective.seen)
    overlaps = [
        len(set(first) & set(second)) / max(len(first), 1)
        for first, second in zip(by_trained.rankings, by_exact.rankings, strict=True)
    ]
    return ExactUsers(
        float(np.mean(overlaps)), by_trained.metrics[metric], by_exact.metrics[metric], len(by_trained.rankings)
    )
