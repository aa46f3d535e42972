"""Rotate the beginning of a ranking, so that a user who comes back does not see the same page again.

| symbol | meaning |
|---|---|
| deviation | the standard deviation of the values of the `ROTATED` best items, whatever page is asked for |
| noise | a standard Gumbel variate, from a hash of the seed and the item's id |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

ROTATED: Final = 100
"""Number of the best items that take part. They change places among themselves, so the pages behind them stay."""
_HASH_BITS: Final = 52
"""With up to this many bits, a hash plus a half is exact as a float. So no hash gives 0 or 1, whose noise is
infinite."""


class Rotation(NamedTuple):
    """The rotation of the best items, by how often each column was shown, and by a seed.

    Each time that an item was shown lowers its value by `rotation` deviations. With a `seed`, each item gains `shuffle`
    deviations times its noise. `id_of` maps a column to its id.
    """

    times: Mapping[int, int]
    rotation: float
    seed: str | None
    shuffle: float
    id_of: Callable[[int], str]

    @property
    def moves(self) -> bool:
        """Return whether any item can change its place."""
        return bool((self.times and self.rotation) or (self.seed and self.shuffle))

    def order(self, items: NDArray[np.int32], values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the new order of items with these values, as places. Equal new values keep their order."""
        if not len(items):
            return np.arange(0)
        gains = [-self.rotation * self.times.get(column, 0) for column in items.tolist()]
        if self.seed and self.shuffle:
            noise = _Noise(self.seed)
            gains = [
                gain + self.shuffle * noise.of(self.id_of(column))
                for gain, column in zip(gains, items.tolist(), strict=True)
            ]
        return np.argsort(-(values + values.std() * np.array(gains)), kind="stable")


class _Noise:
    """The noise of each item under one seed. It does not depend on the other items."""

    def __init__(self, seed: str) -> None:
        self._hash = blake2b(f"{seed}\0".encode(), digest_size=8)

    def of(self, item_id: str) -> float:
        """Return the noise of one item."""
        hashed = self._hash.copy()
        hashed.update(item_id.encode())
        uniform = ((int.from_bytes(hashed.digest(), "big") >> (64 - _HASH_BITS)) + 0.5) / 2**_HASH_BITS
        return -math.log(-math.log(uniform))
