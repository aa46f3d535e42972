"""Item sets, and the selection of the best items from an array of scores.

An item set holds the items that a filter, a list of available items or a request allows, in at most one bit an item.

The selection is exact, and sorts only the scores that reach a bound:

| symbol | meaning |
|---|---|
| n | number of scores |
| k | number of best scores to select |
| g | number of groups that the scores are divided into; score j is in group j mod g |
| bound | k-th largest of the group maxima, so never above the k-th largest score |
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

_BIT = np.uint8(0x80) >> np.arange(8, dtype=np.uint8)
"""The bit of a column within its byte, by column modulo 8."""
COLUMNS_SHARE = 32
"""A set of at most one item in this many is held as int32 columns, which then take no more memory than bits."""


class ItemSet:
    """An immutable set of item columns, held as packed bits or, if it is small, as columns. Reading is thread-safe."""

    __slots__ = ("_bits", "_columns", "count", "n_items")

    def __init__(
        self,
        n_items: int,
        count: int,
        *,
        bits: NDArray[np.uint8] | None = None,
        columns: NDArray[np.int32] | None = None,
    ) -> None:
        self.n_items = n_items
        self.count = count
        self._bits = bits
        self._columns = columns

    @classmethod
    def of_flags(cls, flags: NDArray[np.bool_]) -> Self:
        """Build the set from one truth value per item, (n,)."""
        count = int(np.count_nonzero(flags))
        if count * COLUMNS_SHARE <= len(flags):
            return cls(len(flags), count, columns=flags.nonzero()[0].astype(np.int32))
        return cls(len(flags), count, bits=np.packbits(flags))

    @classmethod
    def of_columns(cls, columns: NDArray[Any], n_items: int) -> Self:
        """Build the set from columns in any order, repeated or not."""
        if len(columns) * COLUMNS_SHARE <= n_items:
            own = distinct(columns).astype(np.int32, copy=False)
            return cls(n_items, len(own), columns=own)
        flags = np.zeros(n_items, dtype=np.bool_)
        flags[columns] = True
        return cls.of_flags(flags)

    @classmethod
    def _of_bits(cls, bits: NDArray[np.uint8], n_items: int) -> Self:
        count = int(np.bitwise_count(bits).sum())
        if count * COLUMNS_SHARE <= n_items:
            return cls.of_flags(_unpack(bits, n_items))
        return cls(n_items, count, bits=bits)

    def __and__(self, other: ItemSet) -> ItemSet:
        # A small set is looked up in the other, which costs its own size instead of that of the catalogue.
        for small, another in ((self, other), (other, self)):
            if small._columns is not None:
                columns = small._columns[another.contains(small._columns)]
                return ItemSet(self.n_items, len(columns), columns=columns)
        return ItemSet._of_bits(self.bits & other.bits, self.n_items)

    def __or__(self, other: ItemSet) -> ItemSet:
        return ItemSet._of_bits(self.bits | other.bits, self.n_items)

    def __invert__(self) -> ItemSet:
        return ItemSet.of_flags(~self.flags())

    def equals(self, other: ItemSet | None) -> bool:
        """Return whether both sets have the same columns of the same number of items."""
        return other is not None and self.n_items == other.n_items and np.array_equal(self.bits, other.bits)

    @property
    def bits(self) -> NDArray[np.uint8]:
        """Return one bit per item, the first item in the highest bit of the first byte. Do not write to the array."""
        return np.packbits(self.flags()) if self._bits is None else self._bits

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self._bits, self._columns) if part is not None)

    def flags(self) -> NDArray[np.bool_]:
        """Return one truth value per item, (n,), in a new array."""
        if self._bits is not None:
            return _unpack(self._bits, self.n_items)
        flags = np.zeros(self.n_items, dtype=np.bool_)
        flags[self._columns] = True
        return flags

    def contains(self, columns: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return whether each of `columns`, (m,), is in the set, (m,)."""
        if self._bits is None:
            return self.flags().take(columns)
        bits: NDArray[np.uint8] = self._bits.take(columns >> 3) & _BIT.take(columns & 7)
        return bits.astype(np.bool_)

    def columns(self) -> NDArray[np.int32]:
        """Return the columns, ascending. Do not write to the array."""
        return self.flags().nonzero()[0].astype(np.int32) if self._columns is None else self._columns

    def columns_without(self, excluded: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the columns, ascending, without the `excluded` ones."""
        if self._columns is not None:
            return without(self._columns, excluded, self.n_items)
        flags = self.flags()
        flags[excluded] = False
        return flags.nonzero()[0].astype(np.int32)


def _unpack(bits: NDArray[np.uint8], n_items: int) -> NDArray[np.bool_]:
    # A view, because the bytes of unpacked bits are valid truth values already.
    return np.unpackbits(bits, count=n_items).view(np.bool_)


def distinct(columns: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct columns, ascending. For 10,000 columns this takes 0.1 ms, and `np.unique` 2 ms."""
    rising = np.sort(columns)
    return rising[firsts(rising)]


def added_up(
    columns: NDArray[np.int32], weights: NDArray[np.float64] | None
) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
    """Return the distinct columns, ascending, each with the sum of its weights. None: all weights are 1."""
    if weights is None:
        rising = distinct(columns)
        if len(rising) == len(columns):
            return rising, None
        weights = np.ones(len(columns))
    order = columns.argsort(kind="stable")
    rising = columns[order]
    is_first = firsts(rising)
    unique = rising[is_first].astype(np.int32, copy=False)
    # `bincount` adds in the order of the entries, so equal requests get the same bits.
    total = np.bincount(is_first.cumsum() - 1, weights[order], minlength=len(unique)).astype(np.float64, copy=False)
    return unique, None if (total == 1.0).all() else total


def firsts(rising: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each of the ascending columns `rising` differs from the column before it."""
    is_first = np.ones(len(rising), dtype=np.bool_)
    np.not_equal(rising[1:], rising[:-1], out=is_first[1:])
    return is_first


def spans(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[np.intp]:
    """Return the concatenated ranges start..start + length of all pairs of `starts` and `lengths`."""
    ends = lengths.cumsum()
    numbers: NDArray[np.intp] = np.repeat(starts - ends + lengths, lengths)
    return numbers + np.arange(len(numbers))


def mask(scores: NDArray[Any], flags: NDArray[np.bool_]) -> None:
    """Set each score, (n,) float32 or float64, whose flag is False to minus infinity, in place.

    Works on the bits of the numbers. Assignment through a boolean mask is several times slower if about half of the
    flags are set, because the processor mispredicts branches.
    """
    whole = np.dtype(f"i{scores.itemsize}")
    keep = flags.view(np.int8).astype(whole)
    np.negative(keep, out=keep)  # all bits are set where the flag is true, none where it is false
    bits = scores.view(whole)
    bits &= keep
    np.invert(keep, out=keep)
    keep &= np.array(-np.inf, dtype=scores.dtype).view(whole)
    bits |= keep


def intersect(*sets: ItemSet | None) -> ItemSet | None:
    """Return the intersection of the sets. None stands for all items, in the arguments and in the result."""
    result: ItemSet | None = None
    for item_set in sets:
        if item_set is not None:
            result = item_set if result is None else result & item_set
    return result


def without(columns: NDArray[np.int32], excluded: NDArray[np.int32], n_items: int) -> NDArray[np.int32]:
    """Return `columns` without the columns in `excluded`, in the same order."""
    if not len(excluded):
        return columns
    is_excluded = np.zeros(n_items, dtype=np.bool_)
    is_excluded[excluded] = True
    return columns[~is_excluded[columns]]


SORT_BELOW = 256
"""Up to this many scores are sorted at once, because computing a bound first would take longer."""


def group_count(limit: int) -> int:
    """Return the number of groups for the `limit` best: few enough to be cheap, many enough for a sharp bound."""
    return max(128, 1 << (4 * limit - 1).bit_length())


def group_maxima(scores: NDArray[Any], groups: int) -> NDArray[Any]:
    """Return the maxima of the groups of each row of `scores`, (b, n): (b, g).

    If g does not divide n, the n mod g last scores of each row follow, (b, g + n mod g). `scores` is returned unchanged
    if groups would have only one score.
    """
    b, n = scores.shape
    depth = n // groups
    if depth <= 1:
        return scores
    # Groups are strided and not runs, so that the reduction works on whole rows with vector instructions.
    maxima: NDArray[Any] = np.maximum.reduce(scores[:, : depth * groups].reshape(b, depth, groups), axis=1)
    if n == depth * groups:
        return maxima
    return np.concatenate([maxima, scores[:, depth * groups :]], axis=1)


def best(scores: NDArray[Any], limit: int, ties: NDArray[Any] | None = None) -> NDArray[np.intp]:
    """Return the indices of the `limit` largest of `scores`, (n,), best first.

    Equal scores are ordered by ascending `ties`, (n,), which are distinct. None: by ascending index. Entries of minus
    infinity are never returned, so there may be fewer than `limit`. No entry may be NaN.
    """
    if len(scores) <= SORT_BELOW and ties is None:
        order = (-scores).argsort(kind="stable")[:limit]
        return order[scores[order] > -np.inf]
    # Takes 42 µs for ten of 41,000 scores, and `np.argpartition` 570.
    bound = lower_bound(scores, limit)
    above = np.flatnonzero(scores > bound)
    values = scores[above]
    # Many items of one group may be above the bound. A sharper bound is cheaper than sorting them.
    if len(above) > 4 * limit:
        bound = kth_largest(values, limit)
        equal, above = above[values == bound], above[values > bound]
        values = scores[above]
    else:
        equal = np.flatnonzero(scores == bound) if len(above) < limit and bound > -np.inf else above[:0]
    first = above[np.lexsort((above if ties is None else ties[above], -values))[:limit]]
    if len(first) == limit or not len(equal):
        return first
    if ties is not None:
        equal = equal[np.argsort(ties[equal])]
    return np.concatenate([first, equal[: limit - len(first)]])


def lower_bound(scores: NDArray[Any], k: int) -> float:
    """Return a value that at least `k` of the scores reach, or minus infinity if fewer are above it.

    It is the k-th largest score, or the k-th largest maximum of groups of the scores.
    """
    return kth_largest(group_maxima(scores[np.newaxis], group_count(k))[0], k)


def kth_largest(values: NDArray[Any], k: int) -> float:
    """Return the k-th largest value, or minus infinity if fewer values are above it.

    Leaves out the lowest finite value: `np.partition` takes 30 to 150 times as long if most values are equal, as the
    zeros of a sparse model are (100,000 values: 14 ms instead of 0.2 ms).
    """
    if len(values) > SORT_BELOW:
        values = values[values > -np.inf]
        lowest = values.min(initial=np.inf)
        above = values[values > lowest]
        if len(above) < k <= len(values):
            return float(lowest)
        values = above
    return float(np.partition(values, len(values) - k)[len(values) - k]) if len(values) >= k else -np.inf


def reaching(scores: NDArray[Any], limit: int, slack: float = 0.0) -> NDArray[np.intp]:
    """Return the indices, ascending, of all scores of at least the `limit`-th largest score minus `slack`.

    The indices of a few lower scores may be among them, but not of minus infinity.
    """
    bound = lower_bound(scores, limit)
    if bound > -np.inf:
        # One step lower, because rounding the bound to float32 may have raised it.
        return np.flatnonzero(scores >= np.nextafter(scores.dtype.type(bound - slack), -np.inf))
    return np.flatnonzero(scores > -np.inf)
