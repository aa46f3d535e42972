"""Confidence intervals of mean scores and of their differences, corrected for choosing the best of many trials.

A score is a mean over the evaluated users. Its interval says how much it would vary with other users of the same kind.
Two models that were evaluated on the same users are compared user by user. This removes the variance of users for whom
every model scores high or low.

Bootstrap: users are drawn with replacement, as many as there are. Interval ends are quantiles of the resampled values,
at levels that correct for bias and skewness (BCa: bias-corrected and accelerated; Efron and Tibshirani, An Introduction
to the Bootstrap, chapter 14). The scores of most users are zero, so the distribution of the mean over few users is
skewed.

Choice: the highest of several scores is more often too high by chance than too low. An interval that ignores the choice
would be too high. So `Choice` resamples the scores of all trials together.

Symbols: X_k is the score of trial k, s_k its standard error, X_k* its score over resampled users, and
t_k = (X_k* − X_k) / s_k. In a share q of the resamplings, the largest t_k is at most r. Then, whichever trial wins, the
probability is at most 1 − q that its score is more than r standard errors above its score over the population of all
users. So the interval extends r standard errors below the score. Its upper half is not lengthened, because the winner's
score is never below that of the truly best trial, and this trial does not depend on the sample of users.

The lead over the next algorithm involves two choices: that of the winner, and that of the best trial of the other
algorithms. A false lead needs a large chance deviation of a difference to the truly best trial, or to the truly best
trial of the other algorithms. The winner and the runner-up are used in place of these two. The largest deviation over
all differences to either of them lengthens the interval on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from svc.cores import one_blas_thread

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

RESAMPLINGS = 10_000
CONFIDENCE = 0.95
_MOST_GROUPS = 4096
"""Maximum number of units that a bootstrap draws.

More users are divided at random into this many groups, which are drawn instead.

The variance of the mean is then accurate to about 2%, and the width of an interval to about 1%.
"""
_DRAWS_PER_BLOCK = 1 << 16  # keeps the arrays of a block in the processor cache
TINY = float(np.finfo(np.float64).tiny)
"""Smallest divisor. It replaces a divisor of 0 or less, so that a quotient stays finite."""


def resample(scores: Matrix, *, seed: int, n: int) -> Matrix:
    """Return the means of `scores`, (users, columns), over each of `n` bootstrap samples of the users, (n, columns).

    More than _MOST_GROUPS users are drawn in groups.
    """
    rng = np.random.default_rng([seed, 13])
    sums, sizes = _group_users(np.asarray(scores, dtype=np.float64), rng)
    groups = len(sizes)
    weighted = np.column_stack([sums, sizes])
    means = np.empty((n, scores.shape[1]))
    step = max(1, _DRAWS_PER_BLOCK // groups)
    with one_blas_thread():  # in a product this small, threads mostly wait
        for begin in range(0, n, step):
            rows = min(step, n - begin)
            # Row k counts from k · groups on, so that one bincount tells how often each sample has drawn each group.
            drawn = rng.integers(0, groups, (rows, groups), dtype=np.uint16) + groups * np.arange(rows)[:, np.newaxis]
            times = np.bincount(drawn.ravel(), minlength=rows * groups).reshape(rows, groups)
            # A matrix product: 10,000 samples of 2,000 users and 40 trials take 0.15 s, and 1.4 s by indexing the
            # scores.
            totals = times.astype(np.float64) @ weighted
            means[begin : begin + rows] = totals[:, :-1] / totals[:, -1:]
    return means


def _group_users(scores: Matrix, rng: np.random.Generator) -> tuple[Matrix, Vector]:
    """Divide users into at most _MOST_GROUPS groups, or one group for each user if there are no more users than that.

    Return the sums of scores over each group, (groups, columns), and the sizes of the groups, (groups,).
    """
    n_users = len(scores)
    if n_users <= _MOST_GROUPS:
        return scores, np.ones(n_users)
    group = rng.permutation(n_users) % _MOST_GROUPS
    columns = [np.bincount(group, weights=column, minlength=_MOST_GROUPS) for column in scores.T]
    return np.column_stack(columns), np.bincount(group, minlength=_MOST_GROUPS).astype(np.float64)


def central(resampled: Vector, value: float, influence: Vector, confidence: float) -> tuple[float, float]:
    """Return the BCa interval of `value`. It contains the value, and both ends equal it if no user moves it.

    `resampled`, (n,), are the values over resampled users. `influence`, (users,), is the amount by which each user
    moves the value. For a mean, this is the user's score minus the mean.
    """
    spread = float((influence**2).sum())
    if spread <= 0.0:
        return value, value
    acceleration = float((influence**3).sum()) / (6.0 * spread**1.5)
    # Half of the ties count as below, because means of hits over few users take few values.
    share_below = float(np.mean(resampled < value) + np.mean(resampled == value) / 2.0)
    # `ndtri` of 0 or 1 is infinite.
    least = 1.0 / len(resampled)
    bias = float(ndtri(np.clip(share_below, least, 1.0 - least)))
    moved = bias + normal_reach(confidence) * np.array([-1.0, 1.0])
    low, high = np.quantile(resampled, ndtr(bias + moved / np.maximum(1.0 - acceleration * moved, TINY)))
    return min(float(low), value), max(float(high), value)


def normal_reach(confidence: float) -> float:
    """Return the number of standard errors on each side of a mean that hold `confidence`: 1.96 for 95%."""
    return float(ndtri((1.0 + confidence) / 2.0))


_HOPELESS = 6.0
"""A trial is ignored if it is more than this many standard errors of the difference behind the winner. It could be the
best only if both scores were wrong by three standard errors in opposite directions."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The trials among which a winner was chosen.

    - `scores`, (users, trials), are the scores for the same users, with trials in order of descending mean score over
      all validation users. So the winner is the first column. `algorithms` has the algorithm of each trial.
    - `n_unknown` is the number of other trials, whose scores for each user are missing. They are taken to be
      independent of all other trials, which can only lengthen an interval.
    - `resamplings` is the number of bootstrap samples.
    - `carried` is the stretch of an earlier choice of the same parameters. `stretch` and `stretch_of_lead` return at
      least this value.
    """

    scores: Matrix
    algorithms: Sequence[str]
    n_unknown: int = 0
    resamplings: int = RESAMPLINGS
    carried: float = 1.0

    def stretch(
        self, *, seed: int, confidence: float, minus: Vector | None = None, over: Vector | None = None
    ) -> float:
        """Return the factor, at least 1, that lengthens the lower half of an interval to correct it for the choice.

        The interval is that of the winner's mean score, minus the mean of `minus`, (users,), if given, and divided by
        the mean of `over`, (users,), if given. The factor is `carried` if there is only one trial.
        """
        if self.scores.shape[1] + self.n_unknown == 1:
            return self.carried
        n_users = len(self.scores)
        less, divisor = np.zeros(n_users) if minus is None else minus, np.ones(n_users) if over is None else over
        columns = np.column_stack([self.scores - less[:, np.newaxis], divisor])
        resampled, observed = resample(columns, seed=seed, n=self.resamplings), columns.mean(axis=0)
        values, drawn = observed[:-1], resampled[:, :-1]
        hopes = values[0] - values <= _HOPELESS * (drawn[:, :1] - drawn).std(axis=0)
        # The deviation of a ratio is linearized as numerator − ratio · divisor, which stays finite if a resampled
        # divisor is near 0.
        ratios = values[hopes] / max(float(observed[-1]), TINY)
        linear = drawn[:, hopes] - ratios * resampled[:, -1:]
        largest = _deviations(linear, values[hopes] - ratios * observed[-1]).max(axis=1)
        return self._beside_one(largest, seed, (1.0 + confidence) / 2.0, confidence, n_sides=1)

    def stretch_of_lead(self, *, seed: int, confidence: float) -> float:
        """Return the factor, at least 1, that lengthens both halves of the interval of the lead.

        The lead is the difference between the mean scores of the winner and of the best trial of another algorithm,
        which must exist. The factor corrects for the choice of both trials.
        """
        observed, resampled = self.scores.mean(axis=0), resample(self.scores, seed=seed, n=self.resamplings)
        first, second = self._differences()
        differences, values = resampled[:, first] - resampled[:, second], observed[first] - observed[second]
        hopes = values <= _HOPELESS * differences.std(axis=0)
        largest = np.abs(_deviations(differences[:, hopes], values[hopes])).max(axis=1)
        return self._beside_one(largest, seed, confidence, confidence, n_sides=2)

    @property
    def runner_up(self) -> int:
        """Return the column of the best trial of another algorithm than the winner's, which must exist."""
        return next(column for column, name in enumerate(self.algorithms) if name != self.algorithms[0])

    def among(self, algorithm: str) -> Choice:
        """Return a copy with only the trials of `algorithm`. Its `n_unknown` still counts those of all algorithms."""
        columns = [column for column, name in enumerate(self.algorithms) if name == algorithm]
        return replace(self, scores=self.scores[:, columns], algorithms=[algorithm] * len(columns))

    def of_users(self, rows: NDArray[np.int64]) -> Choice:
        """Return a copy with only these `rows` of `scores`, each the scores for one user."""
        return replace(self, scores=self.scores[rows])

    def _differences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pairs of columns as two arrays. The first of a pair is the winner or the runner-up.

        Each of the two is paired with every trial of an algorithm other than its own.
        """
        names, both = np.asarray(self.algorithms), (0, self.runner_up)
        others = [np.flatnonzero(names != names[column]) for column in both]
        return np.repeat(both, [len(columns) for columns in others]), np.concatenate(others)

    def _beside_one(self, largest: Vector, seed: int, share: float, confidence: float, *, n_sides: int) -> float:
        """Return the `share` quantile of the `largest` deviations, divided by the same quantile for a single trial.

        The deviations of unknown trials are drawn from a standard normal distribution, and are absolute like those in
        `largest` if `n_sides` is 2. The result is at least `carried`.
        """
        if self.n_unknown:
            # The largest of n independent uniform numbers is distributed like the n-th root of one.
            below = np.random.default_rng([seed, 23]).random(len(largest)) ** (1.0 / self.n_unknown)
            largest = np.maximum(largest, ndtri((below + n_sides - 1) / n_sides))
        return max(self.carried, float(np.quantile(largest, share)) / normal_reach(confidence))


def _deviations(resampled: Matrix, observed: Vector) -> Matrix:
    """Return how far each of `resampled` is from `observed`, in standard errors of its column, (n, columns).

    A column that does not vary, such as the difference between two equal models, gets 0.
    """
    errors = resampled.std(axis=0)
    return np.where(errors > 0.0, (resampled - observed) / np.where(errors > 0.0, errors, 1.0), 0.0)


@dataclass(frozen=True, slots=True)
class Change:
    """The difference `value` of the mean scores of two models, or their relative change, and its interval.

    It is positive if the first model is better.
    """

    value: float
    low: float
    high: float


def percent(change: float) -> str:
    """Return a relative change as a percentage, or as words above a thousandfold."""
    return f"{change:+.1%}" if abs(change) < 1000 else "more than a thousandfold"


def interval(
    scores: Vector, *, seed: int, confidence: float = CONFIDENCE, choice: Choice | None = None
) -> tuple[float, float]:
    """Return the interval of the mean of `scores`, (users,).

    With a `choice`, `scores` are those of its winner, and the interval is corrected for the choice. The correction does
    not move the lower end below 0 if no score is below 0.
    """
    ((low, high),) = intervals(scores[:, np.newaxis], seed=seed, confidence=confidence, n=RESAMPLINGS)
    value = float(scores.mean())
    stretch = 1.0 if choice is None else choice.stretch(seed=seed, confidence=confidence)
    return max(value - stretch * (value - low), min(low, 0.0)), high


def intervals(
    scores: NDArray[np.float64], *, seed: int, confidence: float = CONFIDENCE, n: int = RESAMPLINGS
) -> list[tuple[float, float]]:
    """Return the `interval` of each column of `scores`, (users, columns), over the same `n` resamplings."""
    resampled = resample(scores, seed=seed, n=n)
    return [
        central(means, float(column.mean()), column - column.mean(), confidence)
        for means, column in zip(resampled.T, scores.T, strict=True)
    ]


def paired_change(
    first: Vector,
    second: Vector,
    *,
    seed: int,
    confidence: float = CONFIDENCE,
    relative: bool = False,
    choice: Choice | None = None,
) -> Change:
    """Return the change of the mean score from `second` to `first`, (users,) scores of two models on the same users.

    With `relative`, the difference is divided by the mean of `second`, or by the smallest number above 0 if that mean
    is 0. With a `choice`, `first` are the scores of its winner, and the interval is corrected for the choice. The
    second model must have been chosen independently of these users.

    The lower end is at least −1, the lowest change of scores between 0 and 1. It is −1 if there are so few users that
    all of them may favour one of two equal models more often than `confidence` allows: below 6 users for 95%.
    """
    means = resample(np.stack([first, second], axis=1), seed=seed, n=RESAMPLINGS)
    divisor = max(float(second.mean()), TINY) if relative else 1.0
    changes = (means[:, 0] - means[:, 1]) / (np.maximum(means[:, 1], TINY) if relative else 1.0)
    value = (float(first.mean()) - float(second.mean())) / divisor
    # How far one user moves a ratio of means, to first order.
    influence = first - second - value * second if relative else first - second - value
    low, high = central(changes, value, influence, confidence)
    stretch = 1.0
    if choice is not None:
        over = second if relative else None
        stretch = choice.stretch(seed=seed, confidence=confidence, minus=second, over=over)
    # A user favours either of two equal models with probability 1/2, so all n favour the first with 1/2 to the n.
    are_enough = 0.5 ** len(first) <= (1.0 - confidence) / 2.0
    return Change(value, max(value - stretch * (value - low), -1.0) if are_enough else -1.0, high)


def mean_interval(values: Vector, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of the mean of at least two independent `values`, by Student's t.

    It needs no resampling, so it is fast enough for the many comparisons within a search. It also fits means over few
    folds.
    """
    mean, n = float(values.mean()), len(values)
    reach = float(stdtrit(n - 1, (1.0 + confidence) / 2.0)) * float(values.std(ddof=1)) / n**0.5
    return mean - reach, mean + reach


def is_gain(first: Vector, second: Vector) -> bool:
    """Return whether the mean of `first` is higher than that of `second` by more than chance.

    Both are scores of the same users, (users,). With fewer than two users, return False.
    """
    return len(first) > 1 and mean_interval(first - second)[0] > 0.0


def plain_lead(first: Vector, second: Vector, *, seed: int, confidence: float = CONFIDENCE) -> Change:
    """Return the `paired_change` of two models, whose interval is 0 to 0 for equal ones, however few users there are.

    A gate must not use it, because it would let a model pass that few users cannot tell from the live one.
    """
    # Two equal models of five users would otherwise have a lead of -1 to 0.
    if np.array_equal(first, second):
        return Change(0.0, 0.0, 0.0)
    return paired_change(first, second, seed=seed, confidence=confidence)


def lead(choice: Choice, *, seed: int, confidence: float = CONFIDENCE) -> Change:
    """Return the lead of the winner of `choice` over the best trial of another algorithm, which must exist.

    Its interval is corrected for the choice of both trials.
    """
    winner, runner_up = choice.scores[:, 0], choice.scores[:, choice.runner_up]
    change = plain_lead(winner, runner_up, seed=seed, confidence=confidence)
    stretch = choice.stretch_of_lead(seed=seed, confidence=confidence)
    low = change.value - stretch * (change.value - change.low)
    return replace(change, low=low, high=change.value + stretch * (change.high - change.value))
