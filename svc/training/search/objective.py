"""The objective of a trial: train a recommender with its parameters, and score it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.training.data.decay import decayed
from svc.training.evaluation.evaluator import Evaluator
from svc.training.evaluation.rank_cost import rank_ms_of
from svc.training.evaluation.score_ranker import Scorer as ScoresOfUsers
from svc.training.evaluation.score_ranker import ScoreRanker
from svc.training.evaluation.served_ranker import ServedRanker
from svc.training.fitting.algorithms.registry import ALGORITHMS, Params
from svc.training.fitting.algorithms.self_weight import set_self_weights
from svc.training.fitting.epochs import train
from svc.training.fitting.export import fold_in_users, recency_of_histories, to_history, to_scorer
from svc.training.fitting.train import Builder, Matrices, failures
from svc.training.fitting.trial import TrialRecord
from svc.training.search.fit import Evaluators, Fitted, judge
from svc.training.search.processes.trial_task import TrialPruned
from svc.training.search.quick_scores import QuickScores
from svc.training.search.recency import HistoryOrder, RecencySearch
from svc.training.search.screening import SCREENING_STEP


@dataclass(frozen=True, slots=True, eq=False)
class TrialObjective:
    """Trains on `train` and evaluates with `evaluators`. `features` have rows in the order of `train`.

    `times` has the entries of `train` if a model depends on them. `hidden` has the items that users are not shown. With
    `repeats`, users may be recommended their items in `train`.
    """

    builder: Builder
    train: sparse.csr_matrix
    evaluators: Evaluators
    features: Matrices
    times: sparse.csr_matrix | None = None
    hidden: sparse.csr_matrix | None = None
    order: HistoryOrder | None = None
    repeats: bool = False

    @property
    def metric(self) -> str:
        return self.evaluators.metric

    @property
    def seen(self) -> sparse.csr_matrix:
        """Return the matrix of items that are not recommended to the users of `train`."""
        if self.repeats:
            return sparse.csr_matrix(self.train.shape, dtype=np.float32) if self.hidden is None else self.hidden
        return self.train if self.hidden is None else (self.train + self.hidden).tocsr()

    def decayed(self, params: Params) -> sparse.csr_matrix:
        """Return `train` with the decay of the half-life in `params`."""
        return decayed(self.train, self.times, params)

    def quick_scores(self, scorer: Scorer, params: Params) -> QuickScores:
        """Return the scores of the histories of `train` by a trained scorer, for comparisons within the search."""
        positions = None if self.order is None else self.order.positions
        return QuickScores(scorer, self.decayed(params), positions, self.features.get("user"))

    def quick_ranker(self, scores: ScoresOfUsers) -> ScoreRanker:
        """Return the ranker by `scores` that leaves out what users of `train` may not be shown."""
        return ScoreRanker(scores, self.seen)

    def ranker_of(self, trained: Scorer, trial: TrialRecord, judged: Evaluator | None = None) -> ServedRanker:
        """Return a ranker of the users of `judged`, or of all validation users, by the model of `trial`.

        It answers like a server.
        """
        matrix, recency = self.decayed(trial.params), recency_of_histories(trial)
        positions = None if recency == 0.0 or self.order is None else self.order.positions
        rows = np.arange(self.evaluators.full.offset, matrix.shape[0])
        if judged is not None:
            rows = judged.offset + judged.evaluated_users
        scorer = _copied(trained)
        scorer.ready()
        fold_in_users(trial, scorer, matrix, positions, features=self.features.get("user"), rows=rows)
        history = to_history(matrix, with_values=True, positions=positions, recency=recency)
        return self._served(scorer, history)

    def _served(self, scorer: Scorer, history: History) -> ServedRanker:
        model = Model(
            user_ids=_numbers(len(history)),
            item_ids=_numbers(scorer.n_items),
            history=history,
            scorer=scorer,
            features=None,
            hidden=None if self.hidden is None else to_history(self.hidden, with_values=True),
            repeats=self.repeats,
        )
        model.ready()
        return ServedRanker.alike(model)

    def _score_epoch(self, recommender: Any, *, algorithm: str, history: History) -> float:
        """Return the score of an epoch, by the user vectors of the training.

        Solving for these users exactly takes longer than an epoch.
        """
        quick = self.evaluators.quick
        return quick.score(quick.rankings(self._served(to_scorer(recommender, algorithm), history)), self.metric)

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        matrix, epochs = self.decayed(params), ALGORITHMS[algorithm].epochs
        try:
            recommender = self.builder.build(algorithm, matrix, params, self.features, self.times)
            history = to_history(matrix, with_values=True)
            score = partial(self._score_epoch, algorithm=algorithm, history=history)
            best_epoch = train(recommender, epochs, score=score, check=check, report=report)
            set_self_weights(recommender, params)
        except failures(algorithm) as error:
            raise TrialPruned(str(error)) from error
        scorer = to_scorer(recommender, algorithm)
        scores = self.quick_scores(scorer, params)
        values = () if self.order is None else self.order.values(algorithm)
        search = RecencySearch(values or (0.0,), lambda recency: self.quick_ranker(scores.at(recency)))

        def screened(score: float) -> None:
            if epochs is None:
                report(SCREENING_STEP, score)

        fitted = judge(search, self.evaluators, check, screened)
        return replace(fitted, epochs=best_epoch, rank_ms=rank_ms_of(scorer, matrix))


def _copied(scorer: Scorer) -> Scorer:
    """Return a copy that can solve for users without changing those of `scorer`."""
    copied = copy.copy(scorer)
    if isinstance(copied, BlendScorer):
        copied.factors = copy.copy(copied.factors)
    return copied


@functools.lru_cache(maxsize=4)
def _numbers(count: int) -> IdTable:
    """Return ids for `count` users or items of a model that is never asked by id."""
    return IdTable.from_ids([str(number) for number in range(count)])
