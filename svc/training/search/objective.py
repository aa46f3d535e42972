"""The objective of a trial: build a recommender with its parameters, train it, and score it."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.recipe.algorithms import LEAST_SQUARES, SELF_WEIGHT
from svc.training.algorithms.registry import ALGORITHMS, Params
from svc.training.algorithms.self_weight import set_self_weights
from svc.training.data.decay import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE, decayed
from svc.training.data.features import SideName
from svc.training.evaluation.evaluator import Evaluator
from svc.training.evaluation.factors import AS_TRAINED, Columns
from svc.training.evaluation.rank_cost import rank_ms_of
from svc.training.evaluation.score_ranker import Scorer as ScoresOfUsers
from svc.training.evaluation.score_ranker import ScoreRanker
from svc.training.evaluation.served_ranker import ServedRanker
from svc.training.search.fit import Evaluators, Fitted, judge, train, train_epochs
from svc.training.search.processes.trial_task import TrialPruned
from svc.training.search.quick_scores import QuickScores
from svc.training.search.recency import HistoryOrder, RecencySearch
from svc.training.search.run_in_thread import run_in_thread
from svc.training.search.screening import SCREENING_STEP
from svc.training.search.served import blended, fold_in_users, recency_of_histories, to_history, to_scorer
from svc.training.search.trials import TrialRecord
from svc.training.search.warm_start import WarmStart

Matrices = Mapping[SideName, sparse.csr_matrix]
_DENSE_COPIES = 4


@dataclass(frozen=True, slots=True)
class Threads:
    """Numbers of threads for irspack.

    `exact` is for trainings with results that depend on the number in their last bits, `free` for all others.
    """

    exact: int
    free: int

    @classmethod
    def choose(cls, wanted: int | None, *, available: int) -> Threads:
        """Return the user's `wanted` number for both, else 1 for `exact` and all `available` ones for `free`.

        iALS, BPR and SLIM add floats in the order in which threads finish.
        """
        return cls(exact=wanted or 1, free=wanted or available)


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """Makes untrained recommenders, with everything fixed but the parameters of a trial."""

    seed: int
    threads: Threads

    def build(
        self,
        name: str,
        matrix: sparse.csr_matrix,
        params: Params,
        features: Matrices,
        times: sparse.csr_matrix | None = None,
    ) -> Any:
        """Return an untrained recommender over `matrix`, (users, items), whose decay has been applied.

        `features`, and `times` with the entries of `matrix`, are passed to algorithms that accept them.
        """
        algorithm = ALGORITHMS[name]
        fixed: Params = {}
        if algorithm.seed:
            fixed[algorithm.seed] = self.seed & 0x7FFFFFFF
        if algorithm.threads:
            fixed[algorithm.threads] = self.threads.exact if algorithm.threads_change_bits else self.threads.free
        if algorithm.takes_features:
            fixed.update({f"{side}_features": encoded for side, encoded in features.items()})
        if algorithm.takes_times:
            fixed["times"] = times
        matrix = decayed(matrix, times, {HALF_LIFE: params.get(POPULARITY_HALF_LIFE, NO_DECAY)})
        own = {
            name: value for name, value in params.items() if name not in {HALF_LIFE, SELF_WEIGHT, POPULARITY_HALF_LIFE}
        }
        return algorithm.irspack_class(matrix, **own, **fixed)


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

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        matrix, epochs = self.decayed(params), ALGORITHMS[algorithm].epochs
        try:
            recommender = self.builder.build(algorithm, matrix, params, self.features, self.times)
            history = to_history(matrix, with_values=True)
            best_epoch = train(
                recommender,
                epochs,
                self.evaluators,
                between=lambda trained: self._served(to_scorer(trained, algorithm), history),
                check=check,
                report=report,
            )
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


def train_trial(
    builder: Builder,
    trial: TrialRecord,
    matrix: sparse.csr_matrix,
    features: Matrices,
    times: sparse.csr_matrix | None = None,
    *,
    start: WarmStart | None = None,
    columns: Columns = AS_TRAINED,
) -> Scorer:
    """Train on all data for the trial's best number of epochs, or for fewer epochs of iALS from a `start`.

    The items of the scorer are in the order of `columns`. Raise FeatureRidgeFailed if the weights of its features
    cannot be solved for.
    """
    name = trial.algorithm
    if trial.parts:
        parts = [
            train_trial(builder, part, matrix, features, times, start=start, columns=columns) for part in trial.parts
        ]
        return blended(parts, trial)
    recommender = builder.build(name, matrix, trial.params, features, times)
    try:
        placed = start if name == LEAST_SQUARES else None
        run_in_thread(lambda: train_epochs(recommender, trial.epochs, placed))
    except failures(name) as error:
        raise FeatureRidgeFailed(
            f"the final training of {name} failed: the system for its feature weights is singular in floating point "
            f"({error}). Raise min_frequency of the feature columns so that rare values are left out."
        ) from error
    set_self_weights(recommender, trial.params)
    return to_scorer(recommender, name, columns)


def failures(name: str) -> tuple[type[Exception], ...]:
    """Return the errors that irspack raises if algorithm `name` cannot be trained with some parameters."""
    errors: tuple[type[Exception], ...] = ALGORITHMS[name].irspack_class.optuna_trial_failure_exceptions
    return errors


def solves_for_all_items(name: str) -> bool:
    """Return whether training an algorithm inverts a dense matrix of all items."""
    return ALGORITHMS[name].needs_dense_items


def how_many_fit(name: str, n_items: int) -> int | None:
    """Return how many trainings of an algorithm fit into the memory that is free now, or None for any number.

    Only trainings with dense item matrices are limited.
    """
    if not solves_for_all_items(name):
        return None
    available = _available_bytes()
    return None if available == float("inf") else int(available // (n_items**2 * 4 * _DENSE_COPIES))


def _available_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return float("inf")
