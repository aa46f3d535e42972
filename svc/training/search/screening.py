"""Screening: evaluate a trained model on a sample of the validation users, and on all only if its score is good.

The screened model is trained on all data, because fewer users would make histories of items shorter and favour other
parameters. A screening score is compared with those of the same algorithm only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from svc.training.search.budget import ALGORITHM

SCREENING_STEP = 0
"""The step of the screening score in the learning curve of a trial, before the first epoch."""

_N_STARTUP = 3


def scores(trials: Iterable[FrozenTrial], algorithm: str) -> tuple[float, ...]:
    """Return the screening scores of the finished trials of `algorithm`."""
    return tuple(
        trial.intermediate_values[SCREENING_STEP]
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and trial.user_attrs.get(ALGORITHM) == algorithm
        and SCREENING_STEP in trial.intermediate_values
    )


def is_passed(score: float, others: Sequence[float]) -> bool:
    """Return True for scores in the better half, and for all while fewer than three are known."""
    return len(others) < _N_STARTUP or score >= float(np.median(others))
