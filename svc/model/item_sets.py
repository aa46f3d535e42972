"""Sets of item columns, one bit per item: the items that a filter, a list of available items or a request allows."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

COLUMNS_SHARE = 32
"""Sets of at most one item in this many also keep their columns, which then take no more memory than the bits."""


class ItemSet:
    """An immutable set of the columns 0..n-1, as packed bits. Reading is thread-safe."""

    __slots__ = ("_columns", "bits", "count", "n_items")

    def __init__(self, bits: NDArray[np.uint8], n_items: int, columns: NDArray[np.int32] | None = None) -> None:
        self.bits = bits
        self.n_items = n_items
        self.count = int(np.bitwise_count(bits).sum()) if columns is None else len(columns)
        self._columns = columns

    @classmethod
    def of_flags(cls, flags: NDArray[np.bool_]) -> Self:
        """From one truth value an item, (n,)."""
        return cls(np.packbits(flags), len(flags))

    @classmethod
    def of_columns(cls, columns: NDArray[Any], n_items: int) -> Self:
        """From columns in any order, repeated or not."""
        flags = np.zeros(n_items, dtype=np.bool_)
        flags[columns] = True
        if len(columns) * COLUMNS_SHARE > n_items:
            return cls.of_flags(flags)
        return cls(np.packbits(flags), n_items, flags.nonzero()[0].astype(np.int32))

    def __and__(self, other: ItemSet) -> ItemSet:
        return ItemSet(self.bits & other.bits, self.n_items)

    def __or__(self, other: ItemSet) -> ItemSet:
        return ItemSet(self.bits | other.bits, self.n_items)

    def __invert__(self) -> ItemSet:
        bits = ~self.bits
        if self.n_items % 8:
            bits[-1] &= 0xFF00 >> (self.n_items % 8) & 0xFF  # the unused bits after the last item stay 0
        return ItemSet(bits, self.n_items)

    @property
    def nbytes(self) -> int:
        return int(self.bits.nbytes) + (0 if self._columns is None else int(self._columns.nbytes))

    def flags(self) -> NDArray[np.bool_]:
        """One truth value an item, (n,)."""
        return np.unpackbits(self.bits, count=self.n_items).view(np.bool_)

    def contains(self, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each of some columns is in the set, without unpacking it."""
        inside: NDArray[np.bool_] = (self.bits[columns >> 3] & (0x80 >> (columns & 7)).astype(np.uint8)) != 0
        return inside

    def columns(self) -> NDArray[np.int32]:
        """The columns, rising. Not to be written to."""
        if self._columns is not None:
            return self._columns
        columns = np.flatnonzero(self.flags()).astype(np.int32)
        if self.count * COLUMNS_SHARE <= self.n_items:
            self._columns = columns
        return columns


def mask(scores: NDArray[Any], flags: NDArray[np.bool_]) -> None:
    """Set the scores, (n,) float32 or float64, whose flag is not set to minus infinity, in place.

    Done on the bits of the numbers: assigning through a mask that keeps about half of them is several times slower,
    because the processor mispredicts its branches.
    """
    whole = np.dtype(f"i{scores.itemsize}")
    keep = flags.view(np.int8).astype(whole)
    np.negative(keep, out=keep)  # all bits are set where the flag is true, none where it is false
    bits = scores.view(whole)
    bits &= keep
    np.invert(keep, out=keep)
    keep &= np.array(-np.inf, dtype=scores.dtype).view(whole)
    bits |= keep


def joined(*sets: ItemSet | None) -> ItemSet | None:
    """The intersection of those that are given; None, no restriction, when none is."""
    result: ItemSet | None = None
    for one in sets:
        if one is not None:
            result = one if result is None else result & one
    return result


def without(columns: NDArray[np.int32], excluded: NDArray[np.int32], n_items: int) -> NDArray[np.int32]:
    """`columns` less those in `excluded`, in their order."""
    if not len(excluded):
        return columns
    is_excluded = np.zeros(n_items, dtype=np.bool_)
    is_excluded[excluded] = True
    return columns[~is_excluded[columns]]
