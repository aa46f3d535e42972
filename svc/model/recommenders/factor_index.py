"""The item vectors of a factor model, in the order in which a scan reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.recommenders.products import RoundedItems, norms
from svc.model.recommenders.scan import NORM_STEP, Layout

BLOCK_ROWS = 4096
EVEN = 0.5
"""If the median norm is at least this share of the largest, norms hardly differ, and scans can skip hardly any item."""
LEAST_ROUNDED = 1 << 22
"""If norms hardly differ, item vectors with at least this many numbers in all are also rounded to eight bits.

Fewer numbers stay in the processor's cache.
"""
# Bounds inverse norms: the inverse of a norm below 3e-39 would be infinite in float32, and infinite · 0 is NaN.
LARGEST = float(np.finfo(np.float32).max)


class FactorIndex(Stored):
    """The item vectors of a factor model, ordered by descending norm. Call `ready` before any lookup.

    `factors`, (n, K) float32, are the vectors by position, and `columns`, (n,) int32, the item column at each position.
    """

    def __init__(self, factors: NDArray[np.float32], columns: NDArray[np.int32]) -> None:
        self.factors = factors
        self.columns = columns

    @classmethod
    def build(cls, factors: NDArray[np.float32]) -> FactorIndex:
        """Build the index from item vectors in column order, (n, K)."""
        # Stable, so that items of equal norm keep the order of columns.
        order = np.argsort(-_row_norms(factors), kind="stable")
        return cls(np.ascontiguousarray(factors[order], dtype=np.float32), order.astype(np.int32))

    @property
    def n_items(self) -> int:
        return len(self.factors)

    def ready(self) -> None:
        """Compute `layout`, the arrays that a scan by inner product reads."""
        n = self.n_items
        positions = np.empty(n, dtype=np.int32)
        positions[self.columns] = np.arange(n, dtype=np.int32)
        # The 0 at the end stands for no more items, so that a scan need not ask whether there are any.
        lengths = np.append(_row_norms(self.factors[::NORM_STEP]), 0.0)
        even = bool(lengths[len(lengths) // 2] >= EVEN * lengths[0])
        # With falling norms a scan reads only the beginning of the index, and rounding would save little.
        rounded = RoundedItems.of(self.factors) if even and self.factors.size >= LEAST_ROUNDED else None
        self.layout = Layout(self.factors, self.columns, positions, lengths.tolist(), lengths, even, rounded)

    def cosines(self) -> Layout:
        """Return the arrays of a scan by cosines. The last component of each item vector is a bias and is ignored."""
        lengths = _row_norms(self.factors[:, :-1])
        inverse = np.divide(1.0, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
        return replace(
            self.layout,
            rounded=None,
            inverse_norms=np.minimum(inverse, LARGEST).astype(np.float32),
            largest_inverse=float(inverse.max(initial=0.0)),
        )

    def vectors(self, columns: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the item vectors of the columns, (s, K), or (B, S, K) for columns of shape (B, S)."""
        return self.factors.take(self.layout.positions[columns], axis=0).astype(np.float64)

    def moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean of the item vectors, (K,), and their covariance, (K, K)."""
        mean = self.factors.mean(axis=0, dtype=np.float64)
        # In float64, because the difference of two large squares would lose most digits of float32.
        return mean, gram(self.factors) / self.n_items - np.outer(mean, mean)


def gram(factors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return FᵀF in float64, (K, K)."""
    total = np.zeros((factors.shape[1], factors.shape[1]))
    for part in blocks(factors):
        exact = part.astype(np.float64)
        total += exact.T @ exact
    return total


def blocks(factors: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Yield the rows in blocks, as views, at least one. Converting a block to float64 takes little memory."""
    for start in range(0, max(1, len(factors)), BLOCK_ROWS):
        yield factors[start : start + BLOCK_ROWS]


def _row_norms(factors: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.concatenate([norms(part.astype(np.float64)) for part in blocks(factors)])
