"""The objective of a search: train a recommender with the parameters of a trial, and score it on held-out items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.history import History
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factors import BPRScorer, FactorScorer, IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer
from svc.training.data.user_sample import solve_rows
from svc.training.data.weights import weigh_rows
from svc.training.fitting.algorithms.registry import ALGORITHMS, Params
from svc.training.fitting.export import to_history, to_scorer
from svc.training.fitting.train import Builder, failures, set_self_weights, train_to_best_epoch
from svc.training.judging.evaluator import Rows
from svc.training.judging.rankers import ScoreRanker, Scores, ScoresOfUsers, rank_ms
from svc.training.judging.recency import Fitted, RecencySearch, judge
from svc.training.judging.task import Holdout
from svc.training.search.trial_task import SCREENING_STEP, TrialPruned


@dataclass(frozen=True, slots=True, eq=False)
class TrialObjective:
    """Trains models of `builder` on the training part of `holdout`, and scores them on its held-out items."""

    builder: Builder
    holdout: Holdout

    def quick_scores(self, scorer: Scorer, params: Params) -> Callable[[float], ScoresOfUsers]:
        """Return a function of a recency that returns fast scores by a trained `scorer` for many users at once.

        Histories are weighted by the recency and with the half-life in `params`. User features are used only if the
        model has learned from them.

        A search compares trials and blends by these scores, because a search by served rankings takes longer: 18
        instead of 9 s for 12 trials and a blend on 20,000 sessions, and 11.0 instead of 10.4 s on film ratings. The
        scores equal the served ones up to float32 rounding. The best trial is evaluated as it is served.
        """
        matrix, order = self.holdout.decay_matrix(params), self.holdout.order
        score = _score_of(scorer, self.holdout.features.get("user"))

        def at(recency: float) -> ScoresOfUsers:
            if not recency:
                return lambda rows: score(rows, matrix[rows])
            assert order is not None, "only ordered histories can be weighed"
            return lambda rows: score(rows, weigh_rows(matrix, order.positions, recency, rows))

        return at

    def _score_epoch(self, recommender: Any, *, algorithm: str, history: History) -> float:
        """Return the score on the sample of validation users after an epoch, with the user vectors of the training.

        A server solves for user vectors exactly, but here this would take longer than an epoch.
        """
        sample = self.holdout.evaluators.sample
        ranker = self.holdout.serve_scorer(to_scorer(recommender, algorithm), history)
        return float(sample.by_user(sample.rankings(ranker), self.holdout.metric).mean())

    def __call__(self, algorithm: str, params: Params, report: Callable[[int, float], None]) -> Fitted:
        holdout, epochs = self.holdout, ALGORITHMS[algorithm].epochs
        matrix = holdout.decay_matrix(params)
        try:
            recommender = self.builder.build(algorithm, matrix, params, holdout.features, holdout.times)
            history = to_history(matrix, seen=holdout.seen_choices)
            score = partial(self._score_epoch, algorithm=algorithm, history=history)
            best_epoch = train_to_best_epoch(recommender, epochs, score=score, report=report)
            set_self_weights(recommender, params)
        except failures(algorithm) as error:
            raise TrialPruned(str(error)) from error
        scorer = to_scorer(recommender, algorithm)
        scores = self.quick_scores(scorer, params)
        values = () if holdout.order is None else holdout.order.values(algorithm)
        search = RecencySearch(values or (0.0,), lambda recency: ScoreRanker(scores(recency), holdout.seen))

        def screened(score: float) -> None:
            if epochs is None:
                report(SCREENING_STEP, score)

        fitted = judge(search, holdout.evaluators, screened)
        served = holdout.serve_scorer(scorer, history)
        return replace(fitted, epochs=best_epoch, rank_ms=rank_ms(served.model))


_DENSE_FROM = 8
"""A matrix of item weights is multiplied faster as a dense one if at least one in eight entries is not zero."""
_ROWS_AT_ONCE = 16
"""Rows of scores to read at once, few enough to stay in the cache of a core."""

Score = Callable[[Rows, sparse.csr_matrix], Scores]
"""A function of users, (b,), and their histories, (b, items), that returns the scores of all items, (b, items)."""


def _score_of(scorer: Scorer, features: sparse.csr_matrix | None) -> Score:
    if isinstance(scorer, NeighbourScorer):
        shape = (scorer.n_items, scorer.n_items)
        weights = sparse.csr_matrix((scorer.weights, scorer.columns, scorer.offsets), shape=shape)
        if weights.nnz * _DENSE_FROM < shape[0] * shape[1]:
            return lambda _, histories: (histories.astype(np.float32) @ weights).toarray()
        return _by_weights(weights.toarray())
    if isinstance(scorer, DenseWeightsScorer):
        return _by_weights(scorer.weights)
    if isinstance(scorer, PopularityScorer):
        # A row for each user, and not one row for all, because rankers overwrite the scores of seen items.
        return lambda rows, _: np.tile(scorer.scores, (len(rows), 1))
    assert isinstance(scorer, FactorScorer), "these are all families but blends"
    return _by_factors(scorer, features)


def _by_weights(weights: NDArray[np.float32]) -> Score:
    return lambda _, histories: np.asarray(histories.astype(np.float32) @ weights)


def _by_factors(scorer: FactorScorer, features: sparse.csr_matrix | None) -> Score:
    """Return the function that scores by the inner products of user vectors and item vectors.

    The user vectors of BPR are learned, those of SVD are a projection of the history, and those of iALS are solved for
    in the same way as by a server.
    """
    scorer.ready()
    items = scorer.index.vectors(np.arange(scorer.n_items, dtype=np.int32)).astype(np.float32)
    if isinstance(scorer, BPRScorer):
        return lambda rows, _: scorer.users[rows] @ items[:, :-1].T + items[:, -1]
    if isinstance(scorer, SVDScorer):
        projection = items.astype(np.float64)
        if scorer.scales is not None:
            projection *= scorer.scales[:, np.newaxis]
        # One sparse product for all users: the screening of recencies on 100,000 film ratings takes 0.34 instead of
        # 0.53 s.
        return lambda _, histories: np.asarray((histories @ projection).astype(np.float32) @ items.T)
    if not isinstance(scorer, IALSScorer) or scorer.least_squares.user_weights is None:
        features = None

    def score(rows: Rows, histories: sparse.csr_matrix) -> Scores:
        of_users = None if features is None else features[rows]
        vectors = solve_rows(scorer, histories, np.arange(len(rows)), of_users)
        return np.asarray(vectors.astype(np.float32) @ items.T)

    return score


def standardize_scores(scorers: Sequence[ScoresOfUsers], rows: Rows) -> list[Scores]:
    """Return the scores of users `rows` by each of `scorers`, divided by their standard deviation over all items.

    This makes the parts of a blend comparable, which have different scales. If all scores of a user are equal, they
    become 0.
    """
    standardized_scores = []
    for scorer in scorers:
        scores = np.asarray(scorer(rows), dtype=np.float32)
        deviations = _deviations(scores)[:, np.newaxis]
        scale = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
        standardized_scores.append(scores * scale.astype(np.float32))
    return standardized_scores


def _deviations(scores: Scores) -> Scores:
    """Return the standard deviation of each row of `scores`, (rows,), in float64.

    A few rows are read at a time, because numpy copies them to float64.
    """
    parts = [scores[begin : begin + _ROWS_AT_ONCE] for begin in range(0, len(scores), _ROWS_AT_ONCE)]
    return np.concatenate([part.std(axis=1, dtype=np.float64) for part in parts])


def weighted_sum(parts: Sequence[Scores], weights: Sequence[float]) -> Scores:
    """Return the sum of each part times its weight, as a new array."""
    total = parts[0] * np.float32(weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total += part * np.float32(weight)
    return total
