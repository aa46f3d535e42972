"""The finished trials of a study as svc's own records, and the scores for each user that a search keeps of them.

The correction for choosing the best of many trials needs the scores for each user, because the scores of different
trials are correlated over users (see judging/intervals.py). They are too large to be stored in the study, so those of
the trials of other processes are missing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial, TrialState

from svc.training.fitting.trial import TrialRecord
from svc.training.judging.recency import Fitted
from svc.training.judging.search_result import SearchResult, by_score
from svc.training.search import budget
from svc.training.search.sampler import own_parameters

METRICS = "svc:metrics"
EPOCHS = "svc:train_epochs"
RECENCY = "svc:recency"
SECONDS = "svc:seconds"
RANK_MS = "svc:rank_ms"
TOO_SLOW = "svc:too_slow"
"""Attributes of a finished trial."""


def attributes(fitted: Fitted, seconds: float) -> dict[str, object]:
    """Return the attributes to store with a complete trial."""
    stored: dict[str, object] = {METRICS: fitted.metrics, EPOCHS: fitted.epochs, SECONDS: round(seconds, 3)}
    if fitted.rank_ms is not None:
        stored[RANK_MS] = fitted.rank_ms
    return {**stored, RECENCY: fitted.recency} if fitted.recency else stored


def records(trials: list[FrozenTrial]) -> list[TrialRecord]:
    """Return a record of each finished trial. Abandoned trials are left out."""
    return [_record(trial) for trial in trials if budget.uses_budget(trial) and trial.state.is_finished()]


def _record(trial: FrozenTrial) -> TrialRecord:
    attrs = trial.user_attrs
    algorithm = str(attrs.get(budget.ALGORITHM, ""))
    return TrialRecord(
        number=trial.number,
        algorithm=algorithm,
        params=own_parameters(algorithm, trial.params),
        state={TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}.get(trial.state, "failed"),
        score=trial.value if trial.state is TrialState.COMPLETE else None,
        metrics=dict(attrs.get(METRICS) or {}),
        epochs=attrs.get(EPOCHS),
        seconds=float(attrs.get(SECONDS) or 0.0),
        recency=float(attrs.get(RECENCY) or 0.0),
        rank_ms=attrs.get(RANK_MS),
        too_slow=bool(attrs.get(TOO_SLOW)),
    )


# The scores of 200 trials for a million validation users take 1.6 GB.
MOST_BYTES = 512 << 20
"""Above this, the scores of the worst trials are dropped, because these are the least likely to win by chance."""


def drop_worst_scores(
    by_user: dict[int, NDArray[np.float64]], result: SearchResult, most_bytes: int = MOST_BYTES
) -> None:
    """Remove scores for each user from `by_user`, worst trials of `result` first, until `most_bytes` suffice.

    The scores of the best trial of each algorithm stay, even if they need more. `by_user` has the scores, (users,), by
    trial number.
    """
    n_bytes = sum(scores.nbytes for scores in by_user.values())
    best = {trial.number for trial in result.best_per_algorithm.values()}
    for trial in reversed(by_score(result.completed)):
        if n_bytes > most_bytes and trial.number in by_user.keys() - best:
            n_bytes -= by_user.pop(trial.number).nbytes
