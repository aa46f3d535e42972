"""Score the rankings of a trained model on held-out interactions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.metrics import METRICS, list_metrics, user_scores

DIGITS = 12
"""Digits of the scores, and of other figures about models, in a header."""

Rows = NDArray[np.int64]
Rankings = list[list[int]]
"""The best items of each user, best first, as columns of the training matrix."""
Ranker = Callable[[Rows, int], Rankings]
"""A function of users, (r,) ascending rows of the training matrix, and a number of items.

It returns at most this number of items for each user, best first, without items that may not be shown to the user.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ModelEvaluation:
    """The metrics of the rankings of the evaluated users.

    - `metrics` has all METRICS.
    - `truth`, (users, items), has the held-out items of the user of each ranking.
    - `scores` has the score for each user, (users,), by each metric of PER_USER. Their means are in `metrics`.
    """

    metrics: dict[str, float]
    rankings: Rankings
    truth: sparse.csr_matrix
    scores: dict[str, NDArray[np.float64]]


@dataclass(slots=True, eq=False)
class Evaluator:
    """Evaluates the rankings of validation users by their held-out items.

    - `heldout`, (validation users, items), has the held-out items. Users without held-out items are ignored.
    - `offset` is the row of the training matrix that belongs to row 0 of `heldout`. The other rows follow in order.
    - `cutoff` is the number of items in a ranking.
    - `weighted` makes items count by their values in `heldout`, in the metrics of PER_USER except `hit`. Without it,
      all held-out items count 1.
    """

    heldout: sparse.csr_matrix
    _: KW_ONLY
    offset: int
    cutoff: int
    weighted: bool = False

    def __post_init__(self) -> None:
        if not self.weighted and not (self.heldout.data == 1).all():
            # A copy, because the caller's matrix must keep its weights.
            self.heldout = self.heldout.copy()
            self.heldout.eliminate_zeros()
            self.heldout.data = np.ones_like(self.heldout.data)

    def sample(self, n_users: int, seed: int) -> Evaluator:
        """Return an evaluator of at most `n_users` random validation users with held-out items.

        The same seed draws the same users. With a smaller `n_users`, it draws some of these.
        """
        with_items = self.evaluated_users
        if len(with_items) <= n_users:
            return self
        # A permutation, not a choice, because its beginning is a smaller sample of the same users.
        rows = np.random.default_rng([seed, 3]).permutation(with_items)[:n_users]
        is_sampled = np.zeros(self.heldout.shape[0], dtype=bool)
        is_sampled[rows] = True
        return self.of(sparse.diags(is_sampled.astype(np.float32)) @ self.heldout)

    def of(self, heldout: sparse.csr_matrix) -> Evaluator:
        """Return an evaluator with another `heldout` of the same shape, for the same rows of the training matrix."""
        return replace(self, heldout=heldout)

    @property
    def evaluated_users(self) -> NDArray[np.int64]:
        """Return the rows of `heldout` with at least one item, (users,), ascending."""
        self.heldout.eliminate_zeros()
        return np.flatnonzero(np.diff(self.heldout.indptr))

    def evaluate(self, ranker: Ranker) -> ModelEvaluation:
        """Rank the items of all users with held-out items by `ranker`, and evaluate the rankings."""
        return self._evaluation(self.rankings(ranker))

    def complete(self, ranker: Ranker, sample: Evaluator, ranked: Rankings) -> ModelEvaluation:
        """Return the same as `evaluate`, if `ranker` has already ranked the users of `sample` with the result `ranked`.

        This avoids ranking these users twice.
        """
        evaluated, by_user = self.evaluated_users, dict(zip(sample.evaluated_users.tolist(), ranked, strict=True))
        others = evaluated[~np.isin(evaluated, sample.evaluated_users)]
        by_user.update(zip(others.tolist(), ranker(self.offset + others, self.cutoff), strict=True))
        return self._evaluation([by_user[row] for row in evaluated.tolist()])

    def by_user(self, rankings: Rankings, metric: str) -> NDArray[np.float64]:
        """Return the score of each of `rankings`, one for each evaluated user, by `metric`, one of PER_USER."""
        return user_scores(rankings, self.heldout[self.evaluated_users])[metric]

    def _evaluation(self, rankings: Rankings) -> ModelEvaluation:
        truth = self.heldout[self.evaluated_users]
        scores = user_scores(rankings, truth)
        metrics = {name: values.mean() for name, values in scores.items()} | list_metrics(rankings, truth)
        rounded = {name: round(float(metrics[name]), DIGITS) for name in METRICS}
        return ModelEvaluation(rounded, rankings, truth, scores)

    def rankings(self, ranker: Ranker) -> Rankings:
        """Return the best items of each evaluated user: as many as the cutoff, or fewer if fewer may be shown."""
        return ranker(self.offset + self.evaluated_users, self.cutoff)


SAMPLE_USERS = 2_000
"""Maximum number of validation users on whom screenings, epochs, recencies and blends are compared.

An evaluation of all users takes longer than an epoch. The score of a trial is always that of all validation users."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """The evaluators of trials by one `metric`.

    `full` evaluates all validation users, and `sample` at most SAMPLE_USERS of them.
    """

    full: Evaluator
    sample: Evaluator
    metric: str

    @classmethod
    def of(cls, evaluator: Evaluator, metric: str, seed: int) -> Evaluators:
        return cls(evaluator, evaluator.sample(SAMPLE_USERS, seed), metric)
