"""Searches the index of item vectors for several query vectors in one pass; `factor_scan` defines the terms."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Ranking
from svc.model.ranking.topk import group_count, group_maxima
from svc.model.recommenders.factor_scan import (
    LOWEST,
    NORM_STEP,
    RESCORE_AT_ONCE,
    Layout,
    Positions,
    Scores,
    Wanted,
    error_bound,
    first_block,
    row_sums,
    zero_items,
)

BLOCK_SCORES = 1 << 22
"""Approximate scores held in memory at once: 16 MiB of float32."""
POOL_LIMIT = 1 << 18
"""Candidates beyond twice those wanted that may be collected before they are reduced to the best of each vector."""


def scan_many(
    layout: Layout,
    vectors: NDArray[np.float64],
    wanted: Sequence[Wanted],
    *,
    cosine: bool,
) -> list[Ranking]:
    """As `scan_one` for each row of `vectors`, (b, K)."""
    return _Scan(layout, vectors, wanted, cosine=cosine).run()


class _Scan:
    """One pass over the index for several vectors. `alive` are the rows for which later items may matter."""

    def __init__(
        self,
        layout: Layout,
        vectors: NDArray[np.float64],
        wanted: Sequence[Wanted],
        *,
        cosine: bool,
    ) -> None:
        excluded = [query.excluded for query in wanted]
        self.layout = layout
        self.cosine = cosine
        self.vectors = vectors
        self.approximate = vectors.astype(np.float32)
        self.limits = np.array([query.limit for query in wanted], dtype=np.intp)
        self.most = int(self.limits.max())
        self.lengths = np.sqrt(row_sums(vectors * vectors))
        self.slack = error_bound(vectors.shape[1], self.lengths * (1.0 if cosine else layout.norms[0]))
        self.excluded_rows = np.repeat(np.arange(len(excluded)), [len(columns) for columns in excluded])
        self.excluded_positions = layout.positions[np.concatenate(excluded)]
        self.allowed = [query.allowed for query in wanted]
        self.sets = _by_set(wanted)
        self.leaders = np.full((len(vectors), self.most), -np.inf, dtype=np.float32)
        self.floors = np.full(len(vectors), LOWEST, dtype=np.float32)
        self.pool: list[tuple[Positions, Positions, Scores]] = []

    def run(self) -> list[Ranking]:
        alive = np.arange(len(self.vectors))
        start, end, size = 0, self.layout.nonzero, first_block(self.most)
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
        for allowed, sharing_rows in self.sets:
            there = np.flatnonzero(np.isin(alive, sharing_rows))
            outside = np.flatnonzero(~allowed.contains(self.layout.columns[start:stop]))
            scores[np.ix_(there, outside)] = -np.inf
        inside = np.flatnonzero((self.excluded_positions >= start) & (self.excluded_positions < stop))
        if not len(inside):
            return
        row_of_alive = np.full(len(self.vectors), -1, dtype=np.intp)
        row_of_alive[alive] = np.arange(len(alive))
        rows = row_of_alive[self.excluded_rows[inside]]
        scored = rows >= 0
        scores[rows[scored], self.excluded_positions[inside[scored]] - start] = -np.inf

    def _raise_bounds(self, scores: Scores, alive: Positions) -> Scores:
        """Update the bounds with new scores; returns the bound of each row of `alive`."""
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
        by_row = [
            zero_items(
                self.layout,
                int(self.limits[row]),
                self.excluded_positions[self.excluded_rows == row],
                self.allowed[row],
            )
            for row in rows
        ]
        positions = np.concatenate([*by_row, np.empty(0, dtype=np.intp)])
        owners = np.repeat(np.array(rows, dtype=np.intp), [len(part) for part in by_row])
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


def _by_set(wanted: Sequence[Wanted]) -> list[tuple[ItemSet, list[int]]]:
    """Each set of allowed items with the rows that share it; rows without a set are left out."""
    by_bits: dict[bytes, tuple[ItemSet, list[int]]] = {}
    for row, query in enumerate(wanted):
        if query.allowed is not None:
            by_bits.setdefault(query.allowed.bits.tobytes(), (query.allowed, []))[1].append(row)
    return list(by_bits.values())
