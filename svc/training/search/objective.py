"""The objective of a trial: build a recommender with its parameters, train it, and score it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.recipe.algorithms import LEAST_SQUARES, SELF_WEIGHT, TAKES_RECENCY
from svc.training.algorithms.registry import ALGORITHMS, Params
from svc.training.algorithms.self_weight import set_self_weights
from svc.training.data.decay import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE, decayed
from svc.training.data.features import SideName
from svc.training.evaluation.rank_cost import rank_ms_of
from svc.training.evaluation.recency import HistoryScores, scorer_of
from svc.training.evaluation.score_ranker import Scorer, ScoreRanker
from svc.training.search.blended import BlendedRecommender
from svc.training.search.fit import Evaluators, Fitted, fit, refit
from svc.training.search.processes.trial_task import TrialPruned
from svc.training.search.recency import Order, Weighing
from svc.training.search.run_in_thread import run_in_thread
from svc.training.search.served import to_scorer
from svc.training.search.trials import TrialRecord
from svc.training.search.warm_start import WarmStart

Matrices = Mapping[SideName, sparse.csr_matrix]
_DENSE_COPIES = 4


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads for irspack: `exact` where their number changes the last bits of a result, `free` where it does not."""

    exact: int
    free: int

    @classmethod
    def choose(cls, wanted: int | None, *, available: int) -> Threads:
        """`wanted` is the user's own number. iALS, BPR and SLIM add floats in the order in which threads finish."""
        return cls(exact=wanted or 1, free=wanted or available)


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """Makes untrained recommenders: everything but the parameters of a trial is fixed here."""

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
        """An untrained recommender over `matrix`, (users, items), whose decay has been applied.

        `features`, and `times` with the entries of `matrix`, are passed to algorithms that take them.
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
    """Trains on `train` and evaluates by `evaluators`. `features` have rows in the order of `train`.

    `times` has the entries of `train` where a model depends on them, and `hidden` the items that users are not to
    be shown. With `repeats` users may be recommended what they have in `train`.
    """

    builder: Builder
    train: sparse.csr_matrix
    evaluators: Evaluators
    features: Matrices
    times: sparse.csr_matrix | None = None
    hidden: sparse.csr_matrix | None = None
    order: Order | None = None
    repeats: bool = False

    @property
    def metric(self) -> str:
        return self.evaluators.metric

    @property
    def seen(self) -> sparse.csr_matrix:
        """The matrix of items that are not recommended to the users of `train`."""
        if self.repeats:
            return sparse.csr_matrix(self.train.shape, dtype=np.float32) if self.hidden is None else self.hidden
        return self.train if self.hidden is None else (self.train + self.hidden).tocsr()

    def decayed(self, params: Params) -> sparse.csr_matrix:
        """`train` as the half-life among `params` has it."""
        return decayed(self.train, self.times, params)

    def scores_of_histories(self, recommender: Any, params: Params) -> HistoryScores:
        """Scores of the histories of `train` by a trained recommender."""
        positions = None if self.order is None else self.order.positions
        return HistoryScores(recommender, self.decayed(params), positions, self.features.get("user"))

    def ranker(self, scorer: Scorer) -> ScoreRanker:
        """Ranks what the users of `train` may be shown, by their scores."""
        return ScoreRanker(scorer, self.seen)

    def ranker_of(self, trained: Any, trial: TrialRecord) -> ScoreRanker:
        """The ranker of the model of `trial`, trained on `train`, at the trial's recency."""
        return self.ranker(self._scorer_of(trained, trial))

    def _scorer_of(self, trained: Any, trial: TrialRecord) -> Scorer:
        """The scorer of the model of `trial`.

        Users are scored by their histories, as they are served, wherever a model can do that.
        """
        if trial.parts:
            blend: BlendedRecommender = trained
            return blend.by([self._scorer_of(part, own) for part, own in zip(blend.trained, trial.parts, strict=True)])
        return self._scorer(trained, trial.algorithm, trial.params, trial.recency)

    def _scorer(self, trained: Any, algorithm: str, params: Params, recency: float = 0.0) -> Scorer:
        if algorithm not in TAKES_RECENCY:
            return scorer_of(trained)
        return self.scores_of_histories(trained, params).at(recency)

    def _weighing(self, algorithm: str, recommender: Any, params: Params) -> Callable[[], Weighing] | None:
        """Makes the weighing of the trained recommender; None where order plays no part."""
        values = () if self.order is None else self.order.values(algorithm)
        if not values:
            return None

        def weighing() -> Weighing:
            scores = self.scores_of_histories(recommender, params)
            return Weighing(values, lambda recency: self.ranker(scores.at(recency)))

        return weighing

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        try:
            train = self.decayed(params)
            recommender = self.builder.build(algorithm, train, params, self.features, self.times)
            fitted = fit(
                recommender,
                ALGORITHMS[algorithm].epochs,
                self.evaluators,
                between=lambda trained: self.ranker(scorer_of(trained)),
                check=check,
                report=report,
                weighing=self._weighing(algorithm, recommender, params),
                finish=lambda trained: set_self_weights(trained, params),
                served=lambda trained: self.ranker(self._scorer(trained, algorithm, params)),
            )
            return replace(fitted, rank_ms=rank_ms_of(to_scorer(recommender, algorithm), train))
        except failures(algorithm) as error:
            raise TrialPruned(str(error)) from error


def refit_winner(
    builder: Builder,
    winner: TrialRecord,
    matrix: sparse.csr_matrix,
    features: Matrices,
    times: sparse.csr_matrix | None = None,
    *,
    start: WarmStart | None = None,
) -> Any:
    """Train the winner on all data, for as many epochs as its trial found best; iALS for fewer from a `start`.

    Raises FeatureRidgeFailed where its feature weights cannot be solved for.
    """
    name = winner.algorithm
    if winner.parts:
        trained = [refit_winner(builder, part, matrix, features, times, start=start) for part in winner.parts]
        return BlendedRecommender(trained, winner)
    recommender = builder.build(name, matrix, winner.params, features, times)
    try:
        placed = start if name == LEAST_SQUARES else None
        trained = run_in_thread(lambda: refit(recommender, winner.epochs, placed))
    except failures(name) as error:
        raise FeatureRidgeFailed(
            f"the final training of {name} failed: the system for its feature weights is singular in floating point "
            f"({error}). Raise min_frequency of the feature columns so that rare values are left out."
        ) from error
    set_self_weights(trained, winner.params)
    return trained


def failures(name: str) -> tuple[type[Exception], ...]:
    """The errors that irspack raises when algorithm `name` cannot be trained with some parameters."""
    errors: tuple[type[Exception], ...] = ALGORITHMS[name].irspack_class.optuna_trial_failure_exceptions
    return errors


def solves_for_all_items(name: str) -> bool:
    """Whether training an algorithm inverts a dense matrix of all items."""
    return ALGORITHMS[name].needs_dense_items


def how_many_fit(name: str, n_items: int) -> int | None:
    """How many trainings of an algorithm with dense item matrices fit into the memory that is free now; None: any."""
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
