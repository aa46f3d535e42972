"""The objective of a trial: train a recommender with its parameters, and score it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from svc.model.history import History
from svc.model.recommenders.base import Scorer
from svc.training.fitting.algorithms.registry import ALGORITHMS, Params
from svc.training.fitting.algorithms.self_weight import set_self_weights
from svc.training.fitting.epochs import train
from svc.training.fitting.export import to_history, to_scorer
from svc.training.fitting.train import Builder, failures
from svc.training.judging.rankers import ScoreRanker, ScoresOfUsers, rank_ms_of
from svc.training.judging.recency import Fitted, RecencySearch, judge
from svc.training.judging.task import Holdout
from svc.training.search.processes.trial_task import TrialPruned
from svc.training.search.quick_scores import QuickScores
from svc.training.search.screening import SCREENING_STEP


@dataclass(frozen=True, slots=True, eq=False)
class TrialObjective:
    """Trains models of `builder` on the training part of `holdout`, and scores them on its held-out items."""

    builder: Builder
    holdout: Holdout

    def quick_scores(self, scorer: Scorer, params: Params) -> QuickScores:
        """Return the scores of all users by a trained scorer, for comparisons within the search."""
        positions = None if self.holdout.order is None else self.holdout.order.positions
        return QuickScores(scorer, self.holdout.decay_matrix(params), positions, self.holdout.features.get("user"))

    def quick_ranker(self, scores: ScoresOfUsers) -> ScoreRanker:
        """Return the ranker by `scores`, without items that a user may not be shown."""
        return ScoreRanker(scores, self.holdout.seen)

    def _score_epoch(self, recommender: Any, *, algorithm: str, history: History) -> float:
        """Return the score of an epoch, by the user vectors of the training.

        Solving for these users exactly takes longer than an epoch.
        """
        sample = self.holdout.evaluators.sample
        ranker = self.holdout.serve_scorer(to_scorer(recommender, algorithm), history)
        return float(sample.by_user(sample.rankings(ranker), self.holdout.metric).mean())

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        holdout, epochs = self.holdout, ALGORITHMS[algorithm].epochs
        matrix = holdout.decay_matrix(params)
        try:
            recommender = self.builder.build(algorithm, matrix, params, holdout.features, holdout.times)
            history = to_history(matrix, with_values=True)
            score = partial(self._score_epoch, algorithm=algorithm, history=history)
            best_epoch = train(recommender, epochs, score=score, check=check, report=report)
            set_self_weights(recommender, params)
        except failures(algorithm) as error:
            raise TrialPruned(str(error)) from error
        scorer = to_scorer(recommender, algorithm)
        scores = self.quick_scores(scorer, params)
        values = () if holdout.order is None else holdout.order.values(algorithm)
        search = RecencySearch(values or (0.0,), lambda recency: self.quick_ranker(scores.at(recency)))

        def screened(score: float) -> None:
            if epochs is None:
                report(SCREENING_STEP, score)

        fitted = judge(search, holdout.evaluators, check, screened)
        return replace(fitted, epochs=best_epoch, rank_ms=rank_ms_of(scorer, matrix))
