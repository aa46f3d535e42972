"""Measure the winner of a search at several cutoffs, recencies and values of diversity, for the report of a training.

Lists with diversity come from `svc.model.ranking.rerank.rerank`, the function that also serves requests. Each user's
candidates are ranked once and reranked for each value of diversity. With diversity 0, the lists equal those of the
evaluation. Diversity is measured on a sample of users, so that a value takes less time than an evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranking.rerank import Candidates, CompareItems, Rules, Similar, rerank
from svc.model.ranking.steps import Steps, result_of
from svc.model.recommenders.base import Scorer
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import DIGITS, Evaluator
from svc.training.judging.intervals import interval, intervals
from svc.training.judging.metrics import user_scores
from svc.training.judging.rankers import ServedRanker
from svc.training.judging.task import Task

VALUES = (0.0, 0.1, 0.3, 0.5, 0.8)
"""The values of diversity to measure."""
_DIVERSITY_DIGITS = 6
_NO_PINS = np.empty(0)

Items = NDArray[np.int32]


Reranked = tuple[list[int], float | None]
"""The item columns of a list, and the mean distance between its items, or None if it has fewer than two."""


def measure_diversity(ranker: ServedRanker, sample: Evaluator, *, seed: int) -> dict[str, Any]:
    """Return the effect of diversity on the users of `sample`, as `{"n_users": ..., "values": [...]}` for the header.

    `values` has a row for each of VALUES, with these fields:

    - `diversity` is the value, and `ndcg` the score at the cutoff with its `interval`.
    - `distance` is 1 − cosine similarity, as a mean over the pairs of items in a list and then over lists. It is None
      if no list has two items.
    - `coverage` is the share of all items that are in at least one list.
    """
    pools = ranker.pools(sample.offset + sample.evaluated_users, Rules(diversity=1.0).pool(sample.cutoff))
    by_user = [_rerank_all(items, scores, ranker.model.scorer.similar, sample.cutoff) for items, scores in pools]
    truth = sample.heldout[sample.evaluated_users]
    rows = [_row(value, lists, truth, seed) for value, lists in zip(VALUES, zip(*by_user, strict=True), strict=True)]
    return {"n_users": len(sample.evaluated_users), "values": rows}


def _rerank_all(items: Items, scores: NDArray[np.float64], similar: CompareItems, cutoff: int) -> list[Reranked]:
    """Return the list of one user with each of VALUES.

    `items` and `scores` are the candidates, best first. Similarities are computed once for all values.
    """
    fresh, similarities = result_of(similar(items)), dict[int, NDArray[np.float64]]()

    def to_pool(position: int) -> NDArray[np.float64]:
        if position not in similarities:
            similarities[position] = fresh(position)
        return similarities[position]

    def compare(_: Items) -> Steps[Similar]:
        yield
        return to_pool

    place_of = {column: position for position, column in enumerate(items.tolist())}
    candidates = Candidates(items, scores, True, lambda: candidates)
    shown = (rerank(candidates, Rules(diversity=value), cutoff, compare, _NO_PINS).items.tolist() for value in VALUES)
    return [(columns, _distance([place_of[column] for column in columns], to_pool)) for columns in shown]


def _distance(chosen: list[int], to_pool: Similar) -> float | None:
    """Return the mean distance between the candidates at the positions `chosen`, or None for fewer than two."""
    pairs = len(chosen) * (len(chosen) - 1)
    if not pairs:
        return None
    similar = np.array([to_pool(position)[chosen] for position in chosen])
    # Without the diagonal, in which each item is compared with itself.
    return 1.0 - float(similar.sum() - np.trace(similar)) / pairs


def _row(value: float, lists: Sequence[Reranked], truth: sparse.csr_matrix, seed: int) -> dict[str, Any]:
    rankings = [ranking for ranking, _ in lists]
    distances = [distance for _, distance in lists if distance is not None]
    scores = user_scores(rankings, truth)["ndcg"]
    covered = len({item for ranking in rankings for item in ranking})
    return {
        "diversity": value,
        "ndcg": round(float(scores.mean()), _DIVERSITY_DIGITS),
        "interval": [round(end, _DIVERSITY_DIGITS) for end in interval(scores, seed=seed)],
        "distance": round(float(np.mean(distances)), _DIVERSITY_DIGITS) if distances else None,
        "coverage": round(covered / truth.shape[1], _DIVERSITY_DIGITS),
    }


CUTOFFS = (5, 10, 20, 50)
"""The cutoffs to measure, whatever the cutoff of the recipe is."""


def measure_curves(task: Task, winner: TrialRecord, ranker: ServedRanker) -> dict[str, Any]:
    """Return the fields `cutoffs`, `recency` and `diversity` of the header's evaluation.

    `cutoffs` is missing if there are fewer items than in the shortest list, and `recency` if no second value was
    searched. `ranker` ranks by the `winner`, trained on the training part of the split.
    """
    seed, evaluators = task.loaded.recipe.training.split.seed, task.holdout.evaluators
    diversity = {"diversity": measure_diversity(ranker, evaluators.sample, seed=seed)}
    return _at_cutoffs(evaluators.full, ranker) | _by_recency(task, winner, ranker.model.scorer) | diversity


def _at_cutoffs(evaluator: Evaluator, ranker: ServedRanker) -> dict[str, Any]:
    """Return the means of PER_USER at each of CUTOFFS that does not exceed the number of items.

    Items are ranked once for each user, for the longest list.
    """
    users = evaluator.evaluated_users
    # A shorter list is the beginning of a longer one, so one ranking serves all cutoffs.
    rankings, truth = ranker(evaluator.offset + users, max(CUTOFFS)), evaluator.heldout[users]
    cutoffs = {}
    for cutoff in CUTOFFS:
        if cutoff <= truth.shape[1]:
            scores = user_scores([ranking[:cutoff] for ranking in rankings], truth)
            cutoffs[str(cutoff)] = {name: round(float(values.mean()), DIGITS) for name, values in scores.items()}
    return {"cutoffs": cutoffs} if cutoffs else {}


def _by_recency(task: Task, winner: TrialRecord, trained: Scorer) -> dict[str, Any]:
    """Return the winner's score at each recency of its search, on the sample of validation users.

    Return nothing if there are fewer than two values to try.
    """
    holdout, order = task.holdout, task.holdout.order
    values = () if order is None else order.values(winner.algorithm)
    if len(values) < 2:
        return {}
    sample = holdout.evaluators.sample
    rankers = [holdout.ranker_of(trained, replace(winner, recency=value), sample) for value in values]
    scores = np.stack([sample.by_user(sample.rankings(ranker), holdout.metric) for ranker in rankers], axis=1)
    spans = intervals(scores, seed=task.loaded.recipe.training.split.seed)
    rows = [
        {"recency": value, "score": round(float(mean), DIGITS), "interval": [round(end, DIGITS) for end in span]}
        for value, mean, span in zip(values, scores.mean(axis=0), spans, strict=True)
    ]
    return {"recency": {"n_users": len(scores), "values": rows}}
