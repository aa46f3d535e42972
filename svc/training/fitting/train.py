"""Build irspack's recommender with the parameters of a trial, train it, and return the scorer that is served."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from svc.errors import FeatureRidgeFailed
from svc.model.recommenders.base import Scorer
from svc.recipe.algorithms import LEAST_SQUARES, SELF_WEIGHT
from svc.training.data.features import SideName
from svc.training.data.weights import HALF_LIFE, NO_DECAY, POPULARITY_HALF_LIFE, WEIGHT_SCALE, decay_matrix
from svc.training.fitting.algorithms.registry import ALGORITHMS, Epochs, Params
from svc.training.fitting.export import AS_TRAINED, Columns, build_blend, to_scorer
from svc.training.fitting.trial import TrialRecord
from svc.training.fitting.warm_start import WarmStart

Matrices = Mapping[SideName, sparse.csr_matrix]

OF_SVC = frozenset({HALF_LIFE, WEIGHT_SCALE, SELF_WEIGHT, POPULARITY_HALF_LIFE})
"""Parameters of trials that recommenders do not have."""
_DENSE_COPIES = 4
"""The memory that one training of DenseSLIM needs, as a number of dense float32 (items, items) matrices."""


@dataclass(frozen=True, slots=True, eq=False)
class Builder:
    """A factory of untrained recommenders with a fixed seed and number of threads.

    `threads` is the configured number of threads. If it is None, an algorithm gets one for each of `cores`, or a single
    one if the number of threads changes its results. iALS, BPR and SLIM add floats in the order in which threads
    finish. With two threads, the last bits of their results would differ from run to run.
    """

    seed: int
    threads: int | None
    cores: int

    def build(
        self,
        name: str,
        matrix: sparse.csr_matrix,
        params: Params,
        features: Matrices,
        times: sparse.csr_matrix | None = None,
    ) -> Any:
        """Return an untrained recommender of algorithm `name` over `matrix`, (users, items).

        - The caller has already applied the scale and the half-life in `params` to `matrix`. A half-life of
          popularity is applied here.
        - `times` has the time of each entry of `matrix`, in nanoseconds from the reference time.
        - `features` and `times` are passed only to algorithms that accept them.
        """
        algorithm = ALGORITHMS[name]
        fixed: Params = {}
        if algorithm.seed:
            fixed[algorithm.seed] = self.seed & 0x7FFFFFFF  # fits into a C int, also for larger seeds of a recipe
        if algorithm.threads:
            fixed[algorithm.threads] = self.threads or (1 if algorithm.threads_change_bits else self.cores)
        if algorithm.takes_features:
            fixed.update({f"{side}_features": encoded for side, encoded in features.items()})
        if algorithm.takes_times:
            fixed["times"] = times
        matrix = decay_matrix(matrix, times, {HALF_LIFE: params.get(POPULARITY_HALF_LIFE, NO_DECAY)})
        own = {name: value for name, value in params.items() if name not in OF_SVC}
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

    - `matrix`, (users, items), has the weights of the table. Each part is trained on its own scale and half-life.
    - With `start`, iALS starts from the vectors of the live model and trains half as many epochs.
    - The items of the scorer are in the order of `columns`.

    All parts of a blend are trained. A blend cannot rank for training users before `fold_in_users`.

    Raise FeatureRidgeFailed if the feature weights cannot be solved for, and TrainingError if the trained model cannot
    be served (see `to_scorer`).
    """
    name = trial.algorithm
    if trial.parts:
        parts = [
            train_trial(builder, part, matrix, features, times, start=start, columns=columns) for part in trial.parts
        ]
        return build_blend(parts, trial)
    recommender = builder.build(name, decay_matrix(matrix, times, trial.params), trial.params, features, times)
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
    """Return the errors that irspack raises if algorithm `name` cannot be trained with some parameters."""
    errors: tuple[type[Exception], ...] = ALGORITHMS[name].irspack_class.optuna_trial_failure_exceptions
    return errors


def how_many_fit(name: str, n_items: int) -> int | None:
    """Return how many trainings of an algorithm fit into the memory that is free now, or None without a limit.

    Only algorithms that train with dense (items, items) matrices are limited, and only if /proc/meminfo tells how much
    memory is free.
    """
    if not ALGORITHMS[name].needs_dense_items:
        return None
    try:
        memory = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    available = re.search(r"^MemAvailable: +(\d+) kB$", memory, re.MULTILINE)
    return None if available is None else int(available[1]) * 1024 // (n_items**2 * 4 * _DENSE_COPIES)


def train_to_best_epoch(
    recommender: Any,
    epochs: Epochs | None,
    *,
    score: Callable[[Any], float],
    report: Callable[[int, float], None],
) -> int | None:
    """Train `recommender` to its best epoch and return this epoch, or None for training without epochs.

    irspack's own loop draws a progress bar on standard output, cannot be interrupted, and scores the best state a
    second time. So this function repeats its few lines with the same irspack objects.

    - The best epoch is the first with the highest `score(recommender)`, of the epochs that `epochs.every` selects.
    - `report(epoch, score)` gets each score except one that ends the training by `epochs.patience`. That score
      is no gain, so it changes no best score of a curve, and pruning would only discard a finished training.

    An exception of `report` ends the training.
    """
    if epochs is None:
        recommender.learn()
        return None
    recommender.start_learning()
    best_score, best_epoch, without_gain = -math.inf, 0, 0
    for epoch in range(1, epochs.most + 1):
        recommender.run_epoch()
        if epoch % epochs.every:
            continue
        current = score(recommender)
        if current > best_score:
            best_score, best_epoch, without_gain = current, epoch, 0
            recommender.save_state()
        else:
            without_gain += 1
            if without_gain >= epochs.patience:
                break
        report(epoch, current)
    # The state of the best epoch, not of the last one.
    recommender.load_state()
    return best_epoch


def train_epochs(recommender: Any, epochs: int | None, start: WarmStart | None = None) -> Any:
    """Train `recommender` for `epochs`, or with `start` for half as many from the live model's vectors, and return it.

    `epochs` is None for an algorithm that does not train in epochs. `start` is then ignored.
    """
    if epochs is None:
        return recommender.learn()
    recommender.start_learning()
    if start is not None:
        start.place(recommender)
        # A quarter scores as well if the live model was trained the day before (`benchmarks refit start`). Half,
        # rounded up, also suffices for older models.
        epochs = -(-epochs // 2)
    for _ in range(epochs):
        recommender.run_epoch()
    return recommender


def run_in_thread(work: Callable[[], Any]) -> Any:
    """Run `work` in a new thread, and return its result or raise its exception.

    Ctrl-C stays effective, because the main thread only waits here, and Python raises KeyboardInterrupt in it. The new
    thread is a daemon, and is then abandoned.
    """
    ended: Future[Any] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # also SystemExit, which a thread would swallow
            ended.set_exception(error)

    threading.Thread(target=run, name="training", daemon=True).start()
    return ended.result()


def set_self_weights(recommender: Any, params: Params) -> None:
    """Set the weight of each item for itself in a trained `recommender`, if `params` contain a self-weight.

    The self-weight is a factor on the item's largest weight for another item (see `with_diagonal`). It matters only
    with `training.repeats`, which recommends seen items again. With 0, a seen item gets its score from the other items
    of the history. With 1, an item counts for itself as much as for its strongest neighbour. With 100, items of the
    history almost always come first.
    """
    if SELF_WEIGHT in params:
        recommender._W = with_diagonal(recommender._W, float(params[SELF_WEIGHT]))


def with_diagonal(weights: Any, self_weight: float) -> Any:
    """Return `weights`, (items, items), with `self_weight` times the largest other weight of each row as diagonal.

    Dense weights are changed in place. The diagonal is 0 in a row without a positive weight for another item.
    """
    if not sparse.issparse(weights):
        # So that the maximum of a row is that of its other weights. No copy of the matrix is needed for this.
        np.fill_diagonal(weights, -np.inf)
        np.fill_diagonal(weights, self_weight * np.maximum(weights.max(axis=1), 0.0))
        return weights
    others = weights.tocsr() - sparse.diags(weights.diagonal())
    largest = np.maximum(others.max(axis=1).toarray().ravel(), 0.0)
    result = (others + sparse.diags(self_weight * largest, dtype=others.dtype)).tocsr()
    result.eliminate_zeros()
    result.sort_indices()
    return result
