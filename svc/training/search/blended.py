"""A blend during training: the weighted sum of the scores of trained recommenders, each divided by its deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from svc.training.evaluation.evaluator import Rows
from svc.training.evaluation.score_ranker import Scorer, Scores
from svc.training.search.trials import TrialRecord

_ROWS_AT_ONCE = 16
FACTORS = ("IALSRecommender", "TruncatedSVDRecommender")


class BlendedRecommender:
    """A trained blend in the form that the export reads: its parts, their trials and weights.

    `trial` is the one of the blend, `trained` the recommenders of its parts, in its order.
    """

    def __init__(self, trained: Sequence[Any], trial: TrialRecord) -> None:
        self.trained = list(trained)
        self.trials = trial.parts
        self.weights: list[float] = list(trial.params["weights"].values())

    def by(self, scorers: Sequence[Scorer]) -> Scorer:
        """The scorer of a blend whose parts score by these `scorers`."""
        return lambda rows: weighted(standardized(scorers, rows), self.weights)


def standardized(scorers: Sequence[Scorer], rows: Rows) -> list[Scores]:
    """Each part's float32 scores of these users, divided by their deviation over all items; 0 where that is 0."""
    standardized_scores = []
    for scorer in scorers:
        scores = np.asarray(scorer(rows), dtype=np.float32)
        deviations = _deviations(scores)[:, np.newaxis]
        scale = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
        standardized_scores.append(scores * scale.astype(np.float32))
    return standardized_scores


def _deviations(scores: Scores) -> Scores:
    """(rows,) float64 deviations, of a few rows at a time: numpy computes them by float64 copies."""
    parts = [scores[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(scores), _ROWS_AT_ONCE)]
    return np.concatenate([part.std(axis=1, dtype=np.float64) for part in parts])


def weighted(parts: Sequence[Scores], weights: Sequence[float]) -> Scores:
    """Σ weight · part, a new array."""
    total = parts[0] * np.float32(weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total += part * np.float32(weight)
    return total
