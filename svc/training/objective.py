"""What one trial does: build a recommender with its parameters, train it, score it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.training.algorithms import ALGORITHMS, Params
from svc.training.aside import aside
from svc.training.features import SideName
from svc.training.fit import Fitted, Judge, fit, refit
from svc.training.search import Hopeless
from svc.training.trials import TrialRecord

Matrices = Mapping[SideName, sparse.csr_matrix]
_DENSE_COPIES = 4


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads for irspack: `exact` where their number changes the last bits of a result, `free` where it does not."""

    exact: int
    free: int

    @classmethod
    def choose(cls, wanted: int | None, *, reproducible: bool) -> Threads:
        """`wanted` is the user's own number. iALS and BPR add floats in the order in which threads finish."""
        free = wanted or os.cpu_count() or 1
        return cls(exact=1 if reproducible and wanted is None else free, free=free)


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """Makes untrained recommenders: everything but the parameters of a trial is fixed here."""

    seed: int
    threads: Threads

    def build(self, name: str, matrix: sparse.csr_matrix, params: Params, features: Matrices) -> Any:
        """Recommender `name` over `matrix`, (users, items). `features` go to those that take them."""
        algorithm = ALGORITHMS[name]
        fixed: Params = {}
        if algorithm.seed:
            fixed[algorithm.seed] = self.seed & 0x7FFFFFFF
        if algorithm.threads:
            fixed[algorithm.threads] = self.threads.exact if algorithm.threads_change_bits else self.threads.free
        if algorithm.takes_features:
            fixed.update({f"{side}_features": encoded for side, encoded in features.items()})
        return algorithm.irspack_class(matrix, **params, **fixed)


@dataclass(frozen=True, slots=True, eq=False)
class TrialObjective:
    """Trains on `train` and judges by `judge`. `features` have their rows in the order of `train`."""

    builder: Builder
    train: sparse.csr_matrix
    judge: Judge
    features: Matrices

    @property
    def metric(self) -> str:
        return self.judge.metric

    def __call__(
        self, algorithm: str, params: Params, *, check: Callable[[], None], report: Callable[[int, float], None]
    ) -> Fitted:
        recommender = self.builder.build(algorithm, self.train, params, self.features)
        try:
            return fit(
                recommender,
                ALGORITHMS[algorithm].epochs,
                self.judge,
                seen=self.train,
                check=check,
                report=report,
            )
        except failures(algorithm) as error:
            raise Hopeless(str(error)) from error


def refit_winner(builder: Builder, winner: TrialRecord, matrix: sparse.csr_matrix, features: Matrices) -> Any:
    """Train the winner on all data, for as many epochs as its trial found best.

    Raises FeatureRidgeFailed where its feature weights cannot be solved for.
    """
    name = winner.algorithm
    recommender = builder.build(name, matrix, winner.params, features)
    try:
        return aside(lambda: refit(recommender, winner.epochs))
    except failures(name) as error:
        raise FeatureRidgeFailed(
            f"the final training of {name} failed: the system for its feature weights is singular in floating point "
            f"({error}). Raise min_frequency of the feature columns so that rare values are left out."
        ) from error


def failures(name: str) -> tuple[type[Exception], ...]:
    """What irspack raises when parameters cannot be trained, of `name`."""
    found: tuple[type[Exception], ...] = ALGORITHMS[name].irspack_class.optuna_trial_failure_exceptions
    return found


def is_too_large(name: str, n_items: int) -> bool:
    """True for an algorithm whose dense item matrices would not fit into the memory that is free now."""
    if name != "DenseSLIMRecommender":
        return False
    return n_items**2 * 4 * _DENSE_COPIES > _available_bytes()


def _available_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    for line in lines:
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    return float("inf")
