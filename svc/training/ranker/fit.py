"""Fit weights of features to the choices on many pages, by listwise softmax regression with L2.

| symbol | meaning |
|---|---|
| U | number of pages, one for each user |
| C | places of a page, with padding at the end of shorter ones |
| F | number of features |
| loss | mean over pages of the cross entropy of softmax(scores) and the shares of the chosen items, + l2/2 · |w|² |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

L2: Final = (1.0, 0.1, 0.01, 0.001, 0.0001)
"""Candidates, from strong to weak. Each fit starts from the weights of the one before."""
FOLDS: Final = 3
"""The number of parts of the fitting users in the cross-validation of the L2."""
_MOST_STEPS = 200

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


def fit(pages: Pages, *, seed: int) -> tuple[Values, float]:
    """Return the weights, (F,), with the least loss on `pages`, and their L2, chosen by cross-validation over users."""
    pages = pages.telling()
    if not len(pages):
        return np.zeros(pages.features.shape[2]), L2[0]
    with threadpool_limits(limits=1, user_api="blas"):  # the bits of a product depend on the number of threads
        l2 = _best_l2(pages, seed)
        *_, weights = _path(pages, [value for value in L2 if value >= l2])
    return weights, l2


def _best_l2(pages: Pages, seed: int) -> float:
    """Return the L2 with the least cross-validated loss, the strongest of equal ones."""
    fold = np.random.default_rng([seed, 29]).permutation(len(pages)) % FOLDS
    losses = np.zeros(len(L2))
    for number in range(FOLDS):
        others, own = pages.of(np.flatnonzero(fold != number)), pages.of(np.flatnonzero(fold == number))
        if len(others) and len(own):
            losses += [_loss(weights, own, 0.0)[0] * len(own) for weights in _path(others, L2)]
    return L2[int(np.argmin(losses))]


def _path(pages: Pages, values: tuple[float, ...] | list[float]) -> list[Values]:
    """Return the weights for each L2 of `values`, in their order."""
    weights, path = np.zeros(pages.features.shape[2]), []
    for l2 in values:
        weights = minimize(_loss, weights, (pages, l2), jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS}).x
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
