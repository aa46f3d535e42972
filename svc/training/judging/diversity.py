"""Measure the cost of diversity: the winner's accuracy and the variety of its lists for five values of `diversity`.

The lists come from `svc.model.ranking.rerank.rerank`, the function that also serves requests. Each user's candidates
are ranked once, with ties as in every evaluation, and reranked for each value. With diversity 0, the lists are those of
the evaluation itself. The users are a sample, so that a value costs less than an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranking.rerank import Candidates, Rules, Similar, rerank
from svc.training.judging.evaluator import Evaluator
from svc.training.judging.intervals import interval
from svc.training.judging.metrics import user_scores
from svc.training.judging.served_ranker import ServedRanker

VALUES = (0.0, 0.1, 0.3, 0.5, 0.8)
_DIGITS = 6
_NO_PINS = np.empty(0)

Items = NDArray[np.int32]


@dataclass(slots=True)
class _Lists:
    """The lists of one value: item columns by user, and the mean distance of each list's pairs."""

    rankings: list[list[int]] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def add(self, items: Items, chosen: Sequence[int], to_pool: Similar) -> None:
        self.rankings.append(items[list(chosen)].tolist())
        if len(chosen) > 1:
            similar = np.array([to_pool(position)[list(chosen)] for position in chosen])
            pairs = len(chosen) * (len(chosen) - 1)
            self.distances.append(1.0 - float(similar.sum() - np.trace(similar)) / pairs)


def measure_diversity(ranker: ServedRanker, sample: Evaluator, *, seed: int) -> dict[str, Any]:
    """Return `{"n_users", "values"}`, with a row for each of VALUES.

    A row has its value as `diversity`, and `ndcg` at the cutoff with its `interval`. `distance` is the mean of
    1 − cosine similarity over the pairs of a list. `coverage` is the share of all items that are in at least one list.
    """
    lists_by_value = {value: _Lists() for value in VALUES}
    size = Rules(diversity=1.0).pool(sample.cutoff)
    for items, scores in ranker.pools(sample.offset + sample.evaluated_users, size):
        _rerank_all(items, scores, ranker.model.scorer.similar, sample.cutoff, lists_by_value)
    truth = sample.heldout[sample.evaluated_users]
    rows = [_row(value, lists, truth, seed) for value, lists in lists_by_value.items()]
    return {"n_users": len(sample.evaluated_users), "values": rows}


def _rerank_all(
    items: Items,
    scores: NDArray[np.float64],
    similar: Callable[[Items], Similar],
    cutoff: int,
    lists_by_value: dict[float, _Lists],
) -> None:
    """Rerank one user's candidates with each value. Similarities are computed once for all values."""
    fresh, similarities = similar(items), dict[int, NDArray[np.float64]]()

    def to_pool(position: int) -> NDArray[np.float64]:
        if position not in similarities:
            similarities[position] = fresh(position)
        return similarities[position]

    place_of = {column: position for position, column in enumerate(items.tolist())}
    candidates = Candidates(items, scores, True, lambda: candidates)
    for value, lists in lists_by_value.items():
        shown = rerank(candidates, Rules(diversity=value), cutoff, lambda _: to_pool, _NO_PINS)
        lists.add(items, [place_of[column] for column in shown.items.tolist()], to_pool)


def _row(value: float, lists: _Lists, truth: sparse.csr_matrix, seed: int) -> dict[str, Any]:
    scores = user_scores(lists.rankings, truth)["ndcg"]
    covered = len({item for ranking in lists.rankings for item in ranking})
    return {
        "diversity": value,
        "ndcg": round(float(scores.mean()), _DIGITS),
        "interval": [round(end, _DIGITS) for end in interval(scores, seed=seed)],
        "distance": round(float(np.mean(lists.distances)), _DIGITS) if lists.distances else None,
        "coverage": round(covered / truth.shape[1], _DIGITS),
    }
