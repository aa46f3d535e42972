"""Measure what only the report of a training shows: the winner at other cutoffs, recencies and values of diversity."""

from __future__ import annotations

from typing import Any

import numpy as np

from svc.model.recommenders.base import Scorer
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.diversity import measure_diversity
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.intervals import intervals
from svc.training.judging.metrics import user_scores
from svc.training.judging.served_ranker import ServedRanker
from svc.training.judging.task import Task

CUTOFFS = (5, 10, 20, 50)
_DIGITS = 12


def measure_curves(task: Task, winner: TrialRecord, ranker: ServedRanker) -> dict[str, Any]:
    """Return fields of the header's evaluation. `ranker` ranks by the `winner`, trained on the training part."""
    training, evaluators = task.loaded.recipe.training, task.holdout.evaluators
    curves = _at_cutoffs(evaluators.full, ranker) | _by_recency(task, winner, ranker.model.scorer)
    if training.report_diversity:
        curves["diversity"] = measure_diversity(ranker, evaluators.sample, seed=training.split.seed)
    return curves


def _at_cutoffs(evaluator: Evaluator, ranker: ServedRanker) -> dict[str, Any]:
    """Return the metrics that are means over users, at each of CUTOFFS, from one ranking of the longest."""
    users = evaluator.evaluated_users
    rankings, truth = ranker(evaluator.offset + users, max(CUTOFFS)), evaluator.heldout[users]
    cutoffs = {}
    for cutoff in CUTOFFS:
        if cutoff <= truth.shape[1]:
            scores = user_scores([ranking[:cutoff] for ranking in rankings], truth)
            cutoffs[str(cutoff)] = {name: round(float(values.mean()), _DIGITS) for name, values in scores.items()}
    return {"cutoffs": cutoffs} if cutoffs else {}


def _by_recency(task: Task, winner: TrialRecord, trained: Scorer) -> dict[str, Any]:
    """Return the winner's score at each recency that was tried, on the sample of users on which it was chosen.

    If the parts of a blend differ in recency, each value is tried for all parts at once. The score with their own
    values is added.
    """
    holdout, order = task.holdout, task.holdout.order
    values = () if order is None else order.values(winner.algorithm)
    if len(values) < 2:
        return {}
    sample = holdout.evaluators.sample
    tried = [winner.at_recency(value) for value in values] + [winner] * winner.recency_by_part
    rankers = [holdout.ranker_of(trained, trial, sample) for trial in tried]
    scores = np.stack([sample.by_user(sample.rankings(ranker), holdout.metric) for ranker in rankers], axis=1)
    spans = intervals(scores, seed=task.loaded.recipe.training.split.seed)
    rows = [
        {"recency": value, "score": round(float(mean), _DIGITS), "interval": [round(end, _DIGITS) for end in span]}
        for value, mean, span in zip([trial.recency for trial in tried], scores.mean(axis=0), spans, strict=True)
    ]
    by_recency = {"n_users": len(scores), "values": rows[: len(values)]}
    if winner.recency_by_part:
        by_recency["by_part"] = {name: rows[-1][name] for name in ("score", "interval")}
    return {"recency": by_recency}
