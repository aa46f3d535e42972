"""Measure the gain of a learned order on users that did not fit it, user by user."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.model.ranker.page_ranker import REORDERED
from svc.training.judging.intervals import Change, paired_change
from svc.training.judging.metrics import user_scores
from svc.training.ranker.fit import Fitted, Pages

Values = NDArray[np.float64]


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
    fitted: Fitted,
    rankings: Sequence[Sequence[int]],
    truth: sparse.csr_matrix,
    *,
    metric: str,
    cutoff: int,
    seed: int,
) -> Change:
    """Return the gain by `metric` over `rankings`, one for each page, by weights that were fitted on other pages.

    Row u of `truth`, (users, items), has the choices of user u.
    """
    gained = np.zeros(len(pages))
    before = user_scores([ranking[:cutoff] for ranking in rankings], truth)[metric]
    for number, weights in enumerate(fitted.of_others):
        own = np.flatnonzero(fitted.fold == number)
        shown = reorder_pages(pages.of(own), [rankings[user] for user in own.tolist()], weights)
        gained[own] = user_scores([ranking[:cutoff] for ranking in shown], truth[own])[metric]
    return paired_change(gained, before, seed=seed)
