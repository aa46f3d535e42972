"""Approximate scores of all items from vectors rounded to eight bits, with a bound of the rounding error.

| symbol | shape | meaning |
|---|---|---|
| n, K, b | | items, components, vectors of one scan |
| v, u | (K,) | an item's vector and a scan's |
| s, q | (), (K,) int8 | step of v, and v in whole steps: v = s·q + e |
| t, p | (), (K,) int8 | the same of u: u = t·p + r |

    u·v = t·s·(p·q) + t·p·e + r·v ,   so by Cauchy and Schwarz   |u·v − t·s·(p·q)| ≤ ‖t·p‖·‖e‖ + ‖r‖·‖v‖

p·q is a whole number that fits into 32 bits for K up to 2¹⁷, and it is computed exactly from a quarter of the bytes
that a float32 product reads. It comes from numkong, which the extra `fast` installs; without it there is no such look.
The rest is float32: within the bounds of LEAST and MOST no result leaves its range, and rounding is in the error.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from svc.model.recommenders.blend_scan import FirstLook
from svc.model.recommenders.factor_scan import UNIT_ROUNDOFF, row_sums

MOST_STEPS = 127
MOST_COMPONENTS = 1 << 17
ITEMS_AT_ONCE = 4096
"""Products that are scaled and transposed while they are in the processor's cache."""
LEAST, MOST = 1e-15, 1e15
"""Largest components of vectors of which something can be told."""
ROUNDINGS = 8
"""More than the operations in float32 of which a score comes."""

Values = NDArray[np.float64]
Scores = NDArray[np.float32]
Steps = NDArray[np.int8]


class RoundedItems:
    """The rounded vectors of all items by position: `steps`, (n, K), and their `sizes`, (n,).

    `longest` is the largest ‖v‖ and `loss` the largest ‖e‖.
    """

    def __init__(self, steps: Steps, sizes: Scores, longest: float, loss: float) -> None:
        self.steps = steps
        self.sizes = sizes
        self.longest = longest
        self.loss = loss

    @classmethod
    def of(cls, factors: NDArray[np.float32]) -> RoundedItems | None:
        """From item vectors, (n, K).

        None without numkong, where its products are not exact on this processor, and for tiny and huge vectors.
        """
        if find_spec("numkong") is None or factors.shape[1] > MOST_COMPONENTS or not _is_exact(factors.shape[1]):
            return None
        steps, sizes = np.empty(factors.shape, dtype=np.int8), np.empty(len(factors), dtype=np.float32)
        longest = loss = 0.0
        for start in range(0, len(factors), ITEMS_AT_ONCE):
            part = slice(start, start + ITEMS_AT_ONCE)
            exact = factors[part].astype(np.float64)
            steps[part], sizes[part] = _rounded(exact)
            longest = max(longest, float(_norms(exact).max()))
            loss = max(loss, float(_norms(exact - steps[part] * sizes[part, np.newaxis].astype(np.float64)).max()))
        return cls(steps, sizes, longest, loss) if LEAST < longest < MOST else None

    def first_looks(self, vectors: Values) -> list[FirstLook]:
        """The inner products with each row of `vectors`, (b, K)."""
        peaks = np.abs(vectors).max(axis=1)
        usable = (peaks == 0) | (peaks > LEAST) & (peaks < MOST)
        vectors = np.where(usable[:, np.newaxis], vectors, 0.0)
        steps, sizes = _rounded(vectors)
        rounded = steps * sizes[:, np.newaxis]
        lengths = _norms(rounded)
        errors = lengths * self.loss + _norms(vectors - rounded) * self.longest
        errors += ROUNDINGS * UNIT_ROUNDOFF * lengths * (self.longest + self.loss)
        errors[~usable] = np.inf
        return list(map(FirstLook, self._products(steps, sizes.astype(np.float32)), errors.tolist()))

    def _products(self, steps: Steps, sizes: Scores) -> Scores:
        import numkong

        scores = np.empty((len(steps), len(self.steps)), dtype=np.float32)
        if len(steps) == 1:  # a third faster than by a packed matrix of one row
            scores[:] = numkong.cdist(steps, self.steps, "dot")
            scores *= self.sizes
        else:
            packed = numkong.dots_pack(steps, "int8")
            for start in range(0, len(self.steps), ITEMS_AT_ONCE):
                part = slice(start, start + ITEMS_AT_ONCE)
                scores[:, part] = np.asarray(numkong.dots_packed(self.steps[part], packed)).T
                scores[:, part] *= self.sizes[part]
        scores *= sizes[:, np.newaxis]
        return scores


def _is_exact(components: int) -> bool:
    """Whether numkong's products of the largest and of mixed steps are those of numpy on this processor."""
    rng = np.random.default_rng(0)
    steps = rng.integers(-MOST_STEPS, MOST_STEPS, (3, components), dtype=np.int8, endpoint=True)
    steps[0], steps[1] = -MOST_STEPS, MOST_STEPS
    products = (steps.astype(np.int64) @ steps.T.astype(np.int64)).astype(np.float32)
    ones = np.ones(3, dtype=np.float32)
    items = RoundedItems(steps, ones, 1.0, 0.0)
    return all(np.array_equal(items._products(steps[:b], ones[:b]), products[:b]) for b in (1, 3))


def _rounded(vectors: Values) -> tuple[Steps, Values]:
    """The rows of `vectors` in whole steps, and the size of a step of each row; 1 for a row of zeros."""
    sizes = np.abs(vectors).max(axis=1) / MOST_STEPS
    sizes[sizes == 0] = 1.0
    return np.rint(vectors / sizes[:, np.newaxis]).astype(np.int8), sizes


def _norms(vectors: Values) -> Values:
    return np.sqrt(row_sums(vectors * vectors))
