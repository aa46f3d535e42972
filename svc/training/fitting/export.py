"""Convert a trained recommender to the scorer that is served, and build the model of this scorer.

Recommenders are read by their attributes, so irspack itself is not imported. Each algorithm's function copies the
attributes that serving needs and drops the rest (training matrices, gradients, transposed copies, thread counts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import TrainingError
from svc.model.coldstart import LeastSquares
from svc.model.features import FeatureState
from svc.model.history import History, Offsets
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranker.page_ranker import PageRanker
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer, PopularPart, by_count
from svc.recipe.algorithms import FACTORS, TOP_POP, TRANSITIONS
from svc.training.data.user_sample import solve_users
from svc.training.data.weights import in_order, weigh_rows
from svc.training.fitting.trial import TrialRecord

Columns = NDArray[np.int32] | slice
"""The training column of each column of the model."""
AS_TRAINED: Final[slice] = slice(None)


def to_scorer(recommender: Any, class_name: str, columns: Columns = AS_TRAINED) -> Scorer:
    """Return the served scorer of a trained `recommender`, with its items in the order of `columns`.

    Raise TrainingError for a class that cannot be served, for values that are not finite, and if features were trained
    but cannot be used to solve for a user or item.
    """
    try:
        make = _SCORERS[class_name]
    except KeyError:
        raise TrainingError(f"{class_name} cannot be served; there are {', '.join(_SCORERS)}") from None
    return make(recommender, columns)


def most_chosen_first(X: Any) -> NDArray[np.int32]:  # noqa: N803
    """Return columns of the training matrix by descending number of users who chose them, ties in training order.

    A model holds its items in this order. Every ranking puts the lower column first among equal scores, so the more
    popular item comes first without a second sort key. Models of earlier versions hold their items in training order.
    """
    return by_count(np.bincount(X.indices[X.data != 0], minlength=X.shape[1]))


def reorder_items(X: Any, columns: Columns) -> Any:  # noqa: N803
    """Return the training matrix with its items in the order of `columns`."""
    matrix = X.tocsr()[:, columns]
    matrix.sort_indices()
    return matrix


def to_history(
    X: Any,  # noqa: N803
    *,
    with_values: bool,
    positions: Any = None,
    recency: float | None = 0.0,
    beside: bool = False,
) -> History:
    """Return the rows of `X`, oldest first if `positions` of its entries are given.

    They are weighted by `recency`, or by the recency of each part of a blend if it is None. With `beside`, the part for
    features and seeds has a recency of its own.
    """
    matrix = X.tocsr(copy=True)
    matrix.sum_duplicates()
    if positions is None:
        matrix.eliminate_zeros()
        return _history(matrix, matrix.data.astype(np.float32), with_values=with_values)
    order, ties = in_order(positions)
    matrix.indices, values = matrix.indices[order], matrix.data[order].astype(np.float32)
    history = _history(matrix, values, with_values=with_values)
    return History(
        history.offsets,
        history.columns,
        history.weights,
        recency=recency or 0.0,
        ties=ties if ties.any() else None,
        recency_by_part=recency is None,
        keeps_order=recency == 0.0,
        recency_beside=beside,
    )


def _history(matrix: Any, values: NDArray[np.float32], *, with_values: bool) -> History:
    stored = values if with_values and (values != 1).any() else None
    return History(_offsets(matrix.indptr), matrix.indices.astype(np.int32), stored)


def _offsets(indptr: Any) -> Offsets:
    """Return the row starts of a compressed matrix, in four bytes each if these suffice."""
    return indptr.astype(np.int32) if indptr[-1] <= np.iinfo(np.int32).max else indptr.astype(np.int64)  # type: ignore[no-any-return]


def _bprfm(recommender: Any, columns: Columns) -> Scorer:
    """Return a scorer of embeddings, with item biases as one more component.

    User biases do not change an order. Gradients are dropped.
    """
    machine = recommender.fm
    items = np.column_stack([machine.item_embeddings, machine.item_biases])
    return BPRScorer(
        finite_float32(machine.user_embeddings, "user vectors"),
        FactorIndex.build(finite_float32(items, "item vectors")[columns]),
    )


def _neighbours(recommender: Any, columns: Columns) -> Scorer:
    weights = recommender.W.tocsr()[columns]
    positions = np.empty(weights.shape[1], dtype=weights.indices.dtype)
    positions[columns] = np.arange(len(positions))
    weights.indices = positions[weights.indices]
    weights.has_sorted_indices = False
    weights.sort_indices()
    return NeighbourScorer(
        _offsets(weights.indptr), weights.indices.astype(np.int32), finite_float32(weights.data, "item weights")
    )


def _dense_slim(recommender: Any, columns: Columns) -> Scorer:
    trained = recommender.W
    if columns is AS_TRAINED and trained.dtype == np.float32:
        return DenseWeightsScorer(checked_finite(np.ascontiguousarray(trained), "item weights"))
    weights = np.empty(trained.shape, dtype=np.float32)
    with np.errstate(over="ignore"):
        for row, source in zip(weights, np.arange(len(trained))[columns], strict=True):
            row[:] = trained[source][columns]  # by row: another full copy of the weights may not fit into memory
    return DenseWeightsScorer(checked_finite(weights, "item weights"))


def _popularity(recommender: Any, columns: Columns) -> Scorer:
    return PopularityScorer(np.array(recommender.score, dtype=np.float64).ravel()[columns])


def build_blend(parts: Sequence[Scorer], trial: TrialRecord) -> BlendScorer:
    """Return the blend of `trial`: the scorers of its parts with their weights, the factor model first.

    `fold_in_users` completes it: it solves for the users, then measures the deviation of each part's scores.
    """
    weighted = list(zip(parts, trial.params["weights"].values(), strict=True))
    factors = [(part, weight) for part, weight in weighted if isinstance(part, IALSScorer | SVDScorer)]
    sums = [(part, weight) for part, weight in weighted if isinstance(part, NeighbourScorer | DenseWeightsScorer)]
    popular = [PopularPart.of(part, weight) for part, weight in weighted if isinstance(part, PopularityScorer)]
    return BlendScorer.of(
        factors[0][0] if factors else None,
        [part for part, _ in sums],
        [weight for _, weight in factors + sums],
        None,
        popularity=popular[0] if popular else None,
    )


def fold_in_users(
    trial: TrialRecord,
    scorer: Scorer,
    matrix: sparse.csr_matrix,
    positions: sparse.csr_matrix | None,
    *,
    features: sparse.csr_matrix | None,
    rows: NDArray[Any] | None = None,
) -> None:
    """Solve for the vectors of all users of `matrix`, or of some `rows`.

    Histories are weighted by recency if `positions` are given. `features` are those of the users, (users, F).
    """
    recency = factors_first(trial.parts or (trial,))[0].recency
    histories = weigh_rows(matrix, positions, recency) if recency and positions is not None else matrix
    solve_users(scorer.factors if isinstance(scorer, BlendScorer) else scorer, histories, features, rows)
    if isinstance(scorer, BlendScorer):
        by_part = tuple(own.recency for own in factors_first(trial.parts) if own.algorithm != TOP_POP)
        scorer.recencies = by_part if trial.recency_by_part else ()
        recency_of_all = recency_of_histories(trial)
        scorer.measure(to_history(matrix, with_values=True, positions=positions, recency=recency_of_all), rows)


def factors_first(parts: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the parts of a blend in the order of its scorer."""
    return sorted(parts, key=lambda trial: trial.algorithm not in FACTORS)


def recency_of_histories(trial: TrialRecord) -> float | None:
    """Return the recency of all histories, or None if each part has its own."""
    return None if trial.recency_by_part else trial.recency


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


_SCORERS: Mapping[str, Callable[[Any, Columns], Scorer]] = {
    "IALSRecommender": ials_scorer,
    "CosineKNNRecommender": _neighbours,
    "RP3betaRecommender": _neighbours,
    "DenseSLIMRecommender": _dense_slim,
    "TruncatedSVDRecommender": svd_scorer,
    "BPRFMRecommender": _bprfm,
    "TopPopRecommender": _popularity,
    "SLIMRecommender": _neighbours,
    "EDLAERecommender": _neighbours,
    TRANSITIONS: _neighbours,
}


def assemble(
    scorer: Scorer,
    *,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    X: Any,  # noqa: N803
    features: FeatureState | None,
    cold: Scorer | None = None,
    cold_recency: float | None = None,
    hidden: Any = None,
    hidden_new: Any = None,
    hidden_new_ids: Sequence[str] = (),
    keep_values: bool = False,
    positions: Any = None,
    recency: float | None = 0.0,
    repeats: bool = False,
    popularity: NDArray[np.float64] | None = None,
    ranker: PageRanker | None = None,
) -> Model:
    """Return the model of a `scorer`, ready to answer and to be encoded.

    `X` is the training matrix, (n_users, n_items) CSR, with its items in the order of `scorer`. `keep_values` keeps its
    values for requests that add to a history, even if the scorer does not read them. Histories keep their order if
    `positions` of the entries of `X` are given. They are weighted by `recency`, or by the recency of each part if it is
    None.

    `hidden`, of the same shape as `X`, has 1 for items that a user is never shown. It has less for items that are shown
    again when a request includes seen items. `hidden_new`, (n_users, ids of `hidden_new_ids`), has the same for items
    that the model does not know. It is kept only if the model can score new items from features.

    `cold` answers queries with features and seeds instead of `scorer`, and weights histories by `cold_recency`.
    `features` are kept only if the scorer that answers such queries reads them. A `ranker` reorders the best items.
    With `repeats`, users are recommended seen items too, unless a request excludes them. `popularity` is the recent
    popularity of each item, (n_items,), or None for the number of its users.
    """
    reader = cold or scorer
    reads_features = reader.feature_dim("user") or reader.feature_dim("item")
    hides_new = hidden_new is not None and reader.feature_dim("item")
    is_beside = cold_recency not in (None, recency)
    model = Model(
        user_ids=IdTable.from_ids(user_ids),
        item_ids=IdTable.from_ids(item_ids),
        history=to_history(
            X,
            with_values=scorer.reads_values or keep_values,
            positions=positions,
            recency=recency,
            beside=is_beside and recency is not None,
        ),
        scorer=scorer,
        features=features if reads_features else None,
        cold=cold,
        cold_recency=(cold_recency or 0.0) if is_beside else 0.0,
        hidden=None if hidden is None else to_history(hidden, with_values=True),
        repeats=repeats,
        popularity=popularity,
        hidden_new=to_history(hidden_new, with_values=True) if hides_new else None,
        hidden_new_ids=IdTable.from_ids(hidden_new_ids) if hides_new else None,
        ranker=ranker,
    )
    model.ready()
    return model
