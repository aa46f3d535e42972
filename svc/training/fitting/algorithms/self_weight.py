"""The weight of an item for itself, with which a model recommends seen items again.

The diagonal of item weights has no effect if seen items are never recommended. With `training.repeats`, the weight of
each item for itself is `self_weight` times the largest of its weights for other items. With 0, a seen item gets its
score from the other items of the history. With 1, an item counts for itself as much as for its strongest
neighbour. With 100, the user's own history comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from scipy import sparse

from svc.recipe.algorithms import SELF_WEIGHT
from svc.training.fitting.algorithms.registry import Params, Space, nearest

VALUES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The choices of the search, unless the recipe gives bounds."""
_GUESSES = (1.0, 0.3, 3.0)
"""The values of the first trials, in turn."""


def with_self_weight(space: Space, bounds: Sequence[Any] | None) -> Space:
    """Return `space` with the self-weight as one more parameter: one of VALUES, or within the recipe's `bounds`."""
    distribution: BaseDistribution = CategoricalDistribution(VALUES)
    if bounds is not None:
        distribution = FloatDistribution(float(bounds[0]), float(bounds[1]))
    guesses = tuple(
        {**guess, SELF_WEIGHT: nearest(_GUESSES[number % len(_GUESSES)], distribution)}
        for number, guess in enumerate(space.guesses or ({},))
    )
    return Space({**space, SELF_WEIGHT: distribution}, guesses, space.grows)


def set_self_weights(recommender: Any, params: Params) -> None:
    """Set the diagonal of a trained `recommender` if `params` contain a self-weight."""
    if SELF_WEIGHT in params:
        recommender._W = with_diagonal(recommender._W, float(params[SELF_WEIGHT]))


def with_diagonal(weights: Any, self_weight: float) -> Any:
    """Return `weights`, (items, items), whose diagonal is `self_weight` times the largest other weight of each row.

    Dense weights are changed in place. The diagonal is 0 in a row without a positive weight for another item.
    """
    if not sparse.issparse(weights):
        np.fill_diagonal(weights, -np.inf)
        np.fill_diagonal(weights, self_weight * _not_below_zero(weights.max(axis=1)))
        return weights
    entries = weights.tocoo()
    is_other = entries.row != entries.col
    places = (entries.row[is_other], entries.col[is_other])
    others = sparse.csr_matrix((entries.data[is_other], places), shape=weights.shape)
    largest = _not_below_zero(others.max(axis=1).toarray().ravel())
    result = (others + sparse.diags(self_weight * largest, dtype=others.dtype)).tocsr()
    result.eliminate_zeros()
    result.sort_indices()
    return result


def _not_below_zero(values: NDArray[Any]) -> NDArray[Any]:
    bounded: NDArray[Any] = np.maximum(values, 0.0)
    return bounded
