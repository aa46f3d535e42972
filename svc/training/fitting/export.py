"""Convert a trained recommender to the scorer that is served, and the training matrix to the histories that it reads.

Recommenders are read by their attributes, so irspack itself is not imported. Each algorithm's function copies the
attributes that serving needs and drops the rest (training matrices, gradients, transposed copies, thread counts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import TrainingError
from svc.model.history import History, Offsets
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
from svc.training.fitting.factors import AS_TRAINED, Columns, checked_finite, finite_float32, ials_scorer, svd_scorer
from svc.training.fitting.trial import TrialRecord


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
