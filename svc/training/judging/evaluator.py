"""Score the rankings of a trained model on held-out interactions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.training.judging.metrics import METRICS, list_metrics, user_scores

_SCORE_DIGITS = 12

Rows = NDArray[np.int64]
Rankings = list[list[int]]
"""The best items of each user, best first."""
Ranker = Callable[[Rows, int], Rankings]
"""Returns the best items of (r,) ascending rows of the training matrix, at most the given number for each row.

Items that may not be shown to a user are left out.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """All METRICS of `rankings`. Row u of `truth` has the choices of the user of ranking u.

    `scores` are the (users,) scores by each metric of PER_USER, and `metrics` has their means.
    """

    metrics: dict[str, float]
    rankings: Rankings
    truth: sparse.csr_matrix
    scores: dict[str, NDArray[np.float64]]

    def by_user(self, metric: str) -> NDArray[np.float64]:
        """Return the (evaluated users,) scores behind the mean in `metrics`."""
        return self.scores[metric]


class Evaluator:
    """Evaluates the rankings of validation users by their held-out items.

    `heldout` is (v, items), one row for each validation user. Its row r belongs to row `offset + r` of the training
    matrix. Users without held-out items are ignored. With `weighted`, the values of `heldout` count in the metrics of
    PER_USER. Without it they are set to 1, so every metric counts items alike.
    """

    def __init__(self, heldout: sparse.csr_matrix, *, offset: int, cutoff: int, weighted: bool = False) -> None:
        self.weighted = weighted
        self.heldout = self._with_item_values(heldout)
        self.offset = offset
        self.cutoff = cutoff

    def sample(self, n_users: int, seed: int) -> Evaluator:
        """Return an evaluator of at most `n_users` validation users, always the same ones for the same seed."""
        with_items = np.flatnonzero(np.diff(self.heldout.indptr))
        if len(with_items) <= n_users:
            return self
        rows = np.random.default_rng([seed, 3]).permutation(with_items)[:n_users]
        is_sampled = np.zeros(self.heldout.shape[0], dtype=bool)
        is_sampled[rows] = True
        sampled = sparse.diags(is_sampled.astype(np.float32)) @ self.heldout
        sampled.eliminate_zeros()
        return self.of(sampled)

    def of(self, heldout: sparse.csr_matrix) -> Evaluator:
        """Return an evaluator of the same users by other held-out items, with the same rows and columns."""
        other = copy.copy(self)
        other.heldout = self._with_item_values(heldout)
        return other

    def _with_item_values(self, heldout: sparse.csr_matrix) -> sparse.csr_matrix:
        """Return `heldout` with the value by which each item counts."""
        if self.weighted or (heldout.data == 1).all():
            return heldout
        counted = heldout.copy()
        counted.eliminate_zeros()
        counted.data = np.ones_like(counted.data)
        return counted

    @property
    def evaluated_users(self) -> NDArray[np.int64]:
        """Return the (j,) rows of `heldout` with any item, ascending."""
        self.heldout.eliminate_zeros()
        return np.flatnonzero(np.diff(self.heldout.indptr))

    def evaluate(self, ranker: Ranker) -> Evaluation:
        """Return rankings and metrics at the cutoff."""
        return self._evaluation(self.rankings(ranker))

    def complete(self, ranker: Ranker, sample: Evaluator, ranked: Rankings) -> Evaluation:
        """Evaluate all users, given that the same ranker already `ranked` the users of `sample`."""
        evaluated, by_user = self.evaluated_users, dict(zip(sample.evaluated_users.tolist(), ranked, strict=True))
        others = evaluated[~np.isin(evaluated, sample.evaluated_users)]
        by_user.update(zip(others.tolist(), ranker(self.offset + others, self.cutoff), strict=True))
        return self._evaluation([by_user[row] for row in evaluated.tolist()])

    def by_user(self, rankings: Rankings, metric: str) -> NDArray[np.float64]:
        """Return (evaluated users,) scores of their rankings by one metric of PER_USER."""
        return user_scores(rankings, self.heldout[self.evaluated_users])[metric]

    def metrics(self, ranker: Ranker) -> dict[str, float]:
        """Return all METRICS at the cutoff."""
        return self.evaluate(ranker).metrics

    def _evaluation(self, rankings: Rankings) -> Evaluation:
        truth = self.heldout[self.evaluated_users]
        scores = user_scores(rankings, truth)
        metrics = {name: values.mean() for name, values in scores.items()} | list_metrics(rankings, truth)
        rounded = {name: round(float(metrics[name]), _SCORE_DIGITS) for name in METRICS}
        return Evaluation(rounded, rankings, truth, scores)

    def rankings(self, ranker: Ranker) -> Rankings:
        """Return the best items of each evaluated user: as many as the cutoff, or fewer if fewer may be shown."""
        return ranker(self.offset + self.evaluated_users, self.cutoff)


SAMPLE_USERS = 2_000
"""Most validation users on whom screenings, epochs, recencies and blends are compared, because an evaluation
of all costs more than an epoch. The score of a trial is always that of all validation users."""
_FEW_USERS = 400
"""Most users of the sample on whom the values of recency are compared, before the best is confirmed on all of it."""


@dataclass(frozen=True, slots=True)
class Evaluators:
    """Evaluators of trials: `full` on all validation users, `sample` on some of them, `few` on some of these."""

    full: Evaluator
    sample: Evaluator
    few: Evaluator
    metric: str

    @classmethod
    def of(cls, evaluator: Evaluator, metric: str, seed: int) -> Evaluators:
        return cls(evaluator, evaluator.sample(SAMPLE_USERS, seed), evaluator.sample(_FEW_USERS, seed), metric)
