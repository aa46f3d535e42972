"""Approximate scores of all items from vectors rounded to eight bits, with a bound of the rounding error.

| symbol | shape | meaning |
|---|---|---|
| n, K, b | | items, components, vectors of one scan |
| v, u | (K,) | an item's vector and a scan's |
| s, q | (), (K,) int8 | step of v, and v in whole steps: v = s·q + e |
| t, p | (), (K,) int8 | the same of u: u = t·p + r |

    u·v = t·s·(p·q) + t·p·e + r·v ,   so by Cauchy and Schwarz   |u·v − t·s·(p·q)| ≤ ‖t·p‖·‖e‖ + ‖r‖·‖v‖

p·q is a whole number that fits into 32 bits for K up to 2¹⁷, and it is computed exactly from a quarter of the bytes
that a float32 product reads. It comes from numkong, which the extra `fast` installs; without it there is no first look.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.recommenders.factor_scan import row_sums

MOST_STEPS = 127
MOST_COMPONENTS = 1 << 17
ITEMS_AT_ONCE = 4096
"""Products that are scaled and transposed while they are in the processor's cache."""
ROUNDING = 2.0**-50
"""More than the relative error of a few operations in float64, and of a sum's for each of its addends."""
LEAST, MOST = 1e-150, 1e150
"""Largest components between which squares and products of two are far from the ends of float64."""
LOST = 1e-290
"""More than what results below the smallest normal number may lose."""

Values = NDArray[np.float64]
Steps = NDArray[np.int8]


class Approximation(NamedTuple):
    """Approximate scores of all items by position, (n,), and a bound of their errors.

    The bound is infinite where nothing can be told: for a vector of zeros, and for tiny or huge ones.
    """

    scores: Values
    error: float


class RoundedItems:
    """The rounded vectors of all items by position: `steps`, (n, K), and their `sizes`, (n,).

    `longest` is the largest ‖v‖ and `loss` the largest ‖e‖.
    """

    def __init__(self, steps: Steps, sizes: Values, longest: float, loss: float) -> None:
        self.steps = steps
        self.sizes = sizes
        self.longest = longest
        self.loss = loss

    @classmethod
    def of(cls, factors: NDArray[np.float32]) -> RoundedItems | None:
        """From item vectors, (n, K). None without numkong, or where its products are not exact on this processor."""
        if find_spec("numkong") is None or factors.shape[1] > MOST_COMPONENTS or not _is_exact(factors.shape[1]):
            return None
        steps, sizes = np.empty(factors.shape, dtype=np.int8), np.empty(len(factors))
        longest = loss = 0.0
        for start in range(0, len(factors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            exact = factors[part].astype(np.float64)
            steps[part], sizes[part] = _rounded(exact)
            longest = max(longest, float(_norms(exact).max()))
            loss = max(loss, float(_norms(exact - steps[part] * sizes[part, np.newaxis]).max()))
        return cls(steps, sizes, longest, loss)

    def approximations(self, vectors: Values) -> list[Approximation]:
        """The inner products with each row of `vectors`, (b, K)."""
        peaks = np.abs(vectors).max(axis=1)
        usable = (peaks > LEAST) & (peaks < MOST)
        vectors = np.where(usable[:, np.newaxis], vectors, 0.0)
        steps, sizes = _rounded(vectors)
        rounded = steps * sizes[:, np.newaxis]
        errors = _norms(rounded) * self.loss + _norms(vectors - rounded) * self.longest
        errors += ROUNDING * vectors.shape[1] * _norms(vectors) * self.longest + LOST
        errors[~usable] = np.inf
        return list(map(Approximation, self._products(steps, sizes), errors.tolist()))

    def _products(self, steps: Steps, sizes: Values) -> Values:
        import numkong

        if len(steps) == 1:  # a third faster than by a packed matrix of one row
            scores: Values = np.asarray(numkong.cdist(steps, self.steps, "dot")) * self.sizes
            scores *= sizes[0]
            return scores
        scores = np.empty((len(steps), len(self.steps)))
        packed = numkong.dots_pack(steps, "int8")
        for start in range(0, len(self.steps), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            products = np.asarray(numkong.dots_packed(self.steps[part], packed))
            np.multiply(products.T, self.sizes[part], out=scores[:, part])
        scores *= sizes[:, np.newaxis]
        return scores


def _is_exact(components: int) -> bool:
    """Whether numkong's products of the largest and of mixed steps are those of numpy on this processor."""
    rng = np.random.default_rng(0)
    steps = rng.integers(-MOST_STEPS, MOST_STEPS, (3, components), dtype=np.int8, endpoint=True)
    steps[0], steps[1] = -MOST_STEPS, MOST_STEPS
    wide = steps.astype(np.int64)
    items = RoundedItems(steps, np.ones(3), 1.0, 0.0)
    return all(np.array_equal(items._products(steps[:b], np.ones(b)), wide[:b] @ wide.T) for b in (1, 3))


def _rounded(vectors: Values) -> tuple[Steps, Values]:
    """The rows of `vectors` in whole steps, and the size of a step of each row; 1 for a row of zeros."""
    sizes = np.abs(vectors).max(axis=1) / MOST_STEPS
    sizes[sizes == 0] = 1.0
    return np.rint(vectors / sizes[:, np.newaxis]).astype(np.int8), sizes


def _norms(vectors: Values) -> Values:
    return np.sqrt(row_sums(vectors * vectors))
