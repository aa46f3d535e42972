"""The weight of an item for itself, which lets a model recommend again what somebody has already chosen.

Item weights say how much one item speaks for others, and their diagonal is of no use as long as nobody is recommended
what they have. Where items may be chosen again, the weight of each item for itself is `self_weight` times the largest
of its weights for others: 0 leaves repeats to the other items of a history, 1 ranks an item level with the one that it
speaks for most, and 100 puts the own history first.
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
"""What the search chooses from, unless the recipe bounds it."""
_GUESSES = (1.0, 0.3, 3.0)
"""The values of the first trials, in turn."""


def with_self_weight(space: Space, bounds: Sequence[Any] | None) -> Space:
    """`space` with the self-weight as one more parameter: of VALUES, or between the recipe's `bounds`."""
    distribution: BaseDistribution = CategoricalDistribution(VALUES)
    if bounds is not None:
        distribution = FloatDistribution(float(bounds[0]), float(bounds[1]))
    guesses = tuple(
        {**guess, SELF_WEIGHT: nearest(_GUESSES[number % len(_GUESSES)], distribution)}
        for number, guess in enumerate(space.guesses or ({},))
    )
    return Space({**space, SELF_WEIGHT: distribution}, guesses, space.grows)


def set_self_weights(recommender: Any, params: Params) -> None:
    """Give a trained `recommender` the diagonal that `params` name; without a self-weight it stays as it is."""
    if SELF_WEIGHT in params:
        recommender._W = with_diagonal(recommender._W, float(params[SELF_WEIGHT]))


def with_diagonal(weights: Any, self_weight: float) -> Any:
    """`weights`, (items, items), with `self_weight` times the largest other weight of each row in its diagonal.

    Dense weights are changed in place. A row without a positive weight for another item gets 0.
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
    weighed = (others + sparse.diags(self_weight * largest, dtype=others.dtype)).tocsr()
    weighed.eliminate_zeros()
    weighed.sort_indices()
    return weighed


def _not_below_zero(values: NDArray[Any]) -> NDArray[Any]:
    bounded: NDArray[Any] = np.maximum(values, 0.0)
    return bounded
