"""Approximate inner products of vectors with the items: in float32, or from vectors rounded to eight bits.

Float32 products are computed in the way that is fastest on this machine. A BLAS matrix product copies its operands
first, which for a few vectors takes longer than the product itself. On some processors OpenBLAS multiplies small
matrices without copying. There the items are multiplied in blocks that are small enough. On other processors blocks
take longer. The chosen way affects the last bits of the products, so scans use these products only to select candidates
(the `look` of scan.py).

Products of rounded vectors come with a bound of the rounding error:

| symbol | shape | meaning |
|---|---|---|
| n, K, b | | number of items, of components, and of user vectors in one scan |
| v, u | (K,) | an item vector, and a user vector |
| s, q, e | (), (K,) int8, (K,) | size of a step for v, v in whole steps, and the rounding error: v = s·q + e |
| t, p, r | (), (K,) int8, (K,) | the same for u: u = t·p + r |

    u·v = t·s·(p·q) + t·p·e + r·v ,   so by Cauchy and Schwarz   |u·v − t·s·(p·q)| ≤ ‖t·p‖·‖e‖ + ‖r‖·‖v‖

p·q is a whole number that fits into 32 bits for K up to 2¹⁷. The library numkong (extra `fast`) computes it exactly,
and reads a quarter of the bytes that a float32 product reads. Without numkong, scans do not use rounded vectors. The
other operations are in float32. If the components of vectors are within LEAST and MOST, no result leaves the range of
float32. The error bounds include the rounding of these operations.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.late_imports import LateModule

if TYPE_CHECKING:
    import numkong
else:
    numkong = LateModule("numkong")

Matrix = NDArray[np.float32]

SMALL = 1_000_000
"""The most multiplications in one product for which OpenBLAS uses its kernels for small matrices."""
FEW, COMPONENTS_FOR_EACH = 64, 2
"""Blocks are used for at most FEW vectors, because one product of more vectors is faster on every processor.

They are used for at most K / COMPONENTS_FOR_EACH vectors of K components, because transposing the products of short
vectors takes longer than blocks save.
"""
GEMM_FROM = 8
"""If blocks are not used, fewer vectors than this are multiplied one at a time, because that is faster."""
CLEARLY = 0.9
"""Blocks are used if they take less than this share of the time of one product."""
TIMED = 5
"""The number of times that each way is timed."""


def inner_products(vectors: Matrix, factors: Matrix) -> Matrix:
    """Return the inner products of all pairs of rows of `vectors`, (b, K), and `factors`, (m, K), as (b, m)."""
    products = np.empty((len(vectors), len(factors)), dtype=np.float32)
    few = min(FEW, vectors.shape[1] // COMPONENTS_FOR_EACH)
    if 1 < len(vectors) <= few and small_products_pay():
        _block_by_block(vectors, factors, products)
    elif len(vectors) >= GEMM_FROM:
        _at_once(vectors, factors, products)
    else:
        for vector, row in zip(vectors, products, strict=True):
            product_of_one(vector, factors, row)
    return products


def product_of_one(vector: Matrix, factors: Matrix, out: Matrix | None = None) -> Matrix:
    """Return the inner products of `vector`, (K,), and the rows of `factors`, (m, K), as (m,).

    Warnings of invalid operations are off, because OpenBLAS 0.3.31 with AVX-512 causes false ones: if K is 5 and an
    unused part of a register holds a signaling NaN. Scores that are not finite are found when the model is rehearsed.
    """
    with np.errstate(invalid="ignore"):
        products: Matrix = np.dot(factors, vector, out=out)
    return products


@cache
def small_products_pay() -> bool:
    """Return whether products block by block are clearly faster on this machine.

    Measures it on the first call, which takes about a millisecond.
    """
    vectors, factors = np.ones((16, 128), dtype=np.float32), np.ones((2048, 128), dtype=np.float32)
    products = np.empty((16, 2048), dtype=np.float32)

    def seconds(multiply: Callable[[Matrix, Matrix, Matrix], object]) -> float:
        """Return the shortest time of TIMED runs of `multiply`. Interruptions only lengthen a run."""
        taken = []
        for _ in range(TIMED):
            started = time.perf_counter()
            multiply(vectors, factors, products)
            taken.append(time.perf_counter() - started)
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
MOST_COMPONENTS = 1 << 17
"""With up to this many components, sums of products fit int32, because 127² · 2¹⁷ is below 2³¹."""
ITEMS_AT_ONCE = 4096
"""Items whose products are scaled and transposed at once, while the products are in the processor's cache."""
LEAST, MOST = 1e-15, 1e15
"""Bounds of the largest component of a user vector that is not zero, and of the largest norm of the item vectors.

Outside of them, the error bounds of float32 operations do not hold.
"""
ROUNDINGS = 8
"""Upper bound of the number of float32 operations that make a score."""

Values = NDArray[np.float64]
Scores = NDArray[np.float32]
Steps = NDArray[np.int8]


class RoundedItems(NamedTuple):
    """The rounded vectors of all items by position: q as `steps`, (n, K), and s as `sizes`, (n,).

    Element j of `longest`, (⌈n / ITEMS_AT_ONCE⌉,), is the largest ‖v‖ of the items from position j · ITEMS_AT_ONCE to
    the end. Element j of `losses` is the largest ‖e‖ of the same items.
    """

    steps: Steps
    sizes: Scores
    longest: Values
    losses: Values

    @classmethod
    def of(cls, factors: NDArray[np.float32]) -> RoundedItems | None:
        """Build from item vectors, (n, K).

        Returns None if numkong is missing, if its products are not exact on this processor, if K is above
        MOST_COMPONENTS, or if the largest norm is not between LEAST and MOST.
        """
        if find_spec("numkong") is None or factors.shape[1] > MOST_COMPONENTS or not _is_exact(factors.shape[1]):
            return None
        steps, sizes = np.empty(factors.shape, dtype=np.int8), np.empty(len(factors), dtype=np.float32)
        longest, losses = [], []
        for start in range(0, len(factors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            exact = factors[part].astype(np.float64)
            steps[part], sizes[part] = _round_rows(exact)
            longest.append(norms(exact).max())
            losses.append(norms(exact - steps[part] * sizes[part, np.newaxis].astype(np.float64)).max())
        if not LEAST < max(longest) < MOST:
            return None
        return cls(steps, sizes, *(np.maximum.accumulate(part[::-1])[::-1] for part in (longest, losses)))

    def vectors(self, vectors: Values) -> RoundedVectors:
        """Round the user vectors of a scan, (b, K)."""
        peaks = np.abs(vectors).max(axis=1)
        usable = (peaks == 0) | (peaks > LEAST) & (peaks < MOST)
        vectors = np.where(usable[:, np.newaxis], vectors, 0.0)
        steps, sizes = _round_rows(vectors)
        rounded = steps * sizes[:, np.newaxis]
        lengths, losses = norms(rounded), norms(vectors - rounded)
        # An infinite error bound, so that every item of such a question becomes a candidate.
        losses[~usable] = np.inf
        return RoundedVectors(self, steps, sizes.astype(np.float32), lengths, losses)

    def products(self, steps: Steps, sizes: Scores, start: int, stop: int) -> Scores:
        """Return the inner products t·s·(p·q) of rounded vectors with the items at positions start..stop, (b, items).

        The rounded vectors are p, `steps`, (b, K), and t, `sizes`, (b,).
        """
        scores = np.empty((len(steps), stop - start), dtype=np.float32)
        if len(steps) == 1:  # a third faster than packing a matrix of one row
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
    """The rounded user vectors of a scan.

    `steps`, (b, K), are p. `sizes`, `lengths` and `losses`, (b,), are t, ‖t·p‖ and ‖r‖. `losses` are infinite for
    vectors outside the bounds of LEAST and MOST.
    """

    items: RoundedItems
    steps: Steps
    sizes: Scores
    lengths: Values
    losses: Values

    def look(self, rows: list[int], start: int, stop: int) -> tuple[Scores, list[float]]:
        """Return the products of the vectors in `rows` with the items at positions start..stop, and their error bounds.

        The products are (len(rows), stop − start). There is one error bound for each row.
        """
        longest, loss = (float(part[start // ITEMS_AT_ONCE]) for part in (self.items.longest, self.items.losses))
        lengths = self.lengths[rows]
        errors = lengths * loss + self.losses[rows] * longest
        errors += ROUNDINGS * UNIT_ROUNDOFF * lengths * (longest + loss)
        return self.items.products(self.steps[rows], self.sizes[rows], start, stop), errors.tolist()


def _is_exact(components: int) -> bool:
    """Return whether numkong's products equal numpy's products on this processor, for the largest and random steps."""
    rng = np.random.default_rng(0)
    steps = rng.integers(-MOST_STEPS, MOST_STEPS, (3, components), dtype=np.int8, endpoint=True)
    # The largest sums, in which an overflow of int32 would show.
    steps[0], steps[1] = -MOST_STEPS, MOST_STEPS
    products = (steps.astype(np.int64) @ steps.T.astype(np.int64)).astype(np.float32)
    ones = np.ones(3, dtype=np.float32)
    items = RoundedItems(steps, ones, np.ones(1), np.zeros(1))
    return all(np.array_equal(items.products(steps[:b], ones[:b], 0, 3), products[:b]) for b in (1, 3))


def _round_rows(vectors: Values) -> tuple[Steps, Values]:
    """Round each row of `vectors`, (b, K), to whole multiples of a step.

    Returns the multiples, (b, K), and the size of the step for each row, (b,), which is 1 for a row of zeros.
    """
    sizes = np.abs(vectors).max(axis=1) / MOST_STEPS
    sizes[sizes == 0] = 1.0
    return np.rint(vectors / sizes[:, np.newaxis]).astype(np.int8), sizes


def norms(vectors: Values) -> Values:
    """Return the norm of each row of `vectors`, (m, K). Its bits do not depend on other rows."""
    return np.sqrt(row_sums(vectors * vectors))


def row_sums(products: Values) -> Values:
    """Return the sums of the rows of a C-contiguous array, (m, K). The bits of a sum do not depend on other rows."""
    # Not `einsum` or a BLAS product, whose bits change with the number of rows.
    sums: Values = np.add.reduce(products, axis=1)
    return sums
