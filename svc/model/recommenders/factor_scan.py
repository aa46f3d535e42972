"""How an index of item vectors is searched: exact answers from float32 products of as few items as possible.

| symbol | meaning |
|---|---|
| n, K, b | items, components, vectors of one scan |
| position | place of an item in the index: items stand by falling norm, ties by column |
| column | place of an item in the training matrix |
| approximate | a float32 product; its last bits depend on the shape of the product |
| exact | the float64 sum of K products in a fixed order, which depends on the two vectors alone |
| slack | bound of \\|approximate − exact\\| for any item |
| bound | a value that at least `limit` of the approximate scores so far reach |
| floor | bound − 2 slack: what is below cannot be in the answer |

A scan goes through the index in blocks. What reaches the floor becomes a candidate, and the bound rises. Once
‖vector‖·‖next item‖ is below bound − slack, no later item can be in the answer. Candidates are scored exactly and
sorted by that, ties by column: so the bits of an answer depend on nothing but its query.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from svc.model.query import Ranking
from svc.model.topk import group_count, group_maxima

NORM_STEP = 256
"""Norms are kept for every such position."""
FIRST_BLOCK = 4096
FIRST_BLOCK_PER_ITEM = 128
"""The first block has this many positions for each item wanted, if that is more: fewer blocks for long answers."""
BLOCK_SCORES = 1 << 22
"""Approximate scores held at once, so 16 MiB."""
GEMM_FROM = 8
"""Fewer vectors than this are multiplied faster one at a time."""
RESCORE_AT_ONCE = 1 << 14
"""Candidates scored exactly at once."""
POOL_LIMIT = 1 << 18
"""Candidates beyond twice those wanted that may be collected before they are reduced to the best of each vector."""

LOWEST = float(np.finfo(np.float32).min)
UNIT_ROUNDOFF = 2.0**-24

Positions = NDArray[np.intp]
Scores = NDArray[np.float32]
Reach = TypeVar("Reach", float, NDArray[np.float64])


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The arrays of an index. `norms` are those of every NORM_STEP-th position, then 0; from `nonzero` on, all are 0.

    `positions` leads from columns, (n,). `inverse_norms`, (n,), are without the last component; None: no cosines.
    """

    factors: NDArray[np.float32]
    columns: NDArray[np.int32]
    positions: NDArray[np.int32]
    norms: list[float]
    nonzero: int
    inverse_norms: NDArray[np.float32] | None

    def longest(self, position: int) -> float:
        """A norm that no item from `position` on exceeds."""
        return self.norms[position // NORM_STEP] * (1 + 1e-9)

    def end_of_norms(self, norm: float) -> int:
        """A position from which on no norm reaches `norm`; it may be beyond the first such."""
        return bisect_right(self.norms, -norm, key=float.__neg__) * NORM_STEP

    def scores(self, vectors: Scores, start: int, stop: int, *, cosine: bool) -> Scores:
        """Approximate scores of the positions start..stop, (b, stop − start)."""
        factors = self.factors[start:stop]
        scores = np.empty((len(vectors), len(factors)), dtype=np.float32)
        if len(vectors) >= GEMM_FROM:
            np.matmul(vectors, factors.T, out=scores)
        else:
            for vector, row in zip(vectors, scores, strict=True):
                np.dot(factors, vector, out=row)
        if cosine and self.inverse_norms is not None:
            scores *= self.inverse_norms[start:stop]
        return scores

    def scores_of_one(self, vector: Scores, start: int, stop: int, *, cosine: bool) -> Scores:
        """Approximate scores of the positions start..stop for one vector, (stop − start,)."""
        scores: Scores = np.dot(self.factors[start:stop], vector)
        if cosine and self.inverse_norms is not None:
            scores *= self.inverse_norms[start:stop]
        return scores

    def exact(self, vectors: NDArray[np.float64], positions: Positions, *, cosine: bool) -> NDArray[np.float64]:
        """Exact scores of m positions, (m,), each for its own row of `vectors`, (m, K) or (1, K)."""
        factors = self.factors.take(positions, axis=0)
        scores = row_sums(vectors * factors)
        if cosine:
            norms = bias_free_norms(factors.astype(np.float64))
            np.divide(scores, norms, out=scores, where=norms > 0)
        return scores


def scan_one(
    layout: Layout, vector: NDArray[np.float64], limit: int, banned: NDArray[np.int32], *, cosine: bool
) -> Ranking:
    """The best items of one vector, (K,), that is not zero, without the columns in `banned`."""
    length = math.sqrt(vector @ vector)
    slack = _slack(len(vector), length if cosine else length * layout.norms[0])
    lone = _Lone(layout, vector.astype(np.float32), limit, layout.positions[banned], slack, cosine)
    if layout.nonzero <= _first_block(limit):
        positions, _, bound = lone.block(0, layout.nonzero, -math.inf)
    else:
        positions, bound = lone.blocks(length)
    if _floor(bound, slack) <= 0:
        positions = np.concatenate([positions, _zero_items(layout, limit, lone.avoided)])
    return _ranked(layout, vector, limit, positions, cosine=cosine)


class _Lone(NamedTuple):
    """The scan of one vector. A small index takes some ten microseconds, so every array operation counts here."""

    layout: Layout
    approximate: Scores
    limit: int
    avoided: NDArray[np.int32]
    slack: float
    cosine: bool

    def block(self, start: int, stop: int, bound: float) -> tuple[Positions, Scores, float]:
        """Candidates of the positions start..stop, counted from start, their scores, and the bound that they reach."""
        scores = self.layout.scores_of_one(self.approximate, start, stop, cosine=self.cosine)
        avoided = self.avoided
        if stop - start < len(self.layout.columns):
            avoided = avoided[(avoided >= start) & (avoided < stop)] - start
        scores[avoided] = -np.inf
        bound = max(bound, _bound_of_groups(scores, self.limit))
        kept = (scores >= _floor(bound, self.slack)).nonzero()[0]
        return kept, scores[kept], bound

    def blocks(self, length: float) -> tuple[Positions, float]:
        """Candidates of the whole index, and the bound. `length` is the norm of the vector."""
        positions, values = np.empty(0, dtype=np.intp), np.empty(0, dtype=np.float32)
        bound, start, end, size = -math.inf, 0, self.layout.nonzero, _first_block(self.limit)
        while start < end:
            stop = min(start + size, end)
            kept, scores, bound = self.block(start, stop, bound)
            positions, values = np.concatenate([positions, kept + start]), np.concatenate([values, scores])
            bound = max(bound, _kth(values, self.limit))
            if not self.cosine and bound > self.slack:
                end = min(end, self.layout.end_of_norms((bound - self.slack) / length * (1 - 1e-9)))
            start, size = stop, 2 * size
        return positions[values >= _floor(bound, self.slack)], bound


def _ranked(layout: Layout, vector: NDArray[np.float64], limit: int, positions: Positions, *, cosine: bool) -> Ranking:
    parts = range(0, max(1, len(positions)), RESCORE_AT_ONCE)
    exact = [layout.exact(vector[np.newaxis], positions[p : p + RESCORE_AT_ONCE], cosine=cosine) for p in parts]
    scores = exact[0] if len(exact) == 1 else np.concatenate(exact)
    columns = layout.columns[positions]
    order = np.lexsort((columns, -scores))[:limit]
    return Ranking(columns[order], scores[order])


def scan_many(
    layout: Layout,
    vectors: NDArray[np.float64],
    limits: Sequence[int],
    banned: Sequence[NDArray[np.int32]],
    *,
    cosine: bool,
) -> list[Ranking]:
    """As `scan_one` for each row of `vectors`, (b, K)."""
    return _Scan(layout, vectors, np.asarray(limits, dtype=np.intp), banned, cosine=cosine).run()


class _Scan:
    """One pass over the index for several vectors. `alive` are the rows for which later items may matter."""

    def __init__(
        self,
        layout: Layout,
        vectors: NDArray[np.float64],
        limits: NDArray[np.intp],
        banned: Sequence[NDArray[np.int32]],
        *,
        cosine: bool,
    ) -> None:
        self.layout = layout
        self.cosine = cosine
        self.vectors = vectors
        self.approximate = vectors.astype(np.float32)
        self.limits = limits
        self.most = int(limits.max())
        self.lengths = np.sqrt(row_sums(vectors * vectors))
        self.slack = _slack(vectors.shape[1], self.lengths * (1.0 if cosine else layout.norms[0]))
        self.banned_rows = np.repeat(np.arange(len(banned)), [len(columns) for columns in banned])
        self.banned_positions = layout.positions[np.concatenate(banned)]
        self.leaders = np.full((len(vectors), self.most), -np.inf, dtype=np.float32)
        self.floors = np.full(len(vectors), LOWEST, dtype=np.float32)
        self.pool: list[tuple[Positions, Positions, Scores]] = []

    def run(self) -> list[Ranking]:
        alive = np.arange(len(self.vectors))
        start, end, size = 0, self.layout.nonzero, _first_block(self.most)
        while start < end and len(alive):
            room = max(NORM_STEP, BLOCK_SCORES // len(alive))
            stop = min(start + min(size, room), end)
            alive, end = self._block(alive, start, stop)
            start, size = stop, 2 * size
        if self.layout.nonzero < len(self.layout.columns):
            self._collect_zero_items()
        return self._rankings()

    def _block(self, alive: Positions, start: int, stop: int) -> tuple[Positions, int]:
        """Score the positions start..stop for the rows `alive`; returns who stays alive and the end of their scan."""
        scores = self.layout.scores(self.approximate[alive], start, stop, cosine=self.cosine)
        self._mask(scores, alive, start, stop)
        bounds = self._raise_bounds(scores, alive)
        hits = np.flatnonzero(scores >= self.floors[alive, np.newaxis])
        rows, offsets = np.divmod(hits, stop - start)
        self._collect(alive[rows], offsets + start, scores.ravel()[hits])
        if self.cosine:
            return alive, self.layout.nonzero
        needed = (bounds - self.slack[alive]) / self.lengths[alive] * (1 - 1e-9)
        remaining = needed <= self.layout.longest(stop)
        least = float(needed[remaining].min(initial=np.inf))
        return alive[remaining], min(self.layout.nonzero, self.layout.end_of_norms(least))

    def _mask(self, scores: Scores, alive: Positions, start: int, stop: int) -> None:
        inside = np.flatnonzero((self.banned_positions >= start) & (self.banned_positions < stop))
        if not len(inside):
            return
        place = np.full(len(self.vectors), -1, dtype=np.intp)
        place[alive] = np.arange(len(alive))
        rows = place[self.banned_rows[inside]]
        scored = rows >= 0
        scores[rows[scored], self.banned_positions[inside[scored]] - start] = -np.inf

    def _raise_bounds(self, scores: Scores, alive: Positions) -> Scores:
        """Take new scores into account; returns the bound of each row of `alive`."""
        maxima = group_maxima(scores, group_count(self.most))
        merged = np.concatenate([self.leaders[alive], maxima], axis=1)
        leaders = np.partition(merged, merged.shape[1] - self.most, axis=1)[:, -self.most :]
        self.leaders[alive] = leaders
        ordered = np.sort(leaders, axis=1)
        bounds: Scores = ordered[np.arange(len(alive)), self.most - self.limits[alive]]
        self.floors[alive] = np.maximum(bounds - 2 * self.slack[alive], LOWEST)
        return bounds

    def _collect(self, rows: Positions, positions: Positions, scores: Scores) -> None:
        self.pool.append((rows, positions, scores))
        if sum(len(part[0]) for part in self.pool) > POOL_LIMIT + 2 * int(self.limits.sum()):
            rows, positions, _ = self._settle()
            self.pool = [(rows, positions, np.full(len(rows), np.inf, dtype=np.float32))]

    def _collect_zero_items(self) -> None:
        rows = np.flatnonzero(self.floors <= 0).tolist()
        found = [
            _zero_items(self.layout, int(self.limits[row]), self.banned_positions[self.banned_rows == row])
            for row in rows
        ]
        positions = np.concatenate([*found, np.empty(0, dtype=np.intp)])
        owners = np.repeat(np.array(rows, dtype=np.intp), [len(part) for part in found])
        self._collect(owners, positions, np.zeros(len(positions), dtype=np.float32))

    def _settle(self) -> tuple[Positions, Positions, NDArray[np.float64]]:
        """Rows, positions and exact scores of the `limit` best candidates of each row, in order."""
        rows, positions, approximate = (np.concatenate(parts) for parts in zip(*self.pool, strict=True))
        reaching = np.flatnonzero(approximate >= self.floors[rows])
        rows, positions = rows[reaching], positions[reaching]
        scores = np.empty(len(rows))
        for start in range(0, len(rows), RESCORE_AT_ONCE):
            part = slice(start, start + RESCORE_AT_ONCE)
            scores[part] = self.layout.exact(self.vectors[rows[part]], positions[part], cosine=self.cosine)
        order = np.lexsort((self.layout.columns[positions], -scores, rows))
        rows = rows[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        first = np.flatnonzero(rank < self.limits[rows])
        order = order[first]
        return rows[first], positions[order], scores[order]

    def _rankings(self) -> list[Ranking]:
        rows, positions, scores = self._settle()
        columns = self.layout.columns[positions]
        ends = np.searchsorted(rows, np.arange(len(self.vectors) + 1)).tolist()
        return [Ranking(columns[a:b], scores[a:b]) for a, b in pairwise(ends)]


def _zero_items(layout: Layout, limit: int, avoided: NDArray[np.int32]) -> Positions:
    """Positions of the first `limit` items of norm zero, which stand last and by column, that are not avoided."""
    avoided = avoided[avoided >= layout.nonzero]
    positions = np.arange(layout.nonzero, min(len(layout.columns), layout.nonzero + limit + len(avoided)))
    return np.setdiff1d(positions, avoided)


def _first_block(limit: int) -> int:
    return max(FIRST_BLOCK, FIRST_BLOCK_PER_ITEM * limit)


def _bound_of_groups(scores: Scores, limit: int) -> float:
    """A value that `limit` scores reach: that many groups have a maximum so large. The odd tail is left out."""
    groups = group_count(limit)
    depth = len(scores) // groups
    if depth <= 1:
        return _kth(scores, limit)
    maxima: Scores = np.maximum.reduce(scores[: depth * groups].reshape(depth, groups), axis=0)
    maxima.partition(groups - limit)
    return float(maxima[groups - limit])


def _kth(values: Scores, k: int) -> float:
    """The k-th largest value; minus infinity if there are fewer."""
    if len(values) < k:
        return -math.inf
    return float(np.partition(values, len(values) - k)[len(values) - k])


def _floor(bound: float, slack: float) -> float:
    """What a candidate must reach. Minus infinity, the score of banned items, never does."""
    return max(bound - 2 * slack, LOWEST)


def _slack(components: int, reach: Reach) -> Reach:
    """Bound of the error of a float32 inner product of vectors whose norms multiply to `reach`.

    Rounding the vector to float32 and K products and sums, in any order, err by at most about (K + 1) unit
    roundoffs times Σ|uᵢvᵢ| <= ‖u‖‖v‖; the rest is room for rounding the floor. Results below the smallest
    normal number may be lost altogether.
    """
    return (components + 8) * (UNIT_ROUNDOFF * 1.01 * reach + 1e-37)


def row_sums(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of the rows of a C-contiguous (m, K); the bits of each depend on its row alone."""
    sums: NDArray[np.float64] = np.add.reduce(products, axis=1)
    return sums


def bias_free_norms(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Norms of the rows without their last component."""
    directions = factors[:, :-1]
    return np.sqrt(row_sums(directions * directions))
