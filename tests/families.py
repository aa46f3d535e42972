"""A small model of each family of recommenders. Sums of its numbers are exact on every machine."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from svc.model.coldstart import LeastSquares
from svc.model.features import FEATURE_VERSION, FeatureState, NumberColumn, SideEncoder, TokenColumn
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.dense_weights import DenseWeightsScorer
from svc.model.recommenders.factor_index import FactorIndex
from svc.model.recommenders.factors import BPRScorer, IALSScorer, SVDScorer
from svc.model.recommenders.neighbours import NeighbourScorer
from svc.model.recommenders.popularity import PopularityScorer, PopularPart

N_USERS, N_ITEMS = 12, 40
FAMILIES = ("IALS", "SVD", "BPR", "neighbours", "dense_weights", "popularity")
EVERY_FAMILY = (*FAMILIES, "blend", "popular_blend")
"""Also those whose sums depend on the machine."""


def _dyadic(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    """Return random multiples of 1/8. Sums of their products are exact in any order."""
    return (rng.integers(-16, 17, size=shape) / 8).astype(np.float32)


def _ials(rng: np.random.Generator, n_items: int) -> Scorer:
    weights = np.array([[0.5], [-0.25], [1.0], [0.125]], dtype=np.float32)
    solver = LeastSquares(
        alpha0=0.125, reg=0.25, nu=1.0, confidence=1.0, target_weight=1.0, n_users=N_USERS, n_items=n_items,
        user_weights=weights, item_weights=weights,
    )  # fmt: skip
    return IALSScorer(_dyadic(rng, N_USERS, 1), FactorIndex.build(_dyadic(rng, n_items, 1)), solver)


def _svd(rng: np.random.Generator, n_items: int) -> Scorer:
    return SVDScorer(_dyadic(rng, N_USERS, 4), FactorIndex.build(_dyadic(rng, n_items, 4)))


def _bpr(rng: np.random.Generator, n_items: int) -> Scorer:
    directions = np.zeros((n_items, 4), dtype=np.float32)
    directions[np.arange(n_items), rng.integers(0, 4, n_items)] = rng.integers(1, 9, n_items) / 4
    items = np.column_stack([directions, _dyadic(rng, n_items)]).astype(np.float32)
    return BPRScorer(_dyadic(rng, N_USERS, 4), FactorIndex.build(items))


def _neighbours(rng: np.random.Generator, n_items: int) -> Scorer:
    weights = _dyadic(rng, n_items, n_items) * (rng.random((n_items, n_items)) < 0.3)
    rows, columns = np.nonzero(weights)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_items))]).astype(np.int32)
    return NeighbourScorer(offsets, columns.astype(np.int32), weights[rows, columns].astype(np.float32))


def _dense_weights(rng: np.random.Generator, n_items: int) -> Scorer:
    return DenseWeightsScorer(_dyadic(rng, n_items, n_items))


def _popularity(rng: np.random.Generator, n_items: int) -> Scorer:
    return PopularityScorer(rng.integers(0, 9, n_items).astype(np.float64))


_MAKERS = {
    "IALS": _ials,
    "SVD": _svd,
    "BPR": _bpr,
    "neighbours": _neighbours,
    "dense_weights": _dense_weights,
    "popularity": _popularity,
}


def _encoder() -> SideEncoder:
    tokens = TokenColumn("tag", "categorical", IdTable.from_ids(["a", "b"]))
    return SideEncoder((tokens, NumberColumn("age", mean=40.0, deviation=8.0, low=8.0, high=88.0)))


def family(name: str, seed: int = 7, n_items: int = N_ITEMS) -> Model:
    """Return the model of one family.

    User u0 has seen one item, u1 two, and so on to twelve for u11.
    """
    rng = np.random.default_rng(seed)
    seen = [np.sort(rng.choice(n_items, user + 1, replace=False)).astype(np.int32) for user in range(N_USERS)]
    history = History(np.cumsum([0, *map(len, seen)]).astype(np.int64), np.concatenate(seen))
    if name in ("blend", "popular_blend"):
        svd, sums = cast(SVDScorer, _svd(rng, n_items)), [cast(NeighbourScorer, _neighbours(rng, n_items))]
        counts = PopularityScorer(np.arange(n_items, dtype=np.float64)[::-1])
        part = PopularPart.of(counts, 0.25) if name == "popular_blend" else None
        scorer: Scorer = BlendScorer.of(svd, sums, [0.7, 0.3], history, popularity=part)
    else:
        scorer = _MAKERS[name](rng, n_items)
    model = Model(
        user_ids=IdTable.from_ids([f"u{user}" for user in range(N_USERS)]),
        item_ids=IdTable.from_ids([f"i{item}" for item in range(n_items)]),
        history=history,
        scorer=scorer,
        features=FeatureState(FEATURE_VERSION, _encoder(), _encoder()) if name == "IALS" else None,
    )
    model.ready()
    return model
