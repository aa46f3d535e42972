"""End trials early that are clearly worse than others of the same algorithm.

A trial is compared with the results that were known when it was suggested, not with later ones. So the same search
prunes the same trials, however long each takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from optuna.trial import FrozenTrial, TrialState

from svc.training.search.budget import ALGORITHM
from svc.training.search.screening import SCREENING_STEP

Curve = dict[int, float]
"""Scores between epochs: epoch to score."""

_N_STARTUP = 3
_N_WARMUP = 3


def complete_curves(trials: Iterable[FrozenTrial], algorithm: str) -> tuple[Curve, ...]:
    """Return the curves of complete trials of `algorithm`."""
    return tuple(
        dict(trial.intermediate_values)
        for trial in trials
        if trial.state is TrialState.COMPLETE
        and trial.user_attrs.get(ALGORITHM) == algorithm
        and trial.intermediate_values.keys() - {SCREENING_STEP}
    )


def is_outclassed(
    curve: Curve, others: Sequence[Curve], *, n_startup: int = _N_STARTUP, n_warmup: int = _N_WARMUP
) -> bool:
    """Return True if the best of `curve` so far is below the median of `others` at its last epoch.

    Return False for fewer than `n_startup` others, and in the first `n_warmup` evaluations.
    """
    step = max(curve)
    if step == SCREENING_STEP or len(curve.keys() - {SCREENING_STEP}) <= n_warmup or len(others) < n_startup:
        return False
    return _best_until(curve, step) < statistics.median(_best_until(other, step) for other in others)


def _best_until(curve: Curve, step: int) -> float:
    return max((value for at, value in curve.items() if SCREENING_STEP < at <= step), default=float("-inf"))
