"""The part of the split that trials train on, and rankers that answer its users as a server would."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.training.data.decay import decay_matrix
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.export import fold_in_users, recency_of_histories, to_history
from svc.training.fitting.train import Matrices
from svc.training.fitting.trial import TrialRecord
from svc.training.judging.evaluator import Evaluator, Evaluators
from svc.training.judging.recency import HistoryOrder
from svc.training.judging.served_ranker import ServedRanker


@dataclass(frozen=True, slots=True, eq=False)
class Holdout:
    """The training part of the split, `train`, and the `evaluators` of its held-out items.

    `features` have rows in the order of `train`. `times` has the entries of `train` if a model depends on them.
    `hidden` has the items that users are not shown. With `repeats`, users may be recommended their items in `train`.
    """

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

    def decay_matrix(self, params: Params) -> sparse.csr_matrix:
        """Return `train` with the decay of the half-life in `params`."""
        return decay_matrix(self.train, self.times, params)

    def ranker_of(self, trained: Scorer, trial: TrialRecord, judged: Evaluator | None = None) -> ServedRanker:
        """Return a ranker of the users of `judged`, or of all validation users, as a server would rank.

        `trained` is the scorer of `trial`, and is not changed.
        """
        matrix, recency = self.decay_matrix(trial.params), recency_of_histories(trial)
        positions = None if recency == 0.0 or self.order is None else self.order.positions
        rows = np.arange(self.evaluators.full.offset, matrix.shape[0])
        if judged is not None:
            rows = judged.offset + judged.evaluated_users
        scorer = _copy(trained)
        scorer.ready()
        fold_in_users(trial, scorer, matrix, positions, features=self.features.get("user"), rows=rows)
        history = to_history(matrix, with_values=True, positions=positions, recency=recency)
        return self.serve_scorer(scorer, history)

    def serve_scorer(self, scorer: Scorer, history: History) -> ServedRanker:
        """Return a ranker that answers like a server with this `scorer` and these histories."""
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


def _copy(scorer: Scorer) -> Scorer:
    """Return a copy that can solve for users without changing the users of `scorer`."""
    copied = copy.copy(scorer)
    if isinstance(copied, BlendScorer):
        copied.factors = copy.copy(copied.factors)
    return copied


@functools.lru_cache(maxsize=4)
def _numbers(count: int) -> IdTable:
    """Return ids for `count` users or items of a model that is only queried by row."""
    return IdTable.from_ids([str(number) for number in range(count)])
