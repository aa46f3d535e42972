"""Scores users by their histories, whose items may be weighed by recency, with a model that was trained without it.

Least squares is scored by the solver that is served, so that what is judged is what is served. A projection is the same
sum as in the scorer, taken for all users at once, which costs less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.data.recency import weighed
from svc.training.data.user_sample import solved
from svc.training.evaluation.evaluator import Rows
from svc.training.evaluation.factors import ials_scorer
from svc.training.evaluation.score_ranker import Scorer, Scores

_DENSE_FROM = 8
"""Item weights of which one in so many is not zero are added up faster by whole rows."""

Score = Callable[[Rows, sparse.csr_matrix], Scores]


def scorer_of(recommender: Any) -> Scorer:
    """Scores by `recommender`, a trained irspack object, with the vectors that training gave to its users."""
    trainer = getattr(recommender, "trainer", None)
    if hasattr(trainer, "core_trainer"):
        users, items = recommender.get_user_embedding(), recommender.get_item_embedding()
        return lambda rows: users[rows] @ items.T
    if hasattr(recommender, "score_"):
        return lambda rows: np.repeat(recommender.score, len(rows), axis=0)
    scorer: Scorer = recommender.get_score
    return scorer


class HistoryScores:
    """Scores users by their histories alone. Made once for a trained `recommender`, then asked at several recencies.

    `matrix`, (users, items), is what it was trained on, `positions` those of its entries (None where only a recency of
    0 is asked for), and `features`, (users, F), those of the users where the model has learned from some.
    """

    def __init__(
        self,
        recommender: Any,
        matrix: sparse.csr_matrix,
        positions: sparse.csr_matrix | None,
        features: sparse.csr_matrix | None,
    ) -> None:
        self._matrix = matrix
        self._positions = positions
        weights = getattr(recommender, "_W", None)
        if weights is not None:
            self._score = _by_weights(weights)
        elif hasattr(recommender, "trainer_as_ials"):
            self._score = _by_least_squares(recommender, features)
        else:
            self._score = _by_projection(recommender)

    def at(self, recency: float) -> Scorer:
        if not recency:
            return lambda rows: self._score(rows, self._matrix[rows])
        positions = self._positions
        assert positions is not None, "only ordered histories can be weighed"
        return lambda rows: self._score(rows, weighed(self._matrix, positions, recency, rows))


def _by_weights(weights: Any) -> Score:
    """Item weights in row order, whatever order training left them in: a history then reads whole rows.

    They are in float32, in which they are served: the product takes half of the time.
    """
    if sparse.issparse(weights):
        by_row = weights.tocsr().astype(np.float32)
        if by_row.nnz * _DENSE_FROM < math.prod(by_row.shape):
            return lambda _rows, histories: (histories.astype(np.float32) @ by_row).toarray()
        weights = by_row.toarray()
    dense = np.ascontiguousarray(weights, dtype=np.float32)
    return lambda _rows, histories: np.asarray(histories.astype(np.float32) @ dense)


def _by_projection(recommender: Any) -> Score:
    """In the precision of the training: that of a model of nearly all directions needs float64."""
    items = np.ascontiguousarray(recommender.items_)
    projection = items.astype(np.float64) * recommender.history_scales_[:, np.newaxis]
    return lambda _rows, histories: np.asarray((histories @ projection).astype(items.dtype) @ items.T)


def _by_least_squares(recommender: Any, features: sparse.csr_matrix | None) -> Score:
    served = ials_scorer(recommender)
    served.ready()
    items: NDArray[np.float32] = np.ascontiguousarray(recommender.get_item_embedding(), dtype=np.float32)
    if served.least_squares.user_weights is None:
        features = None

    def score(rows: Rows, histories: sparse.csr_matrix) -> Scores:
        of_users = None if features is None else features[rows]
        vectors = solved(served, histories, np.arange(len(rows)), of_users)
        return np.asarray(vectors.astype(np.float32) @ items.T)

    return score
