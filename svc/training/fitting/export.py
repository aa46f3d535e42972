"""Convert a trained irspack recommender to a scorer that svc can serve, and build a model with this scorer.

Only attributes of recommenders are read, so this module does not import irspack. Each algorithm's function copies the
attributes that serving needs and drops the rest (training matrices, gradients, transposed copies, thread counts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from svc.model.weight_scale import Scale
from svc.recipe.algorithms import RIDGE_TRANSITIONS, TRANSITIONS
from svc.training.data.user_sample import solve_users
from svc.training.data.weights import decay_matrix, in_order, weigh_rows, weight_scale
from svc.training.fitting.algorithms.registry import Params
from svc.training.fitting.trial import TrialRecord

Columns = NDArray[np.int32] | slice
"""The column of the training matrix for each column of the model, or AS_TRAINED if they are the same."""
Weighed = tuple[Any, Scale | None]
"""Interactions, (users, items), with the weights that a part of a model reads, and the scale of these."""
AS_TRAINED: Final[slice] = slice(None)


def to_scorer(recommender: Any, class_name: str, columns: Columns = AS_TRAINED) -> Scorer:
    """Return the scorer to serve for a trained `recommender`, with its items in the order of `columns`.

    `class_name` is the algorithm's name in a recipe.

    Raise TrainingError for vectors or weights that are not finite in float32, and for iALS parameters with which the
    vector of a new user or item may not be unique.
    """
    return _SCORERS[class_name](recommender, columns)


def most_chosen_first(X: Any) -> NDArray[np.int32]:  # noqa: N803
    """Return the columns of training matrix `X` by descending number of users, ties in the order of columns.

    A model holds its items in this order. Every ranking puts the lower column first among equal scores, so the more
    popular item comes first without a second sort key. Models of earlier svc versions have the order of the training
    matrix.
    """
    # Stored zeros are no choices, as in rankings.
    return by_count(np.bincount(X.indices[X.data != 0], minlength=X.shape[1]))


def reorder_items(X: Any, columns: Columns) -> Any:  # noqa: N803
    """Return the training matrix `X` with its items in the order of `columns`."""
    matrix = X.tocsr()[:, columns]
    matrix.sort_indices()
    return matrix


def to_history(
    X: Any,  # noqa: N803
    *,
    positions: Any = None,
    recency: float = 0.0,
    beside: bool = False,
    seen: Any = None,
) -> History:
    """Return the rows of `X`, (users, items), as histories for a model. Values are kept as weights, unless all are 1.

    - `positions` has the position of each entry of `X` in its history (see `positions_of`). If given, items are ordered
      oldest first. Otherwise they are in the order of columns, and `recency` and `beside` are ignored.
    - `recency` is the rate by which a model with these histories weighs earlier items less (see `svc.model.history`).
    - `beside` is True if the scorer for users outside the training data has another recency than the main scorer.
    - `seen`, (users, items), has an entry for each item that is left out of the user's answers. None: all are.
    """
    matrix, ties = X.tocsr(copy=True), None
    # This also sorts each row by column, as unordered histories must be.
    matrix.sum_duplicates()
    if positions is None:
        matrix.eliminate_zeros()
    else:
        order, ties = in_order(positions)
        matrix.indices, matrix.data = matrix.indices[order], matrix.data[order]
    values = matrix.data.astype(np.float32)
    # Most tables have no weights. Without the array of ones, four bytes less are stored for each interaction.
    stored = values if (values != 1).any() else None
    is_seen = None if seen is None else has_entries(seen, matrix)
    history = History(_offsets(matrix.indptr), matrix.indices.astype(np.int32), stored, is_seen=is_seen)
    if ties is None:
        return history
    return replace(
        history,
        recency=recency,
        ties=ties if ties.any() else None,
        keeps_order=recency == 0.0,
        recency_beside=beside,
    )


def weigh(matrix: Any, times: Any, readings: Sequence[Params]) -> list[Weighed]:
    """Return the interactions `matrix`, (users, items), as each of `readings` (see `TrialRecord`) weighs them."""
    return [(decay_matrix(matrix, times, params), weight_scale(matrix, params)) for params in readings]


def to_histories(weighed: Sequence[Weighed], **given: Any) -> History:
    """Return the histories of the first of `weighed`, with the weights of the others as `History.others`.

    `given` are the other arguments of `to_history`.
    """
    first, *others = (to_history(matrix, **given) for matrix, _ in weighed)
    scale, *scales = (scale for _, scale in weighed)
    weights = (history.weights for history in others)
    return replace(first, weight_scale=scale, others=tuple(zip(weights, scales, strict=True)))


def has_entries(marked: Any, matrix: Any) -> NDArray[np.bool_]:
    """Return whether `marked` has an entry at the place of each entry of `matrix`, (nnz,). Both are CSR."""
    n_items = matrix.shape[1]
    # One number for each pair, so that one call compares all rows.
    keys = [
        np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)) * n_items + rows.indices for rows in (matrix, marked)
    ]
    return np.isin(*keys)


def _offsets(indptr: Any) -> Offsets:
    """Return the row starts of a CSR matrix as int32, or as int64 if one does not fit into int32."""
    return indptr.astype(np.int32) if indptr[-1] <= np.iinfo(np.int32).max else indptr.astype(np.int64)  # type: ignore[no-any-return]


def _bprfm(recommender: Any, columns: Columns) -> Scorer:
    """Return a scorer of LightFM's embeddings, with the item biases as an additional component.

    User biases are dropped, because they add the same to all scores of a user.
    """
    machine = recommender.fm
    items = np.column_stack([machine.item_embeddings, machine.item_biases])
    return BPRScorer(
        finite_float32(machine.user_embeddings, "user vectors"),
        FactorIndex.build(finite_float32(items, "item vectors")[columns]),
    )


def _neighbours(recommender: Any, columns: Columns) -> Scorer:
    weights = reorder_items(recommender.W.tocsr()[columns], columns)
    return NeighbourScorer(
        _offsets(weights.indptr), weights.indices.astype(np.int32), finite_float32(weights.data, "item weights")
    )


def _dense_slim(recommender: Any, columns: Columns) -> Scorer:
    trained = recommender.W
    # Shared, not copied: the copy took 0.8 s of a trial on film ratings, whose weights have 441 MB.
    if columns is AS_TRAINED and trained.dtype == np.float32:
        return DenseWeightsScorer(checked_finite(np.ascontiguousarray(trained), "item weights"))
    weights = np.empty(trained.shape, dtype=np.float32)
    with np.errstate(over="ignore"):
        for row, source in zip(weights, np.arange(len(trained))[columns], strict=True):
            # Row by row, because memory may be too small for another full copy of the weights.
            row[:] = trained[source][columns]
    return DenseWeightsScorer(checked_finite(weights, "item weights"))


def _popularity(recommender: Any, columns: Columns) -> Scorer:
    return PopularityScorer(np.array(recommender.score, dtype=np.float64).ravel()[columns])


def build_blend(parts: Sequence[Scorer], trial: TrialRecord) -> BlendScorer:
    """Return the blend of `parts`, the scorers of `trial.parts` in the same order, with the weights of `trial`.

    The factor model comes first. The blend cannot rank for training users before `fold_in_users` has solved for their
    vectors and measured the deviation of each part's scores.
    """
    weighted = list(zip(parts, trial.params["weights"].values(), trial.parts, strict=True))
    factors = [each for each in weighted if isinstance(each[0], IALSScorer | SVDScorer)]
    sums = [each for each in weighted if isinstance(each[0], NeighbourScorer | DenseWeightsScorer)]
    popular = [PopularPart.of(part, weight) for part, weight, _ in weighted if isinstance(part, PopularityScorer)]
    weighings = [trial.weighing_of(own) for _, _, own in factors + sums]
    return BlendScorer.of(
        factors[0][0] if factors else None,  # type: ignore[arg-type]
        [part for part, _, _ in sums],  # type: ignore[misc]
        [weight for _, weight, _ in factors + sums],
        None,
        popularity=popular[0] if popular else None,
        weighings=weighings if any(weighings) else (),
    )


def fold_in_users(
    trial: TrialRecord,
    scorer: Scorer,
    weighed: Sequence[Weighed],
    positions: sparse.csr_matrix | None,
    *,
    features: sparse.csr_matrix | None,
    rows: NDArray[Any] | None = None,
) -> None:
    """Set the vectors of all users in the scorer of `trial`, or only of `rows`, by solving for them exactly.

    - `weighed` are the histories as each of `trial.readings` weighs them, (users, items).
    - `positions` has the position of each entry in its history. If it is given, histories are weighted by recency.
    - `features`, (users, F), are the encoded features of the users.

    A scorer without user vectors stays as it is. For a blend, also measure the deviation of each part's scores for each
    of these users.

    Raise TrainingError if vectors cannot be solved for (see `solve_users`).
    """
    recency, blend = trial.recency, scorer if isinstance(scorer, BlendScorer) else None
    histories, _ = weighed[0 if blend is None else blend.weighing(0)]
    if recency and positions is not None:
        histories = weigh_rows(histories, positions, recency)
    solve_users(scorer if blend is None else blend.factors, histories, features, rows)
    if blend is not None:
        blend.measure(to_histories(weighed, positions=positions, recency=recency), rows)


def finite_float32(values: Any, name: str) -> NDArray[np.float32]:
    """Return a float32 copy of `values` in C order.

    Raise TrainingError if a value is not finite or too large for float32. Its message calls the values `name`.
    """
    # Values beyond float32 become infinite, and the next line refuses them.
    with np.errstate(over="ignore"):
        array = np.array(values, dtype=np.float32, order="C")
    return checked_finite(array, name)


def checked_finite(array: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    if not np.isfinite(array).all():
        raise TrainingError(f"the trained {name} are not finite numbers; search again with stronger regularization")
    return array


def ials_scorer(recommender: Any, columns: Columns = AS_TRAINED) -> IALSScorer:
    """Return the scorer of an iALS `recommender`, which can also solve for users and items outside the training."""
    # svc solves exactly. irspack's default solver stops after five steps: of users known by features alone, 7 to 29%
    # got another top 10 (ML-100K, 64 components).
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
    """Return the confidence of an interaction with value 1 after the recommender's confidence scaling."""
    if recommender.confidence_scaling.name == "none":
        return 1.0
    return float(np.log(1 + 1 / recommender.epsilon))


def _weights(weights: Any, features: Any, name: str) -> NDArray[np.float32] | None:
    return None if features is None else finite_float32(weights, name)


def _check_least_squares(least_squares: LeastSquares) -> None:
    """Raise TrainingError for parameters with which the vector of a new user or item may not be unique.

    If alpha0 = 0 and nu > 0, an empty history is not regularized. This is refused only for a side with features,
    because features alone may then describe a new user or item.
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
    """Return the scorer of a truncated SVD, with its factors for the items of a history, or None if all are 1."""
    scales = recommender.history_scales_[columns]
    return SVDScorer(
        finite_float32(recommender.z, "user vectors"),
        FactorIndex.build(finite_float32(recommender.get_item_embedding(), "item vectors")[columns]),
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
    TRANSITIONS: _neighbours,
    RIDGE_TRANSITIONS: _neighbours,
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
    hidden_of_others: Any = None,
    other_user_ids: Sequence[str] = (),
    positions: Any = None,
    recency: float = 0.0,
    repeats: bool = False,
    popularity: NDArray[np.float64] | None = None,
    ranker: PageRanker | None = None,
    seen: Any = None,
    scale: Scale | None = None,
    others: Sequence[Weighed] = (),
    weighing_beside: int = 0,
) -> Model:
    """Return the model of a `scorer`, ready to answer and to be encoded.

    - `X`, (n_users, n_items) CSR, is the training matrix, with its items in the order of `scorer`. Its values
      are kept even if the scorer ignores them, because a part for features places new items by them.
    - `positions` has the position of each entry of `X` in its history. If given, histories keep their order.
    - `recency` is the recency of `scorer`.
    - `cold` answers the queries for users outside the training data instead of `scorer`, by features or seeds.
      `cold_recency` is its recency.
    - `features` are the feature encoders. They are kept only if the scorer that answers these queries reads features.
    - `hidden`, (n_users, n_items), is 1 at items that a user is never shown. A smaller value marks an item that a
      request with `include_seen` may show.
    - `hidden_new`, (n_users, ids of `hidden_new_ids`), has the same values for items that are not in the training
      matrix. It is kept only if the model can score new items from features.
    - `hidden_of_others`, (`other_user_ids`, n_items + ids of `hidden_new_ids`), has the same values for users without
      a choice.
    - With `repeats`, users are recommended seen items too, unless a request excludes them.
    - `popularity`, (n_items,), is the recent popularity of each item. If it is None, popularity is the number of users.
    - `ranker` reorders the best items.
    - `seen`, (n_users, n_items), has an entry for each item that is left out of the user's answers. None: those of `X`.
    - `scale` is the scale of the values of `X`, to which the weights of requests are brought. None: they have none.
    - `others` are `X` with the weights that other parts read, which `cold` does if `weighing_beside` is not 0.
    """
    reader = cold or scorer
    reads_features = reader.feature_dim("user") or reader.feature_dim("item")
    hides_new = hidden_new is not None and reader.feature_dim("item")
    if hidden_of_others is not None and not hides_new:
        hidden_of_others = hidden_of_others[:, : len(item_ids)]
    is_beside = cold_recency not in (None, recency) or weighing_beside > 0
    history = to_histories([(X, scale), *others], positions=positions, recency=recency, beside=is_beside, seen=seen)
    model = Model(
        user_ids=IdTable.from_ids(user_ids),
        item_ids=IdTable.from_ids(item_ids),
        history=replace(history, weighing_beside=weighing_beside),
        scorer=scorer,
        features=features if reads_features else None,
        cold=cold,
        cold_recency=(cold_recency or 0.0) if is_beside else 0.0,
        hidden=None if hidden is None else to_history(hidden),
        repeats=repeats,
        popularity=popularity,
        hidden_new=to_history(hidden_new) if hides_new else None,
        hidden_new_ids=IdTable.from_ids(hidden_new_ids) if hides_new else None,
        hidden_of_others=None if hidden_of_others is None else to_history(hidden_of_others),
        other_user_ids=None if hidden_of_others is None else IdTable.from_ids(other_user_ids),
        ranker=ranker,
    )
    model.ready()
    return model
