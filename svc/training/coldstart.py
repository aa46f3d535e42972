"""How well does the winner place items and users that it never saw, from their features alone?

For each side with features a tenth of its ids is taken out of the data, the winner is trained anew on what is left,
and those ids are scored from their features. A held-out user is to find the items of their own history; a known user
is to find, among the held-out items, those that they chose. Beside the model stand a random order and popularity:
for users the count of each item, for unseen items the mean count of the items that share a feature value.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import FeatureRidgeFailed
from svc.training.evaluate import Evaluation, Scorer
from svc.training.features import SideName
from svc.training.objective import refit_winner
from svc.training.prepare import Task
from svc.training.trials import SearchResult, TrialRecord

HELD_SHARE = 0.1
MOST_IDS = 5000
MOST_SHARE_OF_SEARCH = 0.1
ALWAYS_ALLOWED_S = 2.0
"""A side is left out where it would take both more than this share of the search and more than these seconds."""


def evaluate_cold_start(task: Task, result: SearchResult, refit_s: float) -> dict[str, Any]:
    """For each side n_held, n_interactions, cutoff, and the metrics of `model`, `popularity` and `random`.

    `refit_s` is the time that one training of the winner takes. A side that
    cannot be measured, for want of time or of held-out interactions, has `{"skipped": reason}`.
    """
    matrix = task.data.interactions.matrix()
    found: dict[str, Any] = {}
    began = time.monotonic()
    for side in task.features:
        if time.monotonic() - began + refit_s > max(MOST_SHARE_OF_SEARCH * result.seconds, ALWAYS_ALLOWED_S):
            found[side] = {"skipped": "it would take more than a tenth of the search"}
            continue
        found[side] = _evaluate_side(side, task, result.best, matrix)
        _emit(side, task, found[side])
    return found


def _emit(side: str, task: Task, found: Mapping[str, Any]) -> None:
    if "model" in found:
        metric = task.objective.metric
        logs.emit(
            events.COLD_START_EVALUATED,
            side=side,
            metric=metric,
            score=found["model"][metric],
            popularity_score=found["popularity"][metric],
        )


def _evaluate_side(side: SideName, task: Task, winner: TrialRecord, matrix: sparse.csr_matrix) -> dict[str, Any]:
    axis = 0 if side == "user" else 1
    chosen = task.loaded.recipe.training
    held = _draw(matrix.shape[axis], chosen.split.seed, axis)
    keep = np.setdiff1d(np.arange(matrix.shape[axis]), held)
    train = (matrix[keep] if side == "user" else matrix[:, keep]).tocsr()
    features = {name: found[keep] if name == side else found for name, found in task.features.items()}
    try:
        trained = refit_winner(task.builder, winner, train, features)
    except FeatureRidgeFailed:
        return {"skipped": "the feature weights cannot be solved for without the held-out ids"}
    truth = (matrix[held] if side == "user" else matrix[:, held]).tocsr()
    if not truth.nnz:
        return {"skipped": "the held-out ids have no interactions"}
    cutoff = min(chosen.cutoff, truth.shape[1])
    judge = Evaluation(truth, offset=0, cutoff=cutoff)
    unseen = sparse.csr_matrix(truth.shape, dtype=np.float32)
    scorers = {
        "model": _scorer(side, trained, task.features[side][held]),
        "popularity": _constant(_popularity(side, train, task.features[side], keep, held)),
        "random": _random(chosen.split.seed, truth.shape[1]),
    }
    measured = {name: judge.metrics(scorer, unseen) for name, scorer in scorers.items()}
    return {"n_held": len(held), "n_interactions": int(truth.nnz), "cutoff": cutoff, **measured}


def _draw(n: int, seed: int, axis: int) -> NDArray[np.int64]:
    size = max(1, min(int(n * HELD_SHARE), MOST_IDS))
    return np.sort(np.random.default_rng([seed, 5, axis]).permutation(n)[:size])


def _constant(order: NDArray[np.float64]) -> Scorer:
    return lambda begin, end: np.tile(order, (end - begin, 1))


def _random(seed: int, n: int) -> Scorer:
    """Another order for each user: one for all could be lucky with a popular item."""
    return lambda begin, end: np.random.default_rng([seed, 7, begin]).random((end - begin, n))


def _scorer(side: SideName, trained: Any, features: sparse.csr_matrix) -> Scorer:
    """Held-out users against all items, or all users against held-out items."""
    placed = place(trained, side, features).astype(np.float32)
    if side == "user":
        items = trained.get_item_embedding()
        return lambda begin, end: placed[begin:end] @ items.T
    users = trained.get_user_embedding()
    return lambda begin, end: users[begin:end] @ placed.T


def place(trained: Any, side: SideName, features: sparse.csr_matrix) -> NDArray[np.float64]:
    """Exact vectors, (ids, components), of ids without any interaction, from their encoded `features`.

    An empty history leaves of iALS's objective (alpha0·Y'Y + r·I) x = r·W'f, where Y are the vectors of the other
    side, W the feature weights and r = reg·(alpha0·n)^nu for n others.
    """
    core = trained.trainer_as_ials.core_trainer
    others, weights = (core.item, core.user_feature_weight) if side == "user" else (core.user, core.item_feature_weight)
    y = np.asarray(others, dtype=np.float64)
    r = trained.scaled_reg * (trained.alpha0 * len(y)) ** trained.nu
    system = trained.alpha0 * (y.T @ y) + r * np.eye(y.shape[1])
    placed: NDArray[np.float64] = np.linalg.solve(
        system, r * np.asarray(features @ np.asarray(weights, dtype=np.float64)).T
    ).T
    return placed


def _popularity(
    side: SideName,
    train: sparse.csr_matrix,
    features: sparse.csr_matrix,
    keep: NDArray[np.int64],
    held: NDArray[np.int64],
) -> NDArray[np.float64]:
    """One score for each candidate: an item's own count, or for unseen items the mean count of their features."""
    counts = np.asarray(train.sum(axis=0), dtype=np.float64).ravel()
    if side == "user":
        return counts
    on = (features != 0).astype(np.float64)
    of_value = (on[keep].T @ counts) / np.maximum(np.asarray(on[keep].sum(axis=0)).ravel(), 1.0)
    means: NDArray[np.float64] = (on[held] @ of_value) / np.maximum(np.asarray(on[held].sum(axis=1)).ravel(), 1.0)
    return means
