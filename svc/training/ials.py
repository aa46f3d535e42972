"""irspack's IALSRecommender, whose users may be drawn to a learned mean where irspack draws them to zero.

Drawn to zero, a user of whom little is known scores all items near 0, in an order that says little. Drawn to a common
vector, learned as the weight of a feature that all users share, that user gets the items that most people choose:
popularity is what is left where nothing else is known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders import IALSRecommender
from scipy import sparse

_MEAN_RIDGE = 1.0  # against the sum over all users, so of no weight: it keeps the system for the mean solvable
_INIT_STD = 1.0  # irspack's 0.1 lets a mean grow for dozens of epochs before its size, and so its pull, is right


class MeanPriorIALSRecommender(IALSRecommender, register_class=False):
    """With `mean_prior`, and without features of the users, these have one feature that is 1 for all.

    Features of the users come with such a constant, so `mean_prior` changes nothing beside them.
    """

    def __init__(
        self,
        matrix: Any,
        *,
        mean_prior: bool = False,
        user_features: Any = None,
        lambda_user_feature: float = 0.0,
        **parameters: Any,
    ) -> None:
        self.has_mean = mean_prior and user_features is None
        if self.has_mean:
            user_features, lambda_user_feature = _constant(matrix.shape[0]), _MEAN_RIDGE
            parameters.setdefault("init_std", _INIT_STD)
        super().__init__(matrix, user_features=user_features, lambda_user_feature=lambda_user_feature, **parameters)

    def compute_user_embedding(self, X: Any, user_features: Any = None) -> Any:  # noqa: N803 - irspack's name
        if self.has_mean and user_features is None:
            user_features = _constant(X.shape[0])
        return super().compute_user_embedding(X, user_features)


def _constant(n_users: int) -> Any:
    return sparse.csr_matrix(np.ones((n_users, 1), dtype=np.float32))
