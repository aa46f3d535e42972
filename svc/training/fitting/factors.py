"""Convert trained irspack factor models to the scorers that are served.

A search scores weighted histories with these scorers too, so it evaluates the model that is served.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from svc.errors import TrainingError
from svc.model.coldstart import LeastSquares
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import IALSScorer, SVDScorer

Columns = NDArray[np.int32] | slice
"""The training column of each column of the model."""
AS_TRAINED: Final = slice(None)


def finite_float32(values: Any, name: str) -> NDArray[np.float32]:
    """Return a float32 copy in C order.

    Raise TrainingError for a value that is not finite, or too large for float32.
    """
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=np.float32, order="C")
    return checked_finite(array, name)


def checked_finite(array: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    if not np.isfinite(array).all():
        raise TrainingError(f"the trained {name} are not finite numbers; search again with stronger regularization")
    return array


def ials_scorer(recommender: Any, columns: Columns = AS_TRAINED) -> IALSScorer:
    """Return a scorer of user and item vectors that can also solve for users and items outside the training."""
    core = recommender.trainer_as_ials.core_trainer
    has_mean = bool(getattr(recommender, "has_mean", False))
    learned = _weights(core.user_feature_weight, recommender.user_features, "user feature weights")
    least_squares = LeastSquares(
        alpha0=float(recommender.alpha0),
        reg=float(recommender.scaled_reg),
        nu=float(recommender.nu),
        confidence=_confidence(recommender),
        target_weight=_confidence(recommender)
        + (float(recommender.alpha0) if recommender.loss_type.name == "ORIGINAL" else 0.0),
        n_users=int(recommender.n_users),
        n_items=int(recommender.n_items),
        user_weights=None if has_mean else learned,
        item_weights=_weights(core.item_feature_weight, recommender.item_features, "item feature weights"),
        user_mean=learned[0] if has_mean and learned is not None else None,
    )
    _check_least_squares(least_squares)
    return IALSScorer(
        finite_float32(core.user, "user vectors"),
        FactorIndex.build(finite_float32(core.item, "item vectors")[columns]),
        least_squares,
    )


def _confidence(recommender: Any) -> float:
    """Return c of an interaction of value 1, as the recommender scales it."""
    if recommender.confidence_scaling.name == "none":
        return 1.0
    return float(np.log(1 + 1 / recommender.epsilon))


def _weights(weights: Any, features: Any, name: str) -> NDArray[np.float32] | None:
    return None if features is None else finite_float32(weights, name)


def _check_least_squares(least_squares: LeastSquares) -> None:
    """Raise TrainingError for parameters without a unique minimum.

    If alpha0 = 0 and nu > 0, an empty history is not regularized.
    """
    if least_squares.regularization(1, least_squares.n_items) <= 0:
        raise TrainingError("reg must be above 0: without it, iALS cannot place a user from seed items")
    for side, weights, others in (
        ("user", least_squares.user_weights, least_squares.n_items),
        ("item", least_squares.item_weights, least_squares.n_users),
    ):
        if weights is not None and least_squares.regularization(0, others) <= 0:
            raise TrainingError(
                f"features.{side}: with alpha0 = 0 and nu > 0 the regularization of an empty history is 0,"
                " so features alone place nobody; set alpha0 above 0"
            )


def svd_scorer(recommender: Any, columns: Columns = AS_TRAINED) -> SVDScorer:
    """Return a scorer of the users' projections, the item vectors, and the factors of the items of a history."""
    scales = recommender.history_scales_[columns]
    return SVDScorer(
        finite_float32(recommender.z, "user vectors"),
        FactorIndex.build(finite_float32(recommender.items_, "item vectors")[columns]),
        None if (scales == 1).all() else finite_float32(scales, "item scales"),
    )
