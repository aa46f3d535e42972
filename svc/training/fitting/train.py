"""Build a recommender with the parameters of a trial, and train the scorer that is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.model.recommenders.base import Scorer
from svc.recipe.algorithms import LEAST_SQUARES, SELF_WEIGHT
from svc.training.data.features import SideName
from svc.training.data.weights import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE, decay_matrix
from svc.training.fitting.algorithms.registry import ALGORITHMS, Params
from svc.training.fitting.algorithms.self_weight import set_self_weights
from svc.training.fitting.epochs import train_epochs
from svc.training.fitting.export import build_blend, to_scorer
from svc.training.fitting.factors import AS_TRAINED, Columns
from svc.training.fitting.run_in_thread import run_in_thread
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart

Matrices = Mapping[SideName, sparse.csr_matrix]

_DENSE_COPIES = 4
"""Dense float32 item matrices for which a training of DenseSLIM or EDLAE needs memory."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Numbers of threads for irspack.

    `exact` is for algorithms whose results depend on this number in their last bits. `free` is for all others.
    """

    exact: int
    free: int

    @classmethod
    def choose(cls, wanted: int | None, *, available: int) -> Threads:
        """Return the user's `wanted` number for both, else 1 for `exact` and all `available` threads for `free`.

        iALS, BPR and SLIM add floats in the order in which threads finish, so two threads give other last bits.
        """
        return cls(exact=wanted or 1, free=wanted or available)


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """A factory of untrained recommenders with a fixed seed and number of threads."""

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
        """Return an untrained recommender over `matrix`, (users, items), to which the caller has applied HALF_LIFE.

        `features` are passed to algorithms that accept them, as are `times`, which have the entries of `matrix`.
        """
        algorithm = ALGORITHMS[name]
        fixed: Params = {}
        if algorithm.seed:
            fixed[algorithm.seed] = self.seed & 0x7FFFFFFF  # fits into a C int, also for larger seeds of a recipe
        if algorithm.threads:
            fixed[algorithm.threads] = self.threads.exact if algorithm.threads_change_bits else self.threads.free
        if algorithm.takes_features:
            fixed.update({f"{side}_features": encoded for side, encoded in features.items()})
        if algorithm.takes_times:
            fixed["times"] = times
        matrix = decay_matrix(matrix, times, {HALF_LIFE: params.get(POPULARITY_HALF_LIFE, NO_DECAY)})
        own = {
            name: value for name, value in params.items() if name not in {HALF_LIFE, SELF_WEIGHT, POPULARITY_HALF_LIFE}
        }
        return algorithm.irspack_class(matrix, **own, **fixed)


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
    """Return the scorer of a trial, trained on `matrix` for the trial's best number of epochs.

    iALS trains fewer epochs from a `start`. The items of the scorer are in the order of `columns`. Raise
    FeatureRidgeFailed if the weights of its features cannot be solved for.
    """
    name = trial.algorithm
    if trial.parts:
        parts = [
            train_trial(builder, part, matrix, features, times, start=start, columns=columns) for part in trial.parts
        ]
        return build_blend(parts, trial)
    recommender = builder.build(name, matrix, trial.params, features, times)
    try:
        own_start = start if name == LEAST_SQUARES else None
        run_in_thread(lambda: train_epochs(recommender, trial.epochs, own_start))
    except failures(name) as error:
        raise FeatureRidgeFailed(
            f"the final training of {name} failed: the system for its feature weights is singular in floating point "
            f"({error}). Raise min_frequency of the feature columns so that rare values are left out."
        ) from error
    set_self_weights(recommender, trial.params)
    return to_scorer(recommender, name, columns)


def failures(name: str) -> tuple[type[Exception], ...]:
    """Return the errors that irspack raises when parameters of algorithm `name` cannot be trained."""
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
