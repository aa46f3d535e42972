"""Fit weights of features to the choices on many pages, by listwise softmax regression with L2, and measure their gain.

| symbol | meaning |
|---|---|
| U | number of pages, one for each user |
| C | places of a page, with padding at the end of shorter ones |
| F | number of features |
| loss | mean over pages of the cross entropy of softmax(scores) and the shares of the chosen items, + l2/2 · |w|² |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from svc.model.ranker.page_ranker import REORDERED
from svc.training.judging.intervals import Change, paired_change
from svc.training.judging.metrics import user_scores

L2: Final = (1.0, 0.1, 0.01, 0.001, 0.0001)
"""Candidates, from strong to weak. Each fit starts from the weights of the one before."""
FOLDS: Final = 4
"""The number of parts of the users in the cross-validation."""
_STEPS: Final = {"maxiter": 200, "ftol": 1e-6}
"""Halves the steps of SciPy's tolerance, 2e-9, which is finer than the products in single precision."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """Pages of recommendations, one for each user.

    `features` are standardized, (U, C, F). `is_item`, (U, C), is False at padded places. `chosen`, (U, C), has the
    held-out values of the items, 0 for items that the user did not choose.
    """

    features: NDArray[np.float32]
    is_item: NDArray[np.bool_]
    chosen: Values

    def __len__(self) -> int:
        return len(self.chosen)

    def of(self, pages: NDArray[np.intp]) -> Pages:
        """Return the pages with these numbers."""
        return Pages(self.features[pages], self.is_item[pages], self.chosen[pages])

    def telling(self) -> Pages:
        """Return the pages with a choice. The others say nothing about the order."""
        return self.of(np.flatnonzero(self.chosen.any(axis=1)))


class Fitted(NamedTuple):
    """The weights of all pages, (F,), with their L2, and for each page weights that were fitted without it.

    Page u is in part `fold[u]`, (U,). `of_others[fold[u]]`, (F,), are fitted on the pages of other parts.
    """

    weights: Values
    l2: float
    fold: NDArray[np.int64]
    of_others: tuple[Values, ...]


def fit(pages: Pages, *, seed: int) -> Fitted:
    """Return the weights with the least loss, with an L2 chosen by cross-validation over pages.

    The L2 for a part of the pages is chosen by the losses on the other parts. All parts share one cross-validation,
    because a nested one took three times as long. So a part has a slight influence on its L2, but none on its weights.
    """
    fold = np.random.default_rng([seed, 31]).permutation(len(pages)) % FOLDS
    losses, paths = np.zeros((FOLDS, len(L2))), []
    with threadpool_limits(limits=1, user_api="blas"):  # the bits of a product depend on the number of threads
        for number in range(FOLDS):
            own = pages.of(np.flatnonzero(fold == number)).telling()
            paths.append(_path(pages.of(np.flatnonzero(fold != number)), L2))
            if len(own):
                losses[number] = [_loss(weights, own, 0.0)[0] * len(own) for weights in paths[-1]]
        best = int(losses.sum(axis=0).argmin())
        weights = _path(pages, L2[: best + 1])[-1]
    of_others = (losses.sum(axis=0) - losses).argmin(axis=1).tolist()
    return Fitted(weights, L2[best], fold, tuple(path[own] for path, own in zip(paths, of_others, strict=True)))


def _path(pages: Pages, values: tuple[float, ...]) -> list[Values]:
    """Return the weights for each L2 of `values`, in their order, or zeros if no page has a choice."""
    pages = pages.telling()
    weights, path = np.zeros(pages.features.shape[2]), []
    if not len(pages):
        return [weights] * len(values)
    for l2 in values:
        weights = minimize(_loss, weights, (pages, l2), jac=True, method="L-BFGS-B", options=_STEPS).x
        path.append(weights)
    return path


def _loss(weights: Values, pages: Pages, l2: float) -> tuple[float, Values]:
    """Return the loss and its gradient."""
    scores = np.where(pages.is_item, pages.features @ weights.astype(np.float32), -np.inf).astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    totals = shares.sum(axis=1, keepdims=True)
    wanted = pages.chosen / pages.chosen.sum(axis=1, keepdims=True)
    logs = np.where(pages.is_item, scores - np.log(totals), 0.0)
    errors = ((shares / totals - wanted) / len(pages)).astype(np.float32)
    gradient = np.tensordot(errors, pages.features, axes=2).astype(np.float64)
    loss = -float((wanted * logs).sum()) / len(pages) + l2 / 2 * float(weights @ weights)
    return loss, gradient + l2 * weights


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
