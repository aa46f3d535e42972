"""Measure the gain of a learned order on users that did not fit it, user by user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranker.page_ranker import REORDERED
from svc.training.judging.intervals import Change, paired_change
from svc.training.judging.metrics import user_scores
from svc.training.ranker.fit import Pages, fit

FOLDS: Final = 4
"""The number of parts of the users in the cross-validation."""

Values = NDArray[np.float64]


class Judged(NamedTuple):
    """The cross-validated gain of a learned order, with its weights.

    Page u is reordered by `weights[fold[u]]`, which are fitted on the users of other folds.
    """

    gain: Change
    fold: NDArray[np.int64]
    weights: tuple[Values, ...]


def reorder_pages(pages: Pages, rankings: Sequence[Sequence[int]], weights: Values) -> list[list[int]]:
    """Return the rankings with the best REORDERED items of each in the order of the weights."""
    scores = pages.features[:, :REORDERED] @ weights
    scores[~pages.is_item[:, :REORDERED]] = -np.inf
    orders = np.argsort(-scores, axis=1, kind="stable")
    shown = []
    for ranking, order in zip(rankings, orders.tolist(), strict=True):
        n = min(REORDERED, len(ranking))
        shown.append([*(ranking[position] for position in order[:n]), *ranking[n:]])
    return shown


def judge(
    pages: Pages,
    rankings: Sequence[Sequence[int]],
    truth: sparse.csr_matrix,
    *,
    metric: str,
    cutoff: int,
    seed: int,
) -> Judged:
    """Return the gain by `metric` over `rankings`, one for each page.

    Row u of `truth`, (users, items), has the choices of user u. The weights and the L2 for a user are fitted on other
    users.
    """
    fold = np.random.default_rng([seed, 31]).permutation(len(pages)) % FOLDS
    gained, by_fold = np.zeros(len(pages)), []
    before = user_scores([ranking[:cutoff] for ranking in rankings], truth)[metric]
    for number in range(FOLDS):
        own = np.flatnonzero(fold == number)
        weights, _ = fit(pages.of(np.flatnonzero(fold != number)), seed=seed)
        by_fold.append(weights)
        shown = reorder_pages(pages.of(own), [rankings[user] for user in own.tolist()], weights)
        gained[own] = user_scores([ranking[:cutoff] for ranking in shown], truth[own])[metric]
    return Judged(paired_change(gained, before, seed=seed), fold, tuple(by_fold))
