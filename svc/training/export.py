"""From a trained irspack recommender to the model that is served.

Recommenders are read by their attributes, so irspack itself is not imported. What is taken is listed beside each
family; all else in them (training matrices, gradients, transposed copies, thread counts) stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import TrainingError
from svc.model.coldstart import LeastSquares
from svc.model.features import FeatureState
from svc.model.history import History, Offsets
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer


def export(
    recommender: Any,
    class_name: str,
    *,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    X: Any,  # noqa: N803
    features: FeatureState | None,
) -> Model:
    """The model of a trained `recommender`, ready to answer and to be encoded.

    `X` is the training matrix, (n_users, n_items) CSR. `features` are kept only where the scorer can use them: that
    is for feature-aware iALS. Raises TrainingError for a class that cannot be served, for values that are not
    finite, and where features were trained but cannot place anyone.
    """
    try:
        make = _SCORERS[class_name]
    except KeyError:
        raise TrainingError(f"{class_name} cannot be served; there are {', '.join(_SCORERS)}") from None
    scorer = make(recommender)
    model = Model(
        user_ids=IdTable.from_ids(user_ids),
        item_ids=IdTable.from_ids(item_ids),
        history=_history(X, with_values=scorer.reads_values),
        scorer=scorer,
        features=features if isinstance(scorer, IALSScorer) else None,
    )
    model.ready()
    return model


def _history(X: Any, *, with_values: bool) -> History:  # noqa: N803
    matrix = X.tocsr(copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    values = matrix.data.astype(np.float32)
    return History(
        _offsets(matrix.indptr),
        matrix.indices.astype(np.int32),
        values if with_values and (values != 1).any() else None,
    )


def _offsets(indptr: Any) -> Offsets:
    """Row starts of a compressed matrix, in four bytes each where these suffice."""
    return indptr.astype(np.int32) if indptr[-1] <= np.iinfo(np.int32).max else indptr.astype(np.int64)  # type: ignore[no-any-return]


def _float32(values: Any, what: str) -> NDArray[np.float32]:
    """A float32 copy in C order. Raises TrainingError where a value is not finite, or too large for float32."""
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=np.float32, order="C")
    if not np.isfinite(array).all():
        raise TrainingError(f"the trained {what} are not finite numbers; search again with stronger regularization")
    return array


def _ials(recommender: Any) -> Scorer:
    """User and item vectors, and what the objective says about a user or item that was not in training."""
    core = recommender.trainer_as_ials.core_trainer
    placing = LeastSquares(
        alpha0=float(recommender.alpha0),
        reg=float(recommender.scaled_reg),
        nu=float(recommender.nu),
        confidence=_confidence(recommender),
        pull=_confidence(recommender)
        + (float(recommender.alpha0) if recommender.loss_type.name == "ORIGINAL" else 0.0),
        n_users=int(recommender.n_users),
        n_items=int(recommender.n_items),
        user_weights=_weights(core.user_feature_weight, recommender.user_features, "user feature weights"),
        item_weights=_weights(core.item_feature_weight, recommender.item_features, "item feature weights"),
    )
    _check_placing(placing)
    return IALSScorer(
        _float32(core.user, "user vectors"), FactorIndex.build(_float32(core.item, "item vectors")), placing
    )


def _confidence(recommender: Any) -> float:
    """c of an interaction of value 1, as the recommender scales it."""
    if recommender.confidence_scaling.name == "none":
        return 1.0
    return float(np.log(1 + 1 / recommender.epsilon))


def _weights(weights: Any, features: Any, what: str) -> NDArray[np.float32] | None:
    return None if features is None else _float32(weights, what)


def _check_placing(placing: LeastSquares) -> None:
    """Refuse what has no unique minimum: with alpha0 = 0 and nu > 0, nothing holds an empty history in place."""
    if placing.regularization(1, placing.n_items) <= 0:
        raise TrainingError("reg must be above 0: without it, iALS cannot place a user from seed items")
    for side, weights, others in (
        ("user", placing.user_weights, placing.n_items),
        ("item", placing.item_weights, placing.n_users),
    ):
        if weights is not None and placing.regularization(0, others) <= 0:
            raise TrainingError(
                f"features.{side}: with alpha0 = 0 and nu > 0 the regularization of an empty history is 0,"
                " so features alone place nobody; set alpha0 above 0"
            )


def _svd(recommender: Any) -> Scorer:
    """The projections of the users, and the right singular vectors."""
    components = recommender.decomposer.components_
    return SVDScorer(_float32(recommender.z, "user vectors"), FactorIndex.build(_float32(components.T, "components")))


def _bprfm(recommender: Any) -> Scorer:
    """Embeddings, and item biases as one more component. User biases do not change an order; gradients are dropped."""
    machine = recommender.fm
    items = np.column_stack([machine.item_embeddings, machine.item_biases])
    return BPRScorer(
        _float32(machine.user_embeddings, "user vectors"), FactorIndex.build(_float32(items, "item vectors"))
    )


def _neighbours(recommender: Any) -> Scorer:
    weights = recommender.W.tocsr()
    weights.sort_indices()
    return NeighbourScorer(
        _offsets(weights.indptr), weights.indices.astype(np.int32), _float32(weights.data, "item weights")
    )


def _dense_slim(recommender: Any) -> Scorer:
    return DenseWeightsScorer(_float32(recommender.W, "item weights"))


def _popularity(recommender: Any) -> Scorer:
    return PopularityScorer(np.array(recommender.score, dtype=np.float64).ravel())


_SCORERS: Mapping[str, Callable[[Any], Scorer]] = {
    "IALSRecommender": _ials,
    "CosineKNNRecommender": _neighbours,
    "RP3betaRecommender": _neighbours,
    "DenseSLIMRecommender": _dense_slim,
    "TruncatedSVDRecommender": _svd,
    "BPRFMRecommender": _bprfm,
    "TopPopRecommender": _popularity,
}
