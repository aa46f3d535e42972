"""Approximate inner products of vectors with the items: in float32, or from vectors rounded to eight bits.

Float32 products are computed in the way that is fastest on this machine. A matrix product copies its operands first.
For a few vectors this takes longer than the product itself. On some processors OpenBLAS multiplies small matrices
without copying, so the items are multiplied in blocks that are small enough. On other processors blocks take longer.
The chosen way affects the last bits of the products. So scans use the products only for a first look at the items.

Products of rounded vectors come with a bound of the rounding error:

| symbol | shape | meaning |
|---|---|---|
| n, K, b | | items, components, vectors of one scan |
| v, u | (K,) | an item's vector and a scan's |
| s, q | (), (K,) int8 | step of v, and v in whole steps: v = s·q + e |
| t, p | (), (K,) int8 | the same of u: u = t·p + r |

    u·v = t·s·(p·q) + t·p·e + r·v ,   so by Cauchy and Schwarz   |u·v − t·s·(p·q)| ≤ ‖t·p‖·‖e‖ + ‖r‖·‖v‖

p·q is a whole number that fits into 32 bits for K up to 2¹⁷. numkong, which the extra `fast` installs, computes it
exactly from a quarter of the bytes that a float32 product reads. Without numkong, scans do not use rounded vectors. The
other operations are in float32. Within the bounds of LEAST and MOST no result leaves its range, and the error includes
rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

SMALL = 1_000_000
"""The most multiplications for which OpenBLAS uses its kernels for small matrices."""
FEW, COMPONENTS_FOR_EACH = 64, 2
"""More vectors than this are multiplied faster at once on every processor. With few components the limit is lower,
because transposing the products takes longer than blocks save."""
GEMM_FROM = 8
"""Fewer vectors than this are multiplied faster one at a time if small products do not pay."""
CLEARLY = 0.9
TIMED = 5


def inner_products(vectors: Matrix, factors: Matrix) -> Matrix:
    """Return the inner products of all pairs of rows of `vectors`, (b, K), and `factors`, (m, K): (b, m)."""
    products = np.empty((len(vectors), len(factors)), dtype=np.float32)
    few = min(FEW, vectors.shape[1] // COMPONENTS_FOR_EACH)
    if 1 < len(vectors) <= few and small_products_pay():
        _block_by_block(vectors, factors, products)
    elif len(vectors) >= GEMM_FROM:
        _at_once(vectors, factors, products)
    else:
        for vector, row in zip(vectors, products, strict=True):
            np.dot(factors, vector, out=row)
    return products


@cache
def small_products_pay() -> bool:
    """Return whether products block by block are clearly faster here. Takes about a millisecond, once."""
    vectors, factors = np.ones((16, 128), dtype=np.float32), np.ones((2048, 128), dtype=np.float32)
    products = np.empty((16, 2048), dtype=np.float32)

    def seconds(multiply: Callable[[Matrix, Matrix, Matrix], object]) -> float:
        """Return the least of several times, because another thread may interrupt a measurement."""
        taken = []
        for _ in range(TIMED):
            started = time.perf_counter()
            multiply(vectors, factors, products)
            taken.append(time.perf_counter() - started)
        # The least time: pauses of the machine only ever add to it.
        return min(taken)

    return seconds(_block_by_block) < CLEARLY * seconds(_at_once)


def _at_once(vectors: Matrix, factors: Matrix, products: Matrix) -> None:
    np.matmul(vectors, factors.T, out=products)


def _block_by_block(vectors: Matrix, factors: Matrix, products: Matrix) -> None:
    columns = np.ascontiguousarray(vectors.T)
    step = max(1, SMALL // columns.size)
    for start in range(0, len(factors), step):
        block = slice(start, start + step)
        products[:, block] = (factors[block] @ columns).T


UNIT_ROUNDOFF = 2.0**-24
MOST_STEPS = 127
# 127² · 2^17 is below 2^31, so sums of products fit int32.
MOST_COMPONENTS = 1 << 17
ITEMS_AT_ONCE = 4096
"""Products that are scaled and transposed while they are in the processor's cache."""
LEAST, MOST = 1e-15, 1e15
"""The largest component of a vector must lie between these: otherwise float32 cannot bound its errors."""
ROUNDINGS = 8
"""Upper bound of the number of float32 operations that make a score."""

Values = NDArray[np.float64]
Scores = NDArray[np.float32]
Steps = NDArray[np.int8]


class RoundedItems:
    """The rounded vectors of all items by position: `steps`, (n, K), and their `sizes`, (n,).

    `longest` are the largest ‖v‖ and `losses` the largest ‖e‖ from every ITEMS_AT_ONCE-th position on.
    """

    def __init__(self, steps: Steps, sizes: Scores, longest: Values, losses: Values) -> None:
        self.steps = steps
        self.sizes = sizes
        self.longest = longest
        self.losses = losses

    @classmethod
    def of(cls, factors: NDArray[np.float32]) -> RoundedItems | None:
        """Build from item vectors, (n, K).

        Returns None without numkong, if its products are not exact on this processor, and for tiny and huge vectors.
        """
        if find_spec("numkong") is None or factors.shape[1] > MOST_COMPONENTS or not _is_exact(factors.shape[1]):
            return None
        steps, sizes = np.empty(factors.shape, dtype=np.int8), np.empty(len(factors), dtype=np.float32)
        longest, losses = [], []
        for start in range(0, len(factors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            exact = factors[part].astype(np.float64)
            steps[part], sizes[part] = _round_rows(exact)
            longest.append(_norms(exact).max())
            losses.append(_norms(exact - steps[part] * sizes[part, np.newaxis].astype(np.float64)).max())
        if not LEAST < max(longest) < MOST:
            return None
        return cls(steps, sizes, *(np.maximum.accumulate(part[::-1])[::-1] for part in (longest, losses)))

    def vectors(self, vectors: Values) -> RoundedVectors:
        """Return the rows of `vectors`, (b, K), rounded."""
        peaks = np.abs(vectors).max(axis=1)
        usable = (peaks == 0) | (peaks > LEAST) & (peaks < MOST)
        vectors = np.where(usable[:, np.newaxis], vectors, 0.0)
        steps, sizes = _round_rows(vectors)
        rounded = steps * sizes[:, np.newaxis]
        lengths, losses = _norms(rounded), _norms(vectors - rounded)
        losses[~usable] = np.inf
        return RoundedVectors(self, steps, sizes.astype(np.float32), lengths, losses)

    def products(self, steps: Steps, sizes: Scores, start: int, stop: int) -> Scores:
        """Return inner products of rounded vectors, (b, K), with those of the positions start..stop."""
        import numkong

        scores = np.empty((len(steps), stop - start), dtype=np.float32)
        if len(steps) == 1:  # a third faster than by a packed matrix of one row
            scores[:] = numkong.cdist(steps, self.steps[start:stop], "dot")
            scores *= self.sizes[start:stop]
        else:
            packed = numkong.dots_pack(steps, "int8")
            for first in range(start, stop, ITEMS_AT_ONCE):
                part = slice(first, min(first + ITEMS_AT_ONCE, stop))
                own = scores[:, first - start : part.stop - start]
                own[:] = np.asarray(numkong.dots_packed(self.steps[part], packed)).T
                own *= self.sizes[part]
        scores *= sizes[:, np.newaxis]
        return scores


class RoundedVectors(NamedTuple):
    """The rounded vectors of a scan: `steps`, (b, K), their `sizes`, and ‖t·p‖ and ‖r‖ of each, (b,).

    `losses` are infinite for vectors outside the bounds of LEAST and MOST.
    """

    items: RoundedItems
    steps: Steps
    sizes: Scores
    lengths: Values
    losses: Values

    def look(self, rows: list[int], start: int, stop: int) -> tuple[Scores, list[float]]:
        """Return products of some rows with the positions start..stop, (b, stop − start), and their error bounds."""
        longest, loss = (float(part[start // ITEMS_AT_ONCE]) for part in (self.items.longest, self.items.losses))
        lengths = self.lengths[rows]
        errors = lengths * loss + self.losses[rows] * longest
        errors += ROUNDINGS * UNIT_ROUNDOFF * lengths * (longest + loss)
        return self.items.products(self.steps[rows], self.sizes[rows], start, stop), errors.tolist()


def _is_exact(components: int) -> bool:
    """Return whether numkong's products equal numpy's on this processor, for the largest steps and for mixed ones."""
    rng = np.random.default_rng(0)
    steps = rng.integers(-MOST_STEPS, MOST_STEPS, (3, components), dtype=np.int8, endpoint=True)
    steps[0], steps[1] = -MOST_STEPS, MOST_STEPS
    products = (steps.astype(np.int64) @ steps.T.astype(np.int64)).astype(np.float32)
    ones = np.ones(3, dtype=np.float32)
    items = RoundedItems(steps, ones, np.ones(1), np.zeros(1))
    return all(np.array_equal(items.products(steps[:b], ones[:b], 0, 3), products[:b]) for b in (1, 3))


def _round_rows(vectors: Values) -> tuple[Steps, Values]:
    """Return the rows of `vectors` in whole steps, and the size of a step of each row, 1 for a row of zeros."""
    sizes = np.abs(vectors).max(axis=1) / MOST_STEPS
    sizes[sizes == 0] = 1.0
    return np.rint(vectors / sizes[:, np.newaxis]).astype(np.int8), sizes


def _norms(vectors: Values) -> Values:
    return np.sqrt(row_sums(vectors * vectors))


def row_sums(products: Values) -> Values:
    """Return the sums of the rows of a C-contiguous (m, K). The bits of each depend on its row alone."""
    sums: Values = np.add.reduce(products, axis=1)
    return sums
