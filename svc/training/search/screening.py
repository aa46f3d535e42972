"""A first look at a trained model: judged on some of the validation users, and on all of them only if it is worth it.

The model of a look has learned from everything: on fewer users, histories of items are shorter and other parameters
are best. Looks are compared with looks of the same algorithm alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from svc.training.search.budget import ALGORITHM

LOOK = 0
"""The place of a look's score in the curve of a trial, before the first epoch."""

_N_STARTUP = 3


def scores(trials: Iterable[FrozenTrial], algorithm: str) -> tuple[float, ...]:
    """The looks at `algorithm` that finished trials have taken."""
    return tuple(
        trial.intermediate_values[LOOK]
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and trial.user_attrs.get(ALGORITHM) == algorithm
        and LOOK in trial.intermediate_values
    )


def is_passed(score: float, others: Sequence[float]) -> bool:
    """True for the better half of looks, and for all while fewer than three are known."""
    return len(others) < _N_STARTUP or score >= float(np.median(others))
