"""Float32 inner products of vectors with the items, in the way that is fastest on this machine.

A matrix product copies its operands first. For a few vectors this takes longer than the product itself. On some
processors OpenBLAS multiplies small matrices without copying, so the items are multiplied in blocks that are small
enough. On other processors blocks take longer. The chosen way affects the last bits of the products. So scans use the
products only for a first look at the items.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

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
