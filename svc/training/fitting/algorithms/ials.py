"""irspack's IALSRecommender with a learned mean as the prior of users, and with support for very many features.

irspack regularizes user vectors towards zero. A user with little history then has scores near 0 for all items, in an
almost arbitrary order. If user vectors are regularized towards their mean instead, such a user gets the popular items.
The mean is learned as the weight of a constant feature that all users share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from irspack.recommenders import IALSRecommender
from irspack.recommenders._ials_core import FeatureRidgeCholeskyError, IALSModelConfigBuilder
from irspack.recommenders._ials_core import IALSTrainer as Core
from irspack.recommenders.ials import IALSTrainer
from numpy.typing import NDArray
from scipy import sparse

_MEAN_RIDGE = 1.0
"""The regularization of the mean. It keeps the linear system for the mean solvable, and is negligible beside the sum
over all users in that system.
"""
_INIT_STD = 1.0
"""irspack's `init_std` for a model with a learned mean. With irspack's default 0.1, the mean takes dozens of epochs to
reach its final size.
"""


class MeanPriorIALSRecommender(IALSRecommender, register_class=False):
    """irspack's IALSRecommender, with a learned mean of the user vectors if `mean_prior` is set.

    `mean_prior` gives every user one feature with the value 1. It changes nothing if there are user features, because
    they already contain such a constant.
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
            user_features = sparse.csr_matrix(np.ones((matrix.shape[0], 1), dtype=np.float32))
            lambda_user_feature = _MEAN_RIDGE
            parameters.setdefault("init_std", _INIT_STD)
        super().__init__(matrix, user_features=user_features, lambda_user_feature=lambda_user_feature, **parameters)

    def _create_trainer(self) -> Any:
        trainer = super()._create_trainer()
        if not is_wide(self.user_features) and not is_wide(self.item_features):
            return trainer
        # irspack scales inside its trainer, which `WideFeatureTrainer` replaces.
        matrix = self._scale_X(self.X_train_all, self.confidence_scaling, self.epsilon)
        return WideFeatureTrainer(trainer, self, matrix)


MOST_DENSE_PLACES = 5_000
"""Maximum number of encoded features of one side that irspack solves for.

Its dense solver is faster for few features.
"""


def is_wide(features: Any) -> bool:
    """Return whether a side has more than MOST_DENSE_PLACES encoded features. None means no features."""
    return features is not None and features.shape[1] > MOST_DENSE_PLACES


class _Side(NamedTuple):
    """The features of the users or of the items, and their regularization.

    `features`, (n, P), has P encoded features for each of n users or items, P = 0 for a side without features.
    `row_weights`, (n,), is r and `ridge` is λ in the formula of `solve_ridge`.
    """

    features: sparse.csr_matrix
    row_weights: NDArray[np.float64]
    ridge: float

    def for_a_step(self, weights: NDArray[np.float32]) -> tuple[Any, NDArray[np.float32]]:
        """Return the features and weights to pass to irspack's trainer for one step, given the `weights`, (P, K).

        A wide side passes its prior F·W as K features, with the unit matrix as their weights.
        """
        if not is_wide(self.features):
            return self.features, weights
        return np.asarray(self.features @ weights, order="C"), np.eye(weights.shape[1], dtype=np.float32)

    def solve_weights(
        self, vectors: NDArray[np.float32], before: NDArray[np.float32], by_irspack: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the weights of the features, (P, K), after a step that gave `vectors`, (n, K).

        A wide side solves for the weights, starting at the weights `before` the step. Any other side returns the
        weights `by_irspack`. Raise FeatureRidgeCholeskyError as `solve_ridge` does.
        """
        if not is_wide(self.features):
            return by_irspack
        return solve_ridge(self.features, vectors, self.row_weights, self.ridge, before)


class WideFeatureTrainer(IALSTrainer):
    """A replacement for irspack's trainer, for more features than irspack's dense solver can handle.

    An epoch of irspack's trainer has four steps. It solves for user vectors, for the weights of user features, for item
    vectors, and for the weights of item features. The vectors depend on features F only through the prior F·W. So this
    trainer passes the prior itself to irspack as K features, with the unit matrix as their weights. It discards the
    weights that irspack learns for these K features, and solves for the true weights W by `solve_ridge`. The result
    equals irspack's, apart from rounding.

    `core_trainer` holds vectors and weights between epochs, as in irspack. `matrix`, (users, items), has the
    interactions after irspack's confidence scaling.
    """

    def __init__(self, trainer: Any, recommender: Any, matrix: sparse.csr_matrix) -> None:
        self.core_trainer = trainer.core_trainer
        self.solver_config = trainer.solver_config
        self.prediction_time_solver_config = trainer.prediction_time_solver_config
        self._config = _config(recommender)
        # irspack's core takes float32 only. Converting once saves a copy of all values in each epoch.
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
        user_features, user_start = users.for_a_step(before[0])
        item_features, item_start = items.for_a_step(before[1])
        # A new core for each epoch, because a core takes its features only when it is made.
        core = Core(self._config, self._matrix, user_features, item_features)
        del user_features, item_features
        core.user, core.item = held.user, held.item
        core.user_feature_weight, core.item_feature_weight = user_start, item_start
        # `core` has copies of the vectors. `held` is emptied, so that they are not in memory twice during the step.
        held.user = held.item = np.empty((0, before[0].shape[1]), dtype=np.float32)
        core.step(self.solver_config)
        held.user, held.item = core.user, core.item
        by_irspack = core.user_feature_weight, core.item_feature_weight
        del core
        # Both after the step, because item vectors do not depend on the weights of user features.
        held.user_feature_weight = users.solve_weights(held.user, before[0], by_irspack[0])
        held.item_feature_weight = items.solve_weights(held.item, before[1], by_irspack[1])


def _config(recommender: Any) -> Any:
    """Return the configuration of an irspack core trainer with initial vectors of zero, which are replaced anyway."""
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


TOLERANCE = 1e-9
"""A column of the weights is solved when its residual is below this share of the norm of its right-hand side."""
MOST_STEPS = 2_000
_ROWS_AT_ONCE = 65_536
"""Rows of F that are multiplied at once, so that the memory of a step does not grow with n."""

Matrix = NDArray[np.float64]


def solve_ridge(
    features: sparse.csr_matrix,
    vectors: NDArray[np.float32],
    row_weights: NDArray[np.float64],
    ridge: float,
    start: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Solve for the weights of very many features by conjugate gradients, beginning at `start`, (P, K).

    In feature-aware iALS the weights W of the features of one side minimize, for its vectors V,

        Σ_i r_i ‖v_i − Wᵀf_i‖² + λ ‖W‖²        so        (Fᵀ R F + λ I) W = Fᵀ R V ,   R = diag(r)

    | symbol | shape | meaning |
    |---|---|---|
    | F | (n, P) | encoded `features`, sparse, of n users or items |
    | V | (n, K) | their `vectors` |
    | r | (n,) | `row_weights`, the regularization of each vector |
    | λ | | `ridge` |
    | W | (P, K) | weights |

    irspack solves this system by the Cholesky decomposition of the dense P × P matrix, which needs memory in proportion
    to P². Conjugate gradients (Hestenes and Stiefel 1952), preconditioned by the diagonal, do without this matrix. They
    need memory for a copy of the values of F and for five arrays of the size of W. All K columns of W are solved
    together, and each step multiplies F and Fᵀ by K vectors.

    Raise FeatureRidgeCholeskyError, which irspack raises for a singular system, if MOST_STEPS steps do not suffice.
    """
    # In float64, because TOLERANCE is finer than the rounding of float32.
    parts = _scaled_parts(features, np.sqrt(row_weights))
    right = np.zeros(start.shape)
    begin = 0
    for part, weights in parts:
        rows = slice(begin, begin + part.shape[0])
        right += part.T @ (vectors[rows] * weights[:, np.newaxis])
        begin = rows.stop
    diagonal = np.full((len(start), 1), ridge)
    for part, _ in parts:
        diagonal[:, 0] += np.bincount(part.indices, np.square(part.data), len(start))
    solution = start.astype(np.float64)
    residual = right - _product(parts, ridge, solution)
    wanted = TOLERANCE * np.sqrt(_squares(right, right))
    del right
    direction = residual / diagonal
    steepness = _squares(residual, direction)
    for _ in range(MOST_STEPS):
        unsolved = np.sqrt(_squares(residual, residual)) > wanted
        if not unsolved.any():
            return solution.astype(np.float32)
        product = _product(parts, ridge, direction)
        length = _ratio(steepness, _squares(direction, product), unsolved)
        solution += length * direction
        residual -= length * product
        # Into `product`, which is no longer needed: five arrays of the size of W are enough.
        scaled = np.divide(residual, diagonal, out=product)
        before, steepness = steepness, _squares(residual, scaled)
        direction *= _ratio(steepness, before, unsolved)
        direction += scaled
    raise FeatureRidgeCholeskyError(f"the weights of {len(start)} features were not found in {MOST_STEPS} steps")


def _scaled_parts(
    features: sparse.csr_matrix, root_weights: NDArray[np.float64]
) -> list[tuple[sparse.csr_matrix, NDArray[np.float64]]]:
    """Return √R·F in blocks of rows, and the √r of each block's rows. The blocks share the column indices of F."""
    parts = []
    for begin in range(0, features.shape[0], _ROWS_AT_ONCE):
        bounds = features.indptr[begin : begin + _ROWS_AT_ONCE + 1]
        own, roots = slice(bounds[0], bounds[-1]), root_weights[begin : begin + _ROWS_AT_ONCE]
        data = features.data[own] * np.repeat(roots, np.diff(bounds))
        shape = (len(bounds) - 1, features.shape[1])
        parts.append((sparse.csr_matrix((data, features.indices[own], bounds - bounds[0]), shape=shape), roots))
    return parts


def _product(parts: list[tuple[sparse.csr_matrix, NDArray[np.float64]]], ridge: float, right: Matrix) -> Matrix:
    """Return (Fᵀ R F + λ I) times `right`, (P, K)."""
    product = ridge * right
    for part, _ in parts:
        product += part.T @ (part @ right)
    return product


def _squares(left: Matrix, right: Matrix) -> NDArray[np.float64]:
    """Return the inner product of each column of `left` with the same column of `right`, (K,)."""
    # The last bits of sums by BLAS depend on its number of threads. Those of einsum do not.
    return np.asarray(np.einsum("pk,pk->k", left, right), dtype=np.float64)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64], unsolved: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return above / below for each column, (K,).

    It is 0 for a solved column, which then no longer changes, and for a column in which `below` is not positive.
    """
    return np.divide(above, below, out=np.zeros_like(above), where=unsolved & (below > 0))
