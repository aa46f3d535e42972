"""irspack's IALSRecommender with a learned mean as the prior of users, and with support for very many features.

irspack regularizes users towards zero. Then a user with little history scores all items near 0, in an almost arbitrary
order. Regularized towards a common vector, such a user gets the popular items. That vector is learned as the weight of
a feature that all users share. The support for many features is in wide_features.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from irspack.recommenders import IALSRecommender
from scipy import sparse

from svc.training.fitting.algorithms.wide_features import WideFeatureTrainer, is_wide

_MEAN_RIDGE = 1.0  # keeps the system for the mean solvable, and is negligible beside the sum over all users
_INIT_STD = 1.0  # with irspack's 0.1 the mean takes dozens of epochs to reach its final size


class MeanPriorIALSRecommender(IALSRecommender, register_class=False):
    """irspack's IALSRecommender, where `mean_prior` gives every user one feature with the value 1.

    If there are user features, `mean_prior` changes nothing, because they already contain such a constant.
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

    def _create_trainer(self) -> Any:
        trainer = super()._create_trainer()
        if not is_wide(self.user_features) and not is_wide(self.item_features):
            return trainer
        matrix = self._scale_X(self.X_train_all, self.confidence_scaling, self.epsilon)
        return WideFeatureTrainer(trainer, self, matrix)

    def compute_user_embedding(self, X: Any, user_features: Any = None) -> Any:  # noqa: N803 - irspack's name
        if self.has_mean and user_features is None:
            user_features = _constant(X.shape[0])
        return super().compute_user_embedding(X, user_features)


def _constant(n_users: int) -> Any:
    return sparse.csr_matrix(np.ones((n_users, 1), dtype=np.float32))
