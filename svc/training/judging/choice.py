"""Correct the interval of a winner's score for the choice among several trials.

The highest of several scores is more often too high by chance than too low, so an interval that ignores the choice
lies too high. This module resamples the scores of all trials together.

Symbols: X_k is the score of trial k, s_k its standard error, X_k* its score over resampled users, and
t_k = (X_k* − X_k) / s_k. In a share q of the resamplings the largest t_k is at most r. For any winner, the probability
that its score exceeds its score over all users by more than r standard errors is at most 1 − q. So the interval
reaches r standard errors below the score. Nothing is added above it: the winner's score is not below that of the truly
best trial, which does not depend on the sample of users.

The lead over the next algorithm involves two choices. A false lead needs a large difference between a trial and the
truly best trial, or the truly best one among the other algorithms. The winner and the runner-up stand for these two.
The largest deviation over all differences with either of them widens the interval on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from svc.training.judging.bootstrap import RESAMPLINGS, Matrix, Vector, normal_reach, resample

_TINY = float(np.finfo(np.float64).tiny)
_HOPELESS = 6.0
"""A trial this many standard errors of the difference behind the winner is ignored. For it to be the best, both scores
would have to be wrong by three standard errors in opposite directions."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The trials among which a winner was chosen.

    `scores`, (users, trials), are scores on the same users. The winner is the first column. The others follow by
    descending score. `algorithms` has the algorithm of each. The per-user scores of `n_unknown` more trials are
    missing. They count as independent of all others, which can only widen an interval. `carried` is a lower bound on
    the stretch: that of an earlier choice of the same parameters.
    """

    scores: Matrix
    algorithms: Sequence[str]
    n_unknown: int = 0
    resamplings: int = RESAMPLINGS
    carried: float = 1.0

    def stretch(
        self, *, seed: int, confidence: float, minus: Vector | None = None, over: Vector | None = None
    ) -> float:
        """Return the factor, at least 1, that lengthens the lower half of an interval to allow for the choice.

        The value of a trial is its mean score, minus the mean of `minus` and divided by the mean of `over` if they are
        given, (users,) each. The factor is `carried` for a single trial, because nothing was chosen.
        """
        if self.scores.shape[1] + self.n_unknown == 1:
            return self.carried
        n_users = len(self.scores)
        less, divisor = np.zeros(n_users) if minus is None else minus, np.ones(n_users) if over is None else over
        columns = np.column_stack([self.scores - less[:, np.newaxis], divisor])
        resampled, observed = resample(columns, seed=seed, n=self.resamplings), columns.mean(axis=0)
        values, drawn = observed[:-1], resampled[:, :-1]
        hopes = values[0] - values <= _HOPELESS * (drawn[:, :1] - drawn).std(axis=0)
        # The deviation of a ratio, linearized: numerator − ratio · divisor. It stays finite as the divisor nears 0.
        ratios = values[hopes] / max(float(observed[-1]), _TINY)
        linear = drawn[:, hopes] - ratios * resampled[:, -1:]
        largest = _deviations(linear, values[hopes] - ratios * observed[-1]).max(axis=1)
        return self._beside_one(largest, seed, (1.0 + confidence) / 2.0, confidence)

    def stretch_of_lead(self, *, seed: int, confidence: float) -> float:
        """Return the factor, at least 1, that lengthens both halves of the lead's interval to allow for both choices.

        The lead is that over the best trial of the next algorithm.
        """
        observed, resampled = self.scores.mean(axis=0), resample(self.scores, seed=seed, n=self.resamplings)
        first, second = self._differences()
        differences, values = resampled[:, first] - resampled[:, second], observed[first] - observed[second]
        hopes = values <= _HOPELESS * differences.std(axis=0)
        largest = np.abs(_deviations(differences[:, hopes], values[hopes])).max(axis=1)
        return self._beside_one(largest, seed, confidence, confidence)

    @property
    def runner_up(self) -> int:
        """Return the column of the best trial of the next algorithm, which must exist."""
        return next(column for column, name in enumerate(self.algorithms) if name != self.algorithms[0])

    def among(self, algorithm: str) -> Choice:
        """Return the choice among the trials of one algorithm."""
        columns = [column for column, name in enumerate(self.algorithms) if name == algorithm]
        return replace(self, scores=self.scores[:, columns], algorithms=[algorithm] * len(columns))

    def of_users(self, rows: NDArray[np.int64]) -> Choice:
        """Return the same choice, evaluated on some of its users."""
        return replace(self, scores=self.scores[rows])

    def _differences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs of columns: the winner, then the runner-up, each with all trials of other algorithms."""
        names, both = np.asarray(self.algorithms), (0, self.runner_up)
        others = [np.flatnonzero(names != names[column]) for column in both]
        return np.repeat(both, [len(columns) for columns in others]), np.concatenate(others)

    def _beside_one(self, largest: Vector, seed: int, share: float, confidence: float) -> float:
        """Return the `share` quantile of the largest deviations, divided by that of a single trial.

        The result is at least `carried`.
        """
        if self.n_unknown:
            drawn = np.random.default_rng([seed, 23]).random(len(largest))
            largest = np.maximum(largest, ndtri(drawn ** (1.0 / self.n_unknown)))
        return max(self.carried, float(np.quantile(largest, share)) / normal_reach(confidence))


def _deviations(resampled: Matrix, observed: Vector) -> Matrix:
    """Return (n, columns) deviations in standard errors.

    Columns that do not vary get 0, like the difference between two equal models.
    """
    errors = resampled.std(axis=0)
    return np.where(errors > 0.0, (resampled - observed) / np.where(errors > 0.0, errors, 1.0), 0.0)
