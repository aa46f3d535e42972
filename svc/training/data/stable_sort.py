"""Sort many rows by whole numbers, several times faster than `numpy.lexsort`.

numpy sorts 64-bit integers with vector instructions, but argsort and lexsort, which sort positions, make one comparison
at a time. So each pass packs a key and the row's position into one integer, sorts the integers, and reads the positions
back. If both do not fit into one integer, the pass uses argsort.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD_BITS = 63
"""Bits for a key and a position: those of int64 without the sign."""


def stable_order(keys: Sequence[NDArray[np.integer]]) -> NDArray[np.int64]:
    """Return the positions, (n,), that sort rows by the first of `keys`, then by the second, and so on.

    Each key has a whole number for each row, (n,). Rows with equal keys keep their order. The result equals
    `numpy.lexsort(keys[::-1])`.
    """
    order: NDArray[np.int64] | None = None
    for key in reversed(keys):
        permutation = _order_by(key if order is None else key[order])
        order = permutation if order is None else order[permutation]
    assert order is not None, "there is at least one key"
    return order


def _order_by(key: NDArray[np.integer]) -> NDArray[np.int64]:
    n = len(key)
    if n == 0:
        return np.empty(0, dtype=np.int64)
    low, high = int(key.min()), int(key.max())
    position_bits = (n - 1).bit_length()
    if (high - low).bit_length() > _WORD_BITS:
        return np.argsort(key, kind="stable")
    words = key.astype(np.int64) - low
    step = max(int(np.gcd.reduce(words)), 1)  # nanoseconds made from seconds have the common factor 10^9
    if ((high - low) // step).bit_length() + position_bits > _WORD_BITS:
        return np.argsort(key, kind="stable")
    if step > 1:
        words //= step
    words <<= position_bits
    words |= np.arange(n, dtype=np.int64)
    words.sort()
    words &= (1 << position_bits) - 1
    return words
