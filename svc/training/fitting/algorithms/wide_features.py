"""Train iALS on more features than irspack's dense solve can handle.

An epoch of irspack's trainer has four steps: user vectors, weights of user features, item vectors, weights of item
features. The vectors depend on features only by the prior F·W. So irspack's trainer is given the prior itself as K
features, with the unit matrix as their weights. The weights that it learns for them are discarded, and `feature_ridge`
solves for W from the vectors. The result equals irspack's, apart from rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from irspack.recommenders._ials_core import IALSModelConfigBuilder
from irspack.recommenders._ials_core import IALSTrainer as Core
from irspack.recommenders.ials import IALSTrainer
from numpy.typing import NDArray
from scipy import sparse

from svc.training.fitting.algorithms.feature_ridge import solve_ridge

MOST_DENSE_PLACES = 5_000
"""Most encoded features of one side that are left to irspack, whose dense solve is faster for few of them."""


def is_wide(features: Any) -> bool:
    """Return whether a side has more than MOST_DENSE_PLACES encoded features. None means no features."""
    return features is not None and features.shape[1] > MOST_DENSE_PLACES


class _Side(NamedTuple):
    """Features of the users or items, (n, P), and their regularization. A side without features has P = 0.

    `row_weights`, (n,), are the r of the vectors, `ridge` is λ of the weights (see `feature_ridge`).
    """

    features: sparse.csr_matrix
    row_weights: NDArray[np.float64]
    ridge: float

    @property
    def is_wide(self) -> bool:
        return is_wide(self.features)

    def for_a_step(self, weights: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        """Return the features and weights, (P, K), for irspack's trainer. A wide side gives its prior instead."""
        if not self.is_wide:
            return self.features, weights
        return np.asarray(self.features @ weights, order="C"), np.eye(weights.shape[1], dtype=np.float32)

    def solve_weights(
        self, vectors: NDArray[np.float32], before: NDArray[np.float32], by_irspack: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the weights of the features after a step. A wide side solves for them, starting at those `before`."""
        if not self.is_wide:
            return by_irspack
        return solve_ridge(self.features, vectors, self.row_weights, self.ridge, before)


class WideFeatureTrainer(IALSTrainer):
    """irspack's trainer of one recommender, with its own `run_epoch` for wide features.

    `core_trainer` holds vectors and weights between epochs, as in irspack. `matrix` has the scaled interactions.
    """

    def __init__(self, trainer: Any, recommender: Any, matrix: sparse.csr_matrix) -> None:
        self.core_trainer = trainer.core_trainer
        self.solver_config = trainer.solver_config
        self.prediction_time_solver_config = trainer.prediction_time_solver_config
        self._config = _config(recommender)
        self._matrix = matrix.astype(np.float32)
        n_users, n_items = matrix.shape
        of_users, of_items = np.diff(matrix.indptr), np.bincount(matrix.indices, minlength=n_items)
        features = recommender.user_features, recommender.item_features
        ridges = recommender.lambda_user_feature, recommender.lambda_item_feature
        self._sides = tuple(
            _Side(
                sparse.csr_matrix((len(counts), 0), dtype=np.float32) if own is None else own,
                recommender.scaled_reg * (recommender.alpha0 * n_others + counts) ** recommender.nu,
                ridge,
            )
            for own, counts, n_others, ridge in zip(
                features, (of_users, of_items), (n_items, n_users), ridges, strict=True
            )
        )

    def run_epoch(self) -> None:
        """Run one epoch. Raise FeatureRidgeCholeskyError if the weights of the features cannot be solved for."""
        held, (users, items) = self.core_trainer, self._sides
        before = held.user_feature_weight, held.item_feature_weight
        (user_features, user_start), (item_features, item_start) = (
            users.for_a_step(before[0]),
            items.for_a_step(before[1]),
        )
        core = Core(self._config, self._matrix, user_features, item_features)
        del user_features, item_features
        core.user, core.item = held.user, held.item
        core.user_feature_weight, core.item_feature_weight = user_start, item_start
        held.user = held.item = np.empty(
            (0, before[0].shape[1]), dtype=np.float32
        )  # else in memory twice during the step
        core.step(self.solver_config)
        held.user, held.item = core.user, core.item
        by_irspack = core.user_feature_weight, core.item_feature_weight
        del core
        held.user_feature_weight = users.solve_weights(held.user, before[0], by_irspack[0])
        held.item_feature_weight = items.solve_weights(held.item, before[1], by_irspack[1])


def _config(recommender: Any) -> Any:
    """Return the configuration of a core trainer without random vectors, because those of `held` replace them."""
    return (
        IALSModelConfigBuilder()
        .set_K(recommender.n_components)
        .set_init_stdev(0.0)
        .set_alpha0(recommender.alpha0)
        .set_reg(recommender.scaled_reg)
        .set_nu(recommender.nu)
        .set_loss_type(recommender.loss_type)
        .set_random_seed(recommender.random_seed)
        .set_lambda_user_feature(recommender.lambda_user_feature)
        .set_lambda_item_feature(recommender.lambda_item_feature)
        .set_feature_warmup_epochs(0)
        .build()
    )
