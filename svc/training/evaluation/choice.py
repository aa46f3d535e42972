"""What the choice of a winner among several trials adds to the interval of its score.

The highest of several scores is more often one that chance has raised than one that it has lowered, so an interval that
ignores the choice lies too high. Here the bootstrap resamples the scores of all trials together.

Symbols: X_k is the score of trial k, s_k its standard error, X_k* its score over resampled users, and
t_k = (X_k* − X_k) / s_k. In a share q of the resamplings the largest t_k is at most r. So whichever trial wins, its
score exceeds what it would be over all users by more than r standard errors in a share 1 − q of the cases at most: so
far the interval reaches below the score. Above the score nothing has to be added. The winner's score is not below that
of the trial that is best in truth, and that trial is one and the same whatever the users are.

For the lead over the next algorithm there were two choices. A false lead needs a large difference between some trial
and the one that is best in truth, or best in truth among the other algorithms. The winner and the runner-up stand for
these two: the largest deviation of all differences with either of them is what counts, to both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from svc.training.evaluation.bootstrap import RESAMPLINGS, Matrix, Vector, normal_reach, resample

_TINY = float(np.finfo(np.float64).tiny)
_HOPELESS = 6.0
"""A trial that lies so many standard errors of the difference behind was no candidate: both scores would have to be
moved by three, in opposite directions."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The trials that a winner was chosen from.

    `scores`, (users, trials), were judged on the same users; the winner is the first column, the others follow by
    falling score. `algorithms` has the algorithm of each. Of `n_unknown` more trials the scores of single users are not
    known here; they count as if they were independent of all others, which at most makes an interval too long.
    `carried` is the stretch of an earlier choice of the same parameters, below which none of this one is.
    """

    scores: Matrix
    algorithms: Sequence[str]
    n_unknown: int = 0
    resamplings: int = RESAMPLINGS
    carried: float = 1.0

    def stretch(
        self, *, seed: int, confidence: float, minus: Vector | None = None, over: Vector | None = None
    ) -> float:
        """By how much the part below the winner's value of an interval that knows of no choice is too short; 1 or more.

        The value of a trial is its mean score, from which the mean of `minus` is subtracted and which the mean of
        `over` divides, (users,) each, where they are given. Of a single trial nothing was chosen.
        """
        if self.scores.shape[1] + self.n_unknown == 1:
            return self.carried
        n_users = len(self.scores)
        less, divisor = np.zeros(n_users) if minus is None else minus, np.ones(n_users) if over is None else over
        columns = np.column_stack([self.scores - less[:, np.newaxis], divisor])
        resampled, observed = resample(columns, seed=seed, n=self.resamplings), columns.mean(axis=0)
        values, drawn = observed[:-1], resampled[:, :-1]
        hopes = values[0] - values <= _HOPELESS * (drawn[:, :1] - drawn).std(axis=0)
        # A ratio deviates as its numerator minus the ratio times the divisor does, which stays finite as that nears 0.
        ratios = values[hopes] / max(float(observed[-1]), _TINY)
        linear = drawn[:, hopes] - ratios * resampled[:, -1:]
        largest = _deviations(linear, values[hopes] - ratios * observed[-1]).max(axis=1)
        return self._beside_one(largest, seed, (1.0 + confidence) / 2.0, confidence)

    def stretch_of_lead(self, *, seed: int, confidence: float) -> float:
        """By how much the interval of the lead over the best trial of the next algorithm is too short on both sides."""
        observed, resampled = self.scores.mean(axis=0), resample(self.scores, seed=seed, n=self.resamplings)
        first, second = self._differences()
        differences, values = resampled[:, first] - resampled[:, second], observed[first] - observed[second]
        hopes = values <= _HOPELESS * differences.std(axis=0)
        largest = np.abs(_deviations(differences[:, hopes], values[hopes])).max(axis=1)
        return self._beside_one(largest, seed, confidence, confidence)

    @property
    def runner_up(self) -> int:
        """The column of the best trial of the next algorithm. There must be one."""
        return next(column for column, name in enumerate(self.algorithms) if name != self.algorithms[0])

    def among(self, algorithm: str) -> Choice:
        """The choice among the trials of one algorithm."""
        columns = [column for column, name in enumerate(self.algorithms) if name == algorithm]
        return replace(self, scores=self.scores[:, columns], algorithms=[algorithm] * len(columns))

    def of_users(self, rows: NDArray[np.int64]) -> Choice:
        """The same choice, by some of its users."""
        return replace(self, scores=self.scores[rows])

    def _differences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pairs of columns: the winner, then the runner-up, each before all trials of other algorithms."""
        names, both = np.asarray(self.algorithms), (0, self.runner_up)
        others = [np.flatnonzero(names != names[column]) for column in both]
        return np.repeat(both, [len(columns) for columns in others]), np.concatenate(others)

    def _beside_one(self, largest: Vector, seed: int, share: float, confidence: float) -> float:
        """The quantile of the largest deviations beside that of a single trial, with the unknown trials among them."""
        if self.n_unknown:
            drawn = np.random.default_rng([seed, 23]).random(len(largest))
            largest = np.maximum(largest, ndtri(drawn ** (1.0 / self.n_unknown)))
        return max(self.carried, float(np.quantile(largest, share)) / normal_reach(confidence))


def _deviations(resampled: Matrix, observed: Vector) -> Matrix:
    """(n, columns) in standard errors; 0 for what does not vary, as the difference between two equal models."""
    errors = resampled.std(axis=0)
    return np.where(errors > 0.0, (resampled - observed) / np.where(errors > 0.0, errors, 1.0), 0.0)
