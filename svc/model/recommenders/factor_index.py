"""Exact search for the items with the largest inner product with a vector."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import ItemSet, without
from svc.model.ranking.query import Ranking
from svc.model.recommenders.base import is_few
from svc.model.recommenders.factor_batch import scan_many
from svc.model.recommenders.factor_scan import (
    NORM_STEP,
    Layout,
    Wanted,
    bias_free_norms,
    row_sums,
    scan_few,
    scan_one,
)
from svc.model.stored import Stored

BLOCK_ROWS = 4096
ROWS_AT_ONCE = 256
"""Vectors that are searched together at most."""
MANY_FROM = 8
"""Below this number of vectors, searching one at a time is faster."""
SMALL_LIMIT = 32
"""Queries up to this limit are searched in a batch of their own: longer ones would make them scan more."""


class FactorIndex(Stored):
    """Item vectors, (n, K) float32 by falling norm, and the column, (n,) int32, at each position.

    `ready` must be called before anything is looked up.
    """

    _layout: Layout

    def __init__(self, factors: NDArray[np.float32], columns: NDArray[np.int32]) -> None:
        self.factors = factors
        self.columns = columns

    @classmethod
    def build(cls, factors: NDArray[np.float32]) -> FactorIndex:
        """From item vectors in column order, (n, K)."""
        order = np.argsort(-_row_norms(factors), kind="stable")
        return cls(np.ascontiguousarray(factors[order], dtype=np.float32), order.astype(np.int32))

    @property
    def n_items(self) -> int:
        return len(self.factors)

    @property
    def layout(self) -> Layout:
        """The arrays that a search reads."""
        return self._layout

    def ready(self, *, cosine: bool = False) -> None:
        """Compute positions and norms; with `cosine` also what `search(cosine=True)` reads."""
        n = self.n_items
        positions = np.empty(n, dtype=np.int32)
        positions[self.columns] = np.arange(n, dtype=np.int32)
        self._layout = Layout(
            factors=self.factors,
            columns=self.columns,
            positions=positions,
            norms=[*_row_norms(self.factors[::NORM_STEP]).tolist(), 0.0],
            nonzero=bisect_left(range(n), True, key=lambda position: not self.factors[position].any()),
            inverse_norms=self._inverse_norms() if cosine else None,
        )

    def vectors(self, columns: NDArray[np.int32]) -> NDArray[np.float64]:
        """Item vectors of the columns, (s, K)."""
        return self.factors.take(self._layout.positions[columns], axis=0).astype(np.float64)

    def search(
        self,
        vectors: NDArray[np.float64],
        limits: Sequence[int],
        excluded: Sequence[NDArray[np.int32]],
        allowed: Sequence[ItemSet | None] | None = None,
        *,
        cosine: bool = False,
    ) -> list[Ranking]:
        """The best items of each row of `vectors`, (B, K), by inner product, without the columns that it excludes.

        A row with a set in `allowed` ranks the items of that set alone. With `cosine` the product is divided by the
        norm of the item vector without its last component, the bias; that of a zero vector is 0. The bits of a
        ranking depend on its own vector, limit, exclusions and set, not on other rows.
        """
        asked = list(map(Wanted, limits, excluded, allowed or [None] * len(limits)))
        if len(vectors) == 1:
            return [self.search_one(vectors[0], asked[0], cosine=cosine)]
        nonzero = np.any(vectors, axis=1).tolist()
        rankings: dict[int, Ranking] = {}
        groups: tuple[list[int], list[int]] = ([], [])
        for row, wanted in enumerate(asked):
            if nonzero[row] and (wanted.allowed is None or not is_few(wanted.allowed)):
                groups[wanted.limit > SMALL_LIMIT].append(row)
            else:
                rankings[row] = self.search_one(vectors[row], wanted, cosine=cosine)
        for rows in (*_portions(groups[0]), *_portions(groups[1])):
            some = [asked[row] for row in rows]
            if len(rows) < MANY_FROM:
                portion = [self.search_one(vectors[row], asked[row], cosine=cosine) for row in rows]
            else:
                portion = scan_many(self._layout, vectors[rows], some, cosine=cosine)
            rankings.update(zip(rows, portion, strict=True))
        return [rankings[row] for row in range(len(vectors))]

    def search_one(self, vector: NDArray[np.float64], wanted: Wanted, *, cosine: bool = False) -> Ranking:
        """As `search`, for one vector, (K,)."""
        length = math.sqrt(vector @ vector)
        if not length and not vector.any():
            return self._first_columns(wanted)
        if wanted.allowed is not None and is_few(wanted.allowed):
            columns = wanted.allowed.columns_without(wanted.excluded)
            return scan_few(self._layout, vector, length, wanted, columns, cosine=cosine)
        return scan_one(self._layout, vector, length, wanted, cosine=cosine)

    def _first_columns(self, wanted: Wanted) -> Ranking:
        """The ranking of a zero vector, for which all items score 0."""
        if wanted.allowed is None:
            columns = np.arange(min(self.n_items, wanted.limit + len(wanted.excluded)), dtype=np.int32)
            columns = without(columns, wanted.excluded, self.n_items)[: wanted.limit]
        else:
            columns = wanted.allowed.columns_without(wanted.excluded)[: wanted.limit]
        return Ranking(columns, np.zeros(len(columns)))

    def _inverse_norms(self) -> NDArray[np.float32]:
        norms = np.concatenate([bias_free_norms(part.astype(np.float64)) for part in _blocks(self.factors)])
        inverse: NDArray[np.float32] = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0).astype(
            np.float32
        )
        return inverse


def gram(factors: NDArray[np.float32]) -> NDArray[np.float64]:
    """FᵀF in float64, (K, K)."""
    total = np.zeros((factors.shape[1], factors.shape[1]))
    for part in _blocks(factors):
        exact = part.astype(np.float64)
        total += exact.T @ exact
    return total


def _portions(rows: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(rows), ROWS_AT_ONCE):
        yield rows[start : start + ROWS_AT_ONCE]


def _blocks(factors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The rows in blocks, as views, so that converting to float64 takes little memory; at least one block."""
    for start in range(0, max(1, len(factors)), BLOCK_ROWS):
        yield factors[start : start + BLOCK_ROWS]


def _row_norms(factors: NDArray[np.float32]) -> NDArray[np.float64]:
    exact = (part.astype(np.float64) for part in _blocks(factors))
    return np.concatenate([np.sqrt(row_sums(part * part)) for part in exact])
