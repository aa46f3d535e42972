"""A cheap first look at a set of parameters: trained on some of the users for a few epochs, and judged on some.

Looks are compared with looks of the same algorithm alone. They tell little about how good a model will be, but much
about which of two is better, at an eighth of the cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState
from scipy import sparse

from svc.training.algorithms import ALGORITHMS, Epochs
from svc.training.budget import ALGORITHM
from svc.training.evaluate import Evaluation
from svc.training.features import SideName
from svc.training.fit import Judge

STEP = 0
"""The place of a look's score in the curve of a trial, before the first epoch."""

_SHARE = 4
_LEAST_USERS = 1_000
_EPOCHS = 3
_N_STARTUP = 3


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """A smaller problem of the same kind as the search's: `rows` of it, with the same items."""

    rows: NDArray[np.int64]
    train: sparse.csr_matrix
    judge: Judge
    features: dict[SideName, sparse.csr_matrix]

    def epochs(self, algorithm: str) -> Epochs | None:
        full = ALGORITHMS[algorithm].epochs
        return None if full is None else replace(full, most=min(full.most, _EPOCHS * full.every))


def make_look(
    train: sparse.csr_matrix, judge: Judge, features: dict[SideName, sparse.csr_matrix], *, seed: int
) -> Look | None:
    """A quarter of the users of either kind; None where too few are left to tell models apart."""
    heldout, offset = judge.full.heldout, judge.full.offset
    if len(judge.full.judged) < _SHARE * _LEAST_USERS:
        return None
    rng = np.random.default_rng([seed, 4])
    others, judged = (np.sort(rng.permutation(n)[: n // _SHARE]) for n in (offset, heldout.shape[0]))
    rows = np.concatenate([others, judged + offset])
    evaluation = Evaluation(
        heldout[judged], offset=len(others), cutoff=judge.full.cutoff, seed=seed, weighted=judge.full.weighted
    )
    fewer = {side: matrix[rows] if side == "user" else matrix for side, matrix in features.items()}
    return Look(rows, train[rows], Judge.of(evaluation, judge.metric, seed), fewer)


def is_worthwhile(algorithm: str) -> bool:
    """False for algorithms whose training costs the same for fewer users."""
    return not ALGORITHMS[algorithm].needs_dense_items


def scores(trials: Iterable[FrozenTrial], algorithm: str) -> tuple[float, ...]:
    """The looks at `algorithm` that finished trials have taken."""
    return tuple(
        trial.intermediate_values[STEP]
        for trial in trials
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        and trial.user_attrs.get(ALGORITHM) == algorithm
        and STEP in trial.intermediate_values
    )


def is_passed(score: float, others: Sequence[float]) -> bool:
    """True for the better half of looks, and for all while fewer than three are known."""
    return len(others) < _N_STARTUP or score >= float(np.median(others))
