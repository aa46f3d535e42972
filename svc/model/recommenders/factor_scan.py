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
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import ItemSet, mask
from svc.model.ranking.query import Ranking
from svc.model.ranking.topk import group_count
from svc.model.recommenders.base import SPARE_TIMES
from svc.model.recommenders.products import inner_products

NORM_STEP = 256
"""Norms are kept for every such position."""
FIRST_BLOCK = 4096
GROWTH = 2
MOST_FIRST_BLOCKS = 2
"""Where not all items are allowed the first block is larger, so many times at most, to have as many candidates."""
FIRST_BLOCK_PER_ITEM = 128
"""The first block has this many positions for each item wanted, if that is more: fewer blocks for long answers."""
RESCORE_AT_ONCE = 1 << 11
"""Candidates scored exactly at once: many long answers together would otherwise take tens of MB for a moment."""

FIRST_GATHERED, GATHERED_PER_ITEM = 512, 16
"""Rows gathered at first, at least and for each item wanted, when only few items are allowed."""

LOWEST = float(np.finfo(np.float32).min)
UNIT_ROUNDOFF = 2.0**-24

Positions = NDArray[np.intp]
Scores = NDArray[np.float32]
Reach = TypeVar("Reach", float, NDArray[np.float64])


class Wanted(NamedTuple):
    """What one ranking may hold: at most `limit` items, none of the `excluded` columns, and of `allowed` alone."""

    limit: int
    excluded: NDArray[np.int32]
    allowed: ItemSet | None = None
    unordered: bool = False
    """The ranking may come in any order, if it is of all items."""


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

    def end_of_reach(self, score: float, length: float) -> int:
        """A position from which on no item reaches `score`, above 0, with a vector of norm `length`."""
        return self.end_of_norms(score / length * (1 - 1e-9))

    def scores(self, vectors: Scores, start: int, stop: int, *, cosine: bool) -> Scores:
        """Approximate scores of the positions start..stop, (b, stop − start)."""
        scores = inner_products(vectors, self.factors[start:stop])
        if cosine and self.inverse_norms is not None:
            scores *= self.inverse_norms[start:stop]
        return scores

    def scores_of_one(self, vector: Scores, start: int, stop: int, *, cosine: bool) -> Scores:
        """Approximate scores of the positions start..stop for one vector, (stop − start,)."""
        scores: Scores = np.dot(self.factors[start:stop], vector)
        if cosine and self.inverse_norms is not None:
            scores *= self.inverse_norms[start:stop]
        return scores

    def scores_at(self, vector: Scores, positions: Positions, *, cosine: bool) -> Scores:
        """Approximate scores of m positions for one vector, (m,)."""
        scores: Scores = np.dot(self.factors.take(positions, axis=0), vector)
        if cosine and self.inverse_norms is not None:
            scores *= self.inverse_norms[positions]
        return scores

    def exact(self, vectors: NDArray[np.float64], positions: Positions, *, cosine: bool) -> NDArray[np.float64]:
        """Exact scores of m positions, (m,), each for its own row of `vectors`, (m, K), or one for all, (K,)."""
        factors = self.factors.take(positions, axis=0)
        scores = row_sums(vectors * factors)
        if cosine:
            norms = bias_free_norms(factors.astype(np.float64))
            np.divide(scores, norms, out=scores, where=norms > 0)
        return scores

    def exact_of_one(self, vector: NDArray[np.float64], positions: Positions, *, cosine: bool) -> NDArray[np.float64]:
        """Exact scores of m positions for one vector, (m,), of not too many at once."""
        scores = np.empty(len(positions))
        for start in range(0, len(positions), RESCORE_AT_ONCE):
            part = slice(start, start + RESCORE_AT_ONCE)
            scores[part] = self.exact(vector, positions[part], cosine=cosine)
        return scores


def scan_one(layout: Layout, vector: NDArray[np.float64], length: float, wanted: Wanted, *, cosine: bool) -> Ranking:
    """The best items of one vector, (K,), of norm `length`, which is not zero."""
    limit = wanted.limit
    slack = error_bound(len(vector), length if cosine else length * layout.norms[0])
    excluded = layout.positions[wanted.excluded]
    lone = _Lone(layout, vector.astype(np.float32), wanted, excluded, slack, cosine)
    positions, bound = lone.search(length)
    if _floor(bound, slack) <= 0:
        positions = np.concatenate([positions, zero_items(layout, limit, excluded, wanted.allowed)])
    return _ranked(layout, vector, wanted, positions, cosine=cosine)


class _Lone(NamedTuple):
    """The scan of one vector. A small index takes some ten microseconds, so every array operation counts here.

    `excluded` are positions. `flags` of the methods say of each column whether it may come back, (n,).
    """

    layout: Layout
    approximate: Scores
    wanted: Wanted
    excluded: NDArray[np.int32]
    slack: float
    cosine: bool

    def search(self, length: float) -> tuple[Positions, float]:
        """Candidates of the whole index, and the bound. `length` is the norm of the vector."""
        limit, allowed, end = self.wanted.limit, self.wanted.allowed, self.layout.nonzero
        flags = None if allowed is None else self._flags()
        blocks = 1 if allowed is None else min(round(allowed.n_items / allowed.count), MOST_FIRST_BLOCKS)
        size = stop = min(end, blocks * first_block(limit))
        positions, values, bound = self._first(stop, flags)
        if stop == end:
            return positions, bound
        while True:
            bound = max(bound, _kth(values, limit))
            if not self.cosine and bound > self.slack:
                end = min(end, self.layout.end_of_reach(bound - self.slack, length))
            if stop >= end:
                return positions[values >= _floor(bound, self.slack)], bound
            start, stop = stop, min(stop + size, end)
            if flags is None:
                flags = self._flags()
            more, scores = self._further(start, stop, bound, flags)
            positions, values = np.concatenate([positions, more]), np.concatenate([values, scores])
            size *= GROWTH

    def _flags(self) -> NDArray[np.bool_]:
        allowed = self.wanted.allowed
        flags = np.ones(len(self.layout.columns), dtype=np.bool_) if allowed is None else allowed.flags()
        flags[self.wanted.excluded] = False
        return flags

    def _first(self, stop: int, flags: NDArray[np.bool_] | None) -> tuple[Positions, Scores, float]:
        """Candidates among the first positions, their scores, and the bound that they reach."""
        scores, excluded = self.layout.scores_of_one(self.approximate, 0, stop, cosine=self.cosine), self.excluded
        scores[excluded if stop == len(self.layout.columns) else excluded[excluded < stop]] = -np.inf
        if flags is not None:
            candidates = self._first_allowed(scores, flags)
            if candidates is not None:
                return candidates
            mask(scores, flags.take(self.layout.columns[:stop]))
        bound = _bound_of_groups(scores, self.wanted.limit)
        positions = (scores >= _floor(bound, self.slack)).nonzero()[0]
        return positions, scores[positions], bound

    def _first_allowed(self, scores: Scores, flags: NDArray[np.bool_]) -> tuple[Positions, Scores, float] | None:
        """As `_first`, from the highest scores alone, of which enough should be allowed; None if too few are."""
        assert self.wanted.allowed is not None
        asked = SPARE_TIMES * self.wanted.limit * len(flags) // self.wanted.allowed.count
        lowest = _floor(_bound_of_groups(scores, asked), self.slack)
        positions = (scores >= lowest).nonzero()[0]
        positions = positions[flags.take(self.layout.columns.take(positions))]
        values = scores[positions]
        bound = _kth(values, self.wanted.limit)
        return (positions, values, bound) if _floor(bound, self.slack) >= lowest else None

    def _further(self, start: int, stop: int, bound: float, flags: NDArray[np.bool_]) -> tuple[Positions, Scores]:
        """Candidates among later positions: few reach the bound, and only these are looked at more closely."""
        scores = self.layout.scores_of_one(self.approximate, start, stop, cosine=self.cosine)
        offsets = (scores >= _floor(bound, self.slack)).nonzero()[0]
        offsets = offsets[flags.take(self.layout.columns[start:stop].take(offsets))]
        return offsets + start, scores[offsets]


def scan_few(
    layout: Layout,
    vector: NDArray[np.float64],
    length: float,
    wanted: Wanted,
    columns: NDArray[np.int32],
    *,
    cosine: bool,
) -> Ranking:
    """The best of these distinct columns for one vector, (K,), by gathering their rows in the order of the index."""
    limit = wanted.limit
    slack = error_bound(len(vector), length if cosine else length * layout.norms[0])
    approximate = vector.astype(np.float32)
    positions = np.sort(layout.positions[columns]).astype(np.intp)
    size = max(FIRST_GATHERED, GATHERED_PER_ITEM * limit)
    gathered = positions[:size]
    values = layout.scores_at(approximate, gathered, cosine=cosine)
    bound, start = _kth(values, limit), size
    while start < len(positions):
        if not cosine and bound > slack:
            positions = positions[: positions.searchsorted(layout.end_of_reach(bound - slack, length))]
        part = positions[start : start + size]
        gathered = np.concatenate([gathered, part])
        values = np.concatenate([values, layout.scores_at(approximate, part, cosine=cosine)])
        bound, start, size = max(bound, _kth(values, limit)), start + size, 2 * size
    return _ranked(layout, vector, wanted, gathered[values >= _floor(bound, slack)], cosine=cosine)


def _ranked(
    layout: Layout, vector: NDArray[np.float64], wanted: Wanted, positions: Positions, *, cosine: bool
) -> Ranking:
    scores = layout.exact_of_one(vector, positions, cosine=cosine)
    columns = layout.columns[positions]
    if wanted.unordered and len(positions) <= wanted.limit:
        return Ranking(columns, scores)
    order = np.lexsort((columns, -scores))[: wanted.limit]
    return Ranking(columns[order], scores[order])


def zero_items(layout: Layout, limit: int, excluded: NDArray[np.int32], allowed: ItemSet | None) -> Positions:
    """Positions of the first `limit` items of norm zero, which stand last and by column, that may come back."""
    excluded = excluded[excluded >= layout.nonzero]
    end = layout.nonzero + limit + len(excluded) if allowed is None else len(layout.columns)
    positions = np.arange(layout.nonzero, min(len(layout.columns), end))
    if allowed is not None:
        positions = positions[allowed.contains(layout.columns[positions])]
    return np.setdiff1d(positions, excluded)[:limit]


def first_block(limit: int) -> int:
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
    """The least score of a candidate. It is above minus infinity, the score of excluded items."""
    return max(bound - 2 * slack, LOWEST)


def error_bound(components: int, reach: Reach) -> Reach:
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
