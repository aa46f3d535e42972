"""Float32 inner products of a few vectors or many with the items, in the way that is faster on this machine.

A matrix product copies its operands before it multiplies, which takes longer than the product itself for a few vectors
only. On some processors OpenBLAS multiplies small matrices without copying, so there the items are multiplied block by
block, each small enough for that; on others this takes longer. The last bits of the products depend on the way, which
is why they are only a first look at the items.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

SMALL = 1_000_000
"""OpenBLAS takes its kernels for small matrices up to so many multiplications."""
FEW, COMPONENTS_FOR_EACH = 64, 2
"""More vectors than this are multiplied faster at once on every processor; of few components even fewer, as turning the
products back takes longer than what is saved."""
GEMM_FROM = 8
"""Fewer vectors than this are multiplied faster one at a time where small products do not pay."""
CLEARLY = 0.9
TIMED = 5


def inner_products(vectors: Matrix, factors: Matrix) -> Matrix:
    """Of each row of `vectors`, (b, K), with each row of `factors`, (m, K): (b, m)."""
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
    """Whether products block by block are clearly faster here; it takes about a millisecond to find out."""
    vectors, factors = np.ones((16, 128), dtype=np.float32), np.ones((2048, 128), dtype=np.float32)
    products = np.empty((16, 2048), dtype=np.float32)

    def seconds(multiply: Callable[[Matrix, Matrix, Matrix], object]) -> float:
        """The least of several: another thread may interrupt a measurement."""
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
