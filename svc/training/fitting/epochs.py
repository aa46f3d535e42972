"""Train one recommender: with early stopping while searching, for a known number of epochs afterwards.

irspack's `learn_with_optimizer` draws a progress bar on standard output, cannot be interrupted, and scores the best
state a second time. So its few lines are reimplemented here over the same irspack objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from svc.training.fitting.algorithms.registry import Epochs
from svc.training.fitting.warm_start import WarmStart


def train(
    recommender: Any,
    epochs: Epochs | None,
    *,
    score: Callable[[Any], float],
    check: Callable[[], None],
    report: Callable[[int, float], None],
) -> int | None:
    """Train `recommender` to its best epoch and return this epoch, or None for training without epochs.

    `check` runs before each epoch. The best epoch is the one with the highest `score(recommender)`.
    `report(epoch, score)` gets each of these scores. An exception of `check` or `report` ends the training.
    """
    check()
    if epochs is None:
        recommender.learn()
        return None
    recommender.start_learning()
    best_score, best_epoch, without_gain = -math.inf, 0, 0
    for epoch in range(1, epochs.most + 1):
        check()
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
    recommender.load_state()
    return best_epoch


def train_epochs(recommender: Any, epochs: int | None, start: WarmStart | None = None) -> Any:
    """Train `recommender` for `epochs`, or for fewer epochs from a `start`, and return it.

    If `epochs` is None, the training has no epochs.
    """
    if epochs is None:
        return recommender.learn()
    recommender.start_learning()
    if start is not None:
        start.place(recommender)
        epochs = start.epochs(epochs)
    for _ in range(epochs):
        recommender.run_epoch()
    return recommender
