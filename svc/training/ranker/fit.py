"""Fit weights of features to the choices on many pages, by listwise softmax regression with L2.

A page has the items that the winner of the search ranks best for one user.

| symbol | meaning |
|---|---|
| U | number of pages, one for each user |
| C | places of a page, with padding at the end of shorter ones |
| F | number of features |
| loss | mean over pages of the cross entropy of softmax(scores) and the shares of the chosen items, + l2/2 · |w|² |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from svc.cores import one_blas_thread

L2: Final = (1.0, 0.1, 0.01, 0.001, 0.0001)
"""The strengths of L2 regularization to try, from strong to weak. Each fit starts from the weights of the last one."""
FOLDS: Final = 4
"""The number of parts of the users in the cross-validation."""
_STEPS: Final = {"maxiter": 200, "ftol": 1e-6}
"""Options of SciPy's optimizer. SciPy's default tolerance, 2e-9, is finer than products in single precision, and takes
twice as many steps.
"""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """Pages of recommendations, one for each user.

    - `features`, (U, C, F), are the standardized features of the items.
    - `is_item`, (U, C), is False at padded places.
    - `chosen`, (U, C), is the value of each item among the user's held-out items, 0 if the user did not choose it.
    """

    features: NDArray[np.float32]
    is_item: NDArray[np.bool_]
    chosen: Values

    def __len__(self) -> int:
        return len(self.chosen)

    def of(self, pages: NDArray[np.intp]) -> Pages:
        """Return only the pages at these positions."""
        return Pages(self.features[pages], self.is_item[pages], self.chosen[pages])

    def telling(self) -> Pages:
        """Return only the pages with a chosen item. No order can be learned from the other pages."""
        return self.of(np.flatnonzero(self.chosen.any(axis=1)))


class FittedWeights(NamedTuple):
    """The weights that were fitted on all pages, and for each page weights that were fitted without it.

    - `weights`, (F,), are fitted on all pages, with regularization `l2`.
    - `fold`, (U,), is the number of the part of the cross-validation to which each page belongs.
    - `of_others[fold[u]]`, (F,), are the weights for page u. They were fitted on the pages of all other parts.
    """

    weights: Values
    l2: float
    fold: NDArray[np.int64]
    of_others: tuple[Values, ...]


def fit(pages: Pages, *, seed: int) -> FittedWeights:
    """Return the weights with the least loss, with an L2 chosen by cross-validation over pages.

    For each part of the pages, weights are fitted on the other parts. Their L2 is the value with the least loss summed
    over these other parts. The weights behind these losses were also fitted on the part itself, so the part slightly
    influences the L2 of its own weights. A nested cross-validation would avoid this, but took three times as long.

    All weights are 0 if no page has a chosen item.
    """
    fold = np.random.default_rng([seed, 31]).permutation(len(pages)) % FOLDS
    losses, paths = np.zeros((FOLDS, len(L2))), []
    with one_blas_thread():  # the bits of a product depend on the number of threads
        for number in range(FOLDS):
            # Pages without a choice have no loss: their shares of chosen items would divide 0 by 0.
            own = pages.of(np.flatnonzero(fold == number)).telling()
            paths.append(_path(pages.of(np.flatnonzero(fold != number)), L2))
            if len(own):
                # Without the penalty: the choices of the other pages judge the weights, not their size.
                losses[number] = [_loss(weights, own, 0.0)[0] * len(own) for weights in paths[-1]]
        best = int(losses.sum(axis=0).argmin())
        # Along the path from the strongest L2, because each fit of a fold also started from the one before.
        weights = _path(pages, L2[: best + 1])[-1]
    of_others = (losses.sum(axis=0) - losses).argmin(axis=1).tolist()
    return FittedWeights(weights, L2[best], fold, tuple(path[own] for path, own in zip(paths, of_others, strict=True)))


def _path(pages: Pages, values: tuple[float, ...]) -> list[Values]:
    """Return the weights for each L2 in `values`, or zeros if no page has a chosen item."""
    pages = pages.telling()
    weights, path = np.zeros(pages.features.shape[2]), []
    if not len(pages):
        return [weights] * len(values)
    for l2 in values:
        weights = minimize(_loss, weights, (pages, l2), jac=True, method="L-BFGS-B", options=_STEPS).x
        path.append(weights)
    return path


def _loss(weights: Values, pages: Pages, l2: float) -> tuple[float, Values]:
    """Return the loss of `weights` and its gradient, (F,). Each page must have a chosen item."""
    # float32 weights: with float64 ones, numpy converts the whole table, 48 instead of 2 ms for 5,000 pages of 100
    # items.
    scores = np.where(pages.is_item, pages.features @ weights.astype(np.float32), -np.inf).astype(np.float64)
    # Before `exp`, which overflows from 710 on.
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    totals = shares.sum(axis=1, keepdims=True)
    wanted = pages.chosen / pages.chosen.sum(axis=1, keepdims=True)
    # 0 at padding, where 0 · −inf would make the loss NaN.
    logs = np.where(pages.is_item, scores - np.log(totals), 0.0)
    errors = ((shares / totals - wanted) / len(pages)).astype(np.float32)
    gradient = np.tensordot(errors, pages.features, axes=2).astype(np.float64)
    loss = -float((wanted * logs).sum()) / len(pages) + l2 / 2 * float(weights @ weights)
    return loss, gradient + l2 * weights
