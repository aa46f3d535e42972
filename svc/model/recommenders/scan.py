r"""Find the items with the best scores by inner product exactly, for one question or for several together.

A question is a user vector, the number of items wanted, and the items that may not be recommended.

| symbol | meaning |
|---|---|
| n, K, b | number of items, of components, and of user vectors in one scan |
| position | place of an item in the index: items stand by descending norm, ties by column |
| column | place of an item in the training matrix |
| offset | the score of an item by the other parts of a blend, (n,) by position, exact in float64 |
| look | approximate scores of a block of positions: a product in float32, or of int8 (see products.py) |
| error | bound of \|look − exact\| for any item of the block |
| approximate | a float32 product plus the offset; its last bits depend on the shape of the product |
| exact | the float64 sum of K products in a fixed order plus the offset, which depend on the question alone |
| slack | bound of \|approximate − exact\| for any item |
| bound | a value that at least `limit` of the approximate scores so far reach |
| floor | bound − slack − error; an item whose look is below it cannot be in the answer |

A scan goes through the index in blocks. Items that reach the floor become candidates, and the bound rises. No later
item can be in the answer once ‖vector‖·‖next item‖ plus the largest later offset is below bound − slack. At last the
candidates are sorted by exact score, ties by column. Therefore the bits of an answer depend on its question alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import ItemSet, group_count, group_maxima, kth_largest, lower_bound, mask, without
from svc.model.ranking.query import Ranking
from svc.model.recommenders.base import is_few
from svc.model.recommenders.products import UNIT_ROUNDOFF, RoundedItems, inner_products, norms, product_of_one, row_sums

NORM_STEP = 256
"""Norms are stored only for the positions that are multiples of this."""
FIRST_BLOCK, FIRST_BLOCK_PER_ITEM = 4096, 96
"""The least size of the first block, and its size for each item wanted, so that long answers take few blocks."""
HEAD_SHARE, LONE_HEAD_SHARE = 6, 64
"""With offsets, the first block has at least n / HEAD_SHARE items, or n / LONE_HEAD_SHARE for a single question."""
FULL_SHARE = 6
"""If more than one item in this many can be in the answer, scoring all in order is faster than gathering the items."""
FIRST_GATHERED, GATHERED_PER_ITEM = 512, 16
"""If few items are allowed, the least number of vectors to gather first, and the number for each item wanted."""
ROWS_AT_ONCE = 256
"""The most questions that are answered together."""
LEAST_AT_ONCE = 32
"""Up to this many questions with offsets are answered together, even if they have more offsets than BLOCK_SCORES."""
MANY_FROM = 8
"""With fewer questions than this, array operations over all questions at once do not save time."""
MANY_ROUNDED_FROM = 32
"""MANY_FROM if item vectors are rounded. From this many on, float32 is as fast and leaves fewer candidates."""
SMALL_LIMIT = 32
"""Questions with limits up to this are answered apart from those with larger limits, which would slow their scan."""
RESCORE_AT_ONCE = 1 << 11
"""Candidates that are scored exactly at once. Without this bound, many long answers would take tens of MB."""
BLOCK_SCORES = 1 << 22
"""The most approximate scores that are in memory at once, 16 MiB of float32."""
POOL_LIMIT = 1 << 18
"""If there are more candidates than this plus twice the items wanted, only the best of each question are kept."""

LOWEST = float(np.finfo(np.float32).min)
MOST = 1e37
"""Scores above this may leave the range of float32. All items are then scored exactly."""
MOST_LOST = 1e-6
"""If cosines with short item vectors may lose more than this in float32, all items are scored exactly."""
LOST = 1e-44
"""Upper bound of the loss when a component below the smallest normal float32 is converted to float32."""
OFFSET_ROUNDINGS = 4
"""Upper bound of the number of float32 operations that add an offset."""

Positions = NDArray[np.intp]
Scores = NDArray[np.float32]
Values = NDArray[np.float64]
NO_POSITIONS: Positions = np.empty(0, dtype=np.intp)
NOTHING: Scores = np.empty(0, dtype=np.float32)


class Wanted(NamedTuple):
    """The conditions on one answer: at most `limit` items, no `excluded` column, and only items of `allowed`."""

    limit: int
    excluded: NDArray[np.int32]
    allowed: ItemSet | None = None
    unordered: bool = False
    """Whether the answer may have any order if it has all items."""
    offsets: Callable[[], Values] | None = None
    """Computes the offsets. Called late, so that the offsets of many questions are not in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The arrays of an index that a scan reads.

    `factors`, (n, K), are the item vectors by position, `columns`, (n,), the columns by position, and `positions`,
    (n,), the positions by column. `norms` and `norm_array` are the norms at every NORM_STEP-th position, followed by 0.
    `even` tells that norms hardly differ. `rounded` are the item vectors in eight bits, if scans use them.

    With `inverse_norms`, (n,), scores are cosines: products are divided by the norm of the item vector without its last
    component. The score of an item with norm 0 is 0. Such a scan does not skip items by their norms. `largest_inverse`
    is the largest inverse norm in float64.
    """

    factors: NDArray[np.float32]
    columns: NDArray[np.int32]
    positions: NDArray[np.int32]
    norms: list[float]
    norm_array: Values
    even: bool
    rounded: RoundedItems | None
    inverse_norms: NDArray[np.float32] | None = None
    largest_inverse: float = 0.0

    def slacks(self, lengths: list[float]) -> list[float]:
        """Return the slack for user vectors with these norms. It is infinite if float32 cannot bound the error."""
        components, longest = self.factors.shape[1], self.norms[0]
        lost = error_bound(components, 0.0)
        each = error_bound(components, longest if self.inverse_norms is None else 1.0) - lost
        lost = lost * max(1.0, self.largest_inverse) + LOST * components * longest
        most = MOST / max(longest, 1.0) if lost < MOST_LOST else 0.0
        return [length * each + lost if length < most else math.inf for length in lengths]

    def end_of_norms(self, norm: float) -> int:
        """Return a position from which on all norms are below `norm`. It may be later than the first such position."""
        return min(bisect_right(self.norms, -norm, key=float.__neg__) * NORM_STEP, len(self.columns))

    def reaching(self, start: int, score: float, length: float, offsets: Values) -> Positions:
        """Return the positions from `start` on at which offset + `length`·‖item‖ may reach `score`.

        `start` is a multiple of NORM_STEP.
        """
        end = len(offsets) // NORM_STEP * NORM_STEP
        start -= start % NORM_STEP
        # Blocks of NORM_STEP items share the norm of their first item, which is the largest.
        needed = score - length * (1 + 1e-9) * self.norm_array[start // NORM_STEP : -1]
        steps = offsets[start:end].reshape(-1, NORM_STEP)
        reached = np.flatnonzero(steps >= needed[: len(steps), np.newaxis])
        return np.concatenate([reached + start, np.flatnonzero(offsets[end:] >= needed[-1]) + end])

    def scores(self, vectors: Scores, start: int, stop: int) -> Scores:
        """Return approximate products of `vectors`, (b, K), with the items at start..stop, (b, stop − start)."""
        scores = inner_products(vectors, self.factors[start:stop])
        if self.inverse_norms is not None:
            scores *= self.inverse_norms[start:stop]
        return scores

    def scores_of_one(self, vector: Scores, where: slice | Positions) -> Scores:
        """Return approximate products of one vector with the items at m positions, (m,)."""
        factors = self.factors[where] if isinstance(where, slice) else self.factors.take(where, axis=0)
        scores = product_of_one(vector, factors)
        if self.inverse_norms is not None:
            scores *= self.inverse_norms[where]
        return scores

    def exact(self, vectors: Values, positions: Positions, rows: Positions | None = None) -> Values:
        """Return exact products with the items at m positions, (m,).

        Without `rows`, `vectors` is one vector, (K,). With `rows`, (m,), the item at positions[i] is multiplied by
        vectors[rows[i]].
        """
        scores = np.empty(len(positions))
        for start in range(0, len(positions), RESCORE_AT_ONCE):
            part = slice(start, start + RESCORE_AT_ONCE)
            factors = self.factors.take(positions[part], axis=0)
            scores[part] = row_sums((vectors if rows is None else vectors[rows[part]]) * factors)
            if self.inverse_norms is not None:
                lengths = norms(factors[:, :-1].astype(np.float64))
                np.divide(scores[part], lengths, out=scores[part], where=lengths > 0)
        return scores


def scan(layout: Layout, vectors: Values, wanted: Sequence[Wanted]) -> list[Ranking]:
    """Return the best items for each user vector in `vectors`, (b, K), under the conditions `wanted`.

    A ranking has the same bits in any batch.
    """
    with np.errstate(over="ignore"):  # an overflow gives an infinite slack, so that all items are scored exactly
        # Takes 0.6 µs, and `np.linalg.norm` 1.1. A scan of a small index takes only tens of µs.
        lengths = [math.sqrt(np.dot(vector, vector)) for vector in vectors]
    slacks = layout.slacks(lengths)
    questions = list(map(_Question, repeat(layout), vectors, wanted, lengths, slacks))
    if len(questions) == 1:
        return [questions[0].alone()]
    rankings: dict[int, Ranking] = {}
    groups: tuple[list[int], list[int]] = ([], [])
    for row, own in enumerate(wanted):
        few = own.allowed is not None and is_few(own.allowed)
        # These do not go through the index block by block, so they share no product with others.
        if few or own.unordered or slacks[row] == math.inf or (not lengths[row] and own.offsets is None):
            rankings[row] = questions[row].alone()
        else:
            groups[own.limit > SMALL_LIMIT].append(row)
    with_offsets = any(own.offsets is not None for own in wanted)
    at_once = max(LEAST_AT_ONCE, BLOCK_SCORES // len(layout.columns)) if with_offsets else ROWS_AT_ONCE
    many = MANY_FROM if layout.rounded is None else MANY_ROUNDED_FROM
    for group in groups:
        for start in range(0, len(group), at_once):
            rows = group[start : start + at_once]
            kind = _Matrix if len(rows) >= many and not with_offsets else _Looks
            ranked = kind(layout, vectors[rows], [questions[row] for row in rows]).run()
            rankings.update(zip(rows, ranked, strict=True))
    return [rankings[row] for row in range(len(wanted))]


class _Question:
    """The state of the scan for one user vector, (K,).

    This class uses as few array operations as possible, because a scan of a small index takes only tens of
    microseconds. `end` is the position from which on no item can be in the answer.
    """

    def __init__(self, layout: Layout, vector: Values, wanted: Wanted, length: float, slack: float) -> None:
        self.layout = layout
        self.vector = vector
        self.wanted = wanted
        self.length = length
        self.slack = slack
        self.bound = -math.inf
        self.end = len(layout.columns)
        self.offsets: Values | None = None
        self.positions: Positions = NO_POSITIONS
        self.values: Scores = NOTHING
        self._flags: NDArray[np.bool_] | None = None

    def alone(self) -> Ranking:
        """Answer this question by a scan of its own."""
        wanted, n_items = self.wanted, len(self.layout.columns)
        if not self.length and wanted.offsets is None and not self.vector.any():
            # A user vector of zeros scores every item 0, so the first columns are the answer.
            columns = self._columns(wanted.limit + len(wanted.excluded))[: wanted.limit]
            return Ranking(columns, np.zeros(len(columns)))
        # Gathering pays only if few items are allowed. Gathering half of the vectors takes as long as reading all.
        if wanted.allowed is not None and is_few(wanted.allowed):
            self._add_offsets()
            # Ascending positions are falling norms, so that gathering can stop early.
            self._gather(np.sort(self.layout.positions[self._columns(n_items)]).astype(np.intp))
        elif self.slack == math.inf:
            self._add_offsets()
            self._take_all()
        elif self.layout.rounded is not None:
            return _Looks(self.layout, self.vector[np.newaxis], [self]).run()[0]
        else:
            self._look_alone()
        return self.ranking()

    def _look_alone(self) -> None:
        """Scan the index block by block for this question alone, until no later item can be in the answer.

        For a small index this takes two thirds of the time of `_Looks`, the scan for several questions.
        """
        layout, start, size = self.layout, 0, _first_block(self.layout, [self.wanted], LONE_HEAD_SHARE)
        approximate = self.vector.astype(np.float32)
        while start < self.end:
            stop = min(start + size, self.end)
            self.take(layout.scores_of_one(approximate, slice(start, stop)), 0.0, start, stop)
            start = size = stop  # each block is as long as all blocks before it

    def _add_offsets(self) -> None:
        if self.wanted.offsets is not None:
            self.offsets = self.wanted.offsets()
            reach = max(float(self.offsets.max()), -float(self.offsets.min()))
            self.slack += OFFSET_ROUNDINGS * UNIT_ROUNDOFF * reach if reach < MOST else math.inf

    def flags(self) -> NDArray[np.bool_]:
        """Return whether each column may be recommended, (n,)."""
        if self._flags is None:
            allowed = self.wanted.allowed
            self._flags = np.ones(len(self.layout.columns), dtype=np.bool_) if allowed is None else allowed.flags()
            self._flags[self.wanted.excluded] = False
        return self._flags

    def take(self, look: Scores, error: float, start: int, stop: int) -> None:
        """Collect the candidates among the positions start..stop by their `look`. Changes `look`."""
        layout, wanted = self.layout, self.wanted
        # Only now: offsets of a question that has not begun take no memory yet.
        if not start:
            self._add_offsets()
            if self.slack == math.inf:
                self._take_all()
                return
        error = max(error, self.slack)
        if self.offsets is not None:
            look += self.offsets[start:stop].astype(np.float32)
        # The first block sets the bound, so all its excluded items are masked. Later blocks have few hits to check.
        if start:
            hits = (look >= self._floor(error)).nonzero()[0]
            hits = hits[self.flags().take(layout.columns[start:stop].take(hits))]
        else:
            excluded = layout.positions[wanted.excluded]
            look[excluded if stop == len(layout.columns) else excluded[excluded < stop]] = -np.inf
            if wanted.allowed is not None:
                mask(look, self.flags().take(layout.columns[:stop]))
            # A look in float32 is off by `slack`, so the k-th best is the bound itself. Rounded ones are off by more.
            self.bound = lower_bound(look, wanted.limit) - error + self.slack
            hits = (look >= self._floor(error)).nonzero()[0]
        if error > self.slack:  # `look` is of rounded vectors, so the hits are scored again in float32
            self._add(hits + start)
        else:
            self._collect(hits + start if start else hits, look[hits])
        if stop < self.end:
            self._raise_bound()
            self._shorten(stop)

    def ranking(self) -> Ranking:
        """Return the best candidates by their exact scores."""
        wanted, positions = self.wanted, self.positions
        if self.slack < math.inf:
            positions = positions[self.values >= self._floor(self.slack)]
        scores = self.layout.exact(self.vector, positions)
        if self.offsets is not None:
            scores += self.offsets[positions]
        columns = self.layout.columns[positions]
        if wanted.unordered and len(positions) <= wanted.limit:
            return Ranking(columns, scores)
        order = np.lexsort((columns, -scores))[: wanted.limit]
        return Ranking(columns[order], scores[order])

    def _floor(self, error: float) -> float:
        """Return the floor. It is above minus infinity, the score of excluded items, so that these never reach it."""
        return max(self.bound - self.slack - error, LOWEST)

    def _columns(self, most: int) -> NDArray[np.int32]:
        """Return the columns that may be recommended, ascending. Columns from `most` on may be missing."""
        allowed, excluded, n_items = self.wanted.allowed, self.wanted.excluded, len(self.layout.columns)
        if allowed is not None:
            return allowed.columns_without(excluded)
        return without(np.arange(min(n_items, most), dtype=np.int32), excluded, n_items)

    def _take_all(self) -> None:
        """Make all items that may be recommended candidates, because float32 cannot bound their scores."""
        self.positions, self.end = self.layout.positions[self._columns(self.end)].astype(np.intp), 0

    def _gather(self, positions: Positions) -> None:
        """Collect the candidates among `positions`, ascending, without scoring those that cannot reach the bound."""
        if self.slack == math.inf:
            self.positions = positions
            return
        start, size = 0, max(FIRST_GATHERED, GATHERED_PER_ITEM * self.wanted.limit)
        while start < len(positions):
            self._add(positions[start : start + size])
            if start + size < len(positions):
                self._raise_bound()
                self._shorten(None)
                positions = positions[: positions.searchsorted(self.end)]
            start, size = start + size, 2 * size

    def _add(self, positions: Positions) -> None:
        values = self.layout.scores_of_one(self.vector.astype(np.float32), positions)
        if self.offsets is not None:
            values += self.offsets[positions].astype(np.float32)
        reaching = values >= self._floor(self.slack)
        self._collect(positions[reaching], values[reaching])

    def _collect(self, positions: Positions, values: Scores) -> None:
        if len(self.positions):
            positions, values = np.concatenate([self.positions, positions]), np.concatenate([self.values, values])
        self.positions, self.values = positions, values

    def _raise_bound(self) -> None:
        self.bound = max(self.bound, kth_largest(self.values, self.wanted.limit))

    def _shorten(self, stop: int | None) -> None:
        """Move `end` forward if the bound allows.

        With offsets and a `stop`, the positions from `stop` on that can reach the bound are gathered if they are few,
        and the scan ends at `stop`.
        """
        needed, offsets = self.bound - self.slack, self.offsets
        # A cosine does not fall with the norm, so no later position can be ruled out.
        if self.layout.inverse_norms is not None or needed == -math.inf:
            return
        if offsets is None:
            if needed > 0:
                reach = self.layout.end_of_norms(needed / self.length * (1 - 1e-9)) if self.length else 0
                self.end = min(self.end, reach)
        elif stop is not None:
            more = self.layout.reaching(stop, needed, self.length, offsets)
            if len(more) * FULL_SHARE <= self.end - stop:
                self._add(more[self.flags().take(self.layout.columns.take(more))])
                self.end = stop


class _Looks:
    """The scan for several user vectors, (b, K). Each block of items is scored for all of them by one product."""

    def __init__(self, layout: Layout, vectors: Values, questions: Sequence[_Question]) -> None:
        self.questions = questions
        self.layout = layout
        self.size = _first_block(layout, [question.wanted for question in questions], HEAD_SHARE)
        self.approximate = vectors.astype(np.float32)
        self.rounded = None if self.layout.rounded is None else self.layout.rounded.vectors(vectors)

    def run(self) -> list[Ranking]:
        rankings: dict[int, Ranking] = {}
        alive, start, end = list(range(len(self.questions))), 0, len(self.layout.columns)
        while alive:
            room = max(NORM_STEP, BLOCK_SCORES // len(alive) // NORM_STEP * NORM_STEP)
            stop = min(start + min(self.size, room), end)
            for row, look, error in zip(alive, *self._look(alive, start, stop), strict=True):
                question = self.questions[row]
                question.take(look, error, start, stop)
                if question.end <= stop:
                    # Freed at once: offsets have eight bytes for every item.
                    rankings[row], question.offsets = question.ranking(), None
            alive = [row for row in alive if row not in rankings]
            end = max([self.questions[row].end for row in alive], default=0)
            start = self.size = stop
        return [rankings[row] for row in range(len(self.questions))]

    def _look(self, rows: list[int], start: int, stop: int) -> tuple[Scores, list[float]]:
        """Return the looks of some questions at the positions start..stop, (rows, stop − start), and their errors.

        The error of a float32 look is given as 0, because `slack` bounds it.
        """
        if self.rounded is not None:
            return self.rounded.look(rows, start, stop)
        vectors = self.approximate if len(rows) == len(self.questions) else self.approximate[rows]
        return self.layout.scores(vectors, start, stop), [0.0] * len(rows)


class _Matrix:
    """The scan for many user vectors, by array operations over all of them at once.

    Halves the time of questions with small answers, compared with `_Looks`. `alive` are the rows of the user vectors
    for which later items can be in the answer.
    """

    def __init__(self, layout: Layout, vectors: Values, questions: Sequence[_Question]) -> None:
        wanted = [question.wanted for question in questions]
        excluded = [own.excluded for own in wanted]
        self.layout = layout
        self.vectors = vectors
        self.approximate = vectors.astype(np.float32)
        self.limits = np.array([own.limit for own in wanted], dtype=np.intp)
        self.most = int(self.limits.max())
        self.lengths = np.array([question.length for question in questions])
        self.slack = np.array([question.slack for question in questions])
        self.excluded_rows = np.repeat(np.arange(len(excluded)), [len(columns) for columns in excluded])
        self.excluded_positions = self.layout.positions[np.concatenate(excluded)]
        self.sets = _by_set(wanted)
        self.size = _first_block(layout, wanted, HEAD_SHARE)
        # The best approximate scores so far. Bounds need no more of earlier blocks.
        self.leaders = np.full((len(excluded), self.most), -np.inf, dtype=np.float32)
        self.floors = np.full(len(excluded), LOWEST, dtype=np.float32)
        self.pool: list[tuple[Positions, Positions, Scores]] = []

    def run(self) -> list[Ranking]:
        alive = np.arange(len(self.vectors))
        start, end, size = 0, len(self.layout.columns), self.size
        while start < end and len(alive):
            room = max(NORM_STEP, BLOCK_SCORES // len(alive))
            stop = min(start + min(size, room), end)
            alive, end = self._block(alive, start, stop)
            start, size = stop, 2 * size
        rows, positions, scores = self._settle()
        columns = self.layout.columns[positions]
        ends = np.searchsorted(rows, np.arange(len(self.vectors) + 1)).tolist()
        return [Ranking(columns[a:b], scores[a:b]) for a, b in pairwise(ends)]

    def _block(self, alive: Positions, start: int, stop: int) -> tuple[Positions, int]:
        """Score the positions start..stop for the rows `alive`.

        Returns the rows that are still alive, and the position from which on no item can be in any of their answers.
        """
        scores = self.layout.scores(self.approximate[alive], start, stop)
        self._mask(scores, alive, start, stop)
        bounds = self._raise_bounds(scores, alive)
        hits = np.flatnonzero(scores >= self.floors[alive, np.newaxis])
        # The flat array and a division: 0.2 ms for 64 questions and 4,096 items. `nonzero` of two dimensions takes 1.0.
        rows, offsets = np.divmod(hits, stop - start)
        self.pool.append((alive[rows], offsets + start, scores.ravel()[hits]))
        if sum(len(part[0]) for part in self.pool) > POOL_LIMIT + 2 * int(self.limits.sum()):
            rows, positions, _ = self._settle()
            # Infinite, so that the best by exact score pass all later floors, which are made for approximate ones.
            self.pool = [(rows, positions, np.full(len(rows), np.inf, dtype=np.float32))]
        if self.layout.inverse_norms is not None:
            return alive, len(self.layout.columns)
        needed = (bounds - self.slack[alive]) / self.lengths[alive] * (1 - 1e-9)
        # Norms are rounded sums. 1e-9 is far more than their error, and costs no item.
        remaining = needed <= self.layout.norms[stop // NORM_STEP] * (1 + 1e-9)
        least = float(needed[remaining].min(initial=np.inf))
        return alive[remaining], self.layout.end_of_norms(least)

    def _mask(self, scores: Scores, alive: Positions, start: int, stop: int) -> None:
        for allowed, sharing_rows in self.sets:
            # Queries with one filter share its set, so that it is unpacked once a block.
            there = np.flatnonzero(np.isin(alive, sharing_rows))
            outside = np.flatnonzero(~allowed.contains(self.layout.columns[start:stop]))
            scores[np.ix_(there, outside)] = -np.inf
        inside = np.flatnonzero((self.excluded_positions >= start) & (self.excluded_positions < stop))
        row_of_alive = np.full(len(self.vectors), -1, dtype=np.intp)
        row_of_alive[alive] = np.arange(len(alive))
        rows = row_of_alive[self.excluded_rows[inside]]
        scored = rows >= 0
        scores[rows[scored], self.excluded_positions[inside[scored]] - start] = -np.inf

    def _raise_bounds(self, scores: Scores, alive: Positions) -> Scores:
        """Update the floors by the scores of a block. Return the bound of each row of `alive`."""
        maxima = group_maxima(scores, group_count(self.most))
        merged = np.concatenate([self.leaders[alive], maxima], axis=1)
        leaders = np.partition(merged, merged.shape[1] - self.most, axis=1)[:, -self.most :]
        self.leaders[alive] = leaders
        ordered = np.sort(leaders, axis=1)
        # Leaders are as many as the largest limit. A smaller limit has its bound further up.
        bounds: Scores = ordered[np.arange(len(alive)), self.most - self.limits[alive]]
        self.floors[alive] = np.maximum(bounds - 2 * self.slack[alive], LOWEST)
        return bounds

    def _settle(self) -> tuple[Positions, Positions, Values]:
        """Return rows, positions and exact scores of the `limit` best candidates of each row, by row, best first."""
        rows, positions, approximate = (np.concatenate(parts) for parts in zip(*self.pool, strict=True))
        reaching = np.flatnonzero(approximate >= self.floors[rows])
        rows, positions = rows[reaching], positions[reaching]
        scores = self.layout.exact(self.vectors, positions, rows=rows)
        order = np.lexsort((self.layout.columns[positions], -scores, rows))
        rows = rows[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        first = np.flatnonzero(rank < self.limits[rows])
        order = order[first]
        return rows[first], positions[order], scores[order]


def _by_set(wanted: Sequence[Wanted]) -> list[tuple[ItemSet, list[int]]]:
    """Return each distinct set of allowed items, with the rows whose questions have this set."""
    by_bits: dict[bytes, tuple[ItemSet, list[int]]] = {}
    for row, own in enumerate(wanted):
        if own.allowed is not None:
            # By content, because equal filters of different requests may be different objects.
            by_bits.setdefault(own.allowed.bits.tobytes(), (own.allowed, []))[1].append(row)
    return list(by_bits.values())


def _first_block(layout: Layout, wanted: Sequence[Wanted], share: int) -> int:
    """Return the number of positions in the first block, a multiple of NORM_STEP.

    With offsets it is at least one item in `share`. If norms hardly differ, it is the whole index.
    """
    size = max(FIRST_BLOCK, FIRST_BLOCK_PER_ITEM * max([own.limit for own in wanted]))
    if wanted[0].offsets is not None:
        size = max(size, len(layout.columns) // share)
    return len(layout.columns) if layout.even else -(-size // NORM_STEP) * NORM_STEP


def error_bound(components: int, reach: float) -> float:
    """Return a bound of the error of a float32 inner product of vectors whose norms multiply to `reach`.

    Rounding the vector to float32, and K products and sums in any order, have an error of at most about (K + 1) unit
    roundoffs times Σ|uᵢvᵢ| <= ‖u‖‖v‖. The bound is a little larger, to allow for rounding the floor. The addend 1e-37
    allows for results that become 0 because they are below the smallest normal number.
    """
    return (components + 8) * (UNIT_ROUNDOFF * 1.01 * reach + 1e-37)
