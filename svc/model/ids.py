"""Map user or item ids to rows and back, in four flat arrays.

The arrays are views of the artifact's bytes, so loading them takes no time. A Python dict of a million ids takes over
100 MB and a second to load.

symbol    dtype, shape      meaning
blob      uint8 (b,)        UTF-8 of all ids, concatenated in row order
offsets   uint32|int64 (n+1,)  id i is blob[offsets[i]:offsets[i+1]]
hashes    uint64 (n,)       64-bit digests of the ids, ascending
rows      int32 (n,)        rows[k] is the row of the id with the digest hashes[k]
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise, repeat

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 8
_FEW = 8
_UINT32_LIMIT = 1 << 32
"""Offsets are stored as uint32 if the ids take fewer bytes than this."""


def digest(data: bytes) -> int:
    """Return a 64-bit digest of the UTF-8 bytes of an id. Artifacts store it, so it must never change."""
    return int.from_bytes(blake2b(data, digest_size=_DIGEST_BYTES).digest(), "little")


def _utf8(text: str) -> bytes | None:
    """Return the UTF-8 bytes of an id, or None if it has a lone surrogate, which JSON allows but UTF-8 does not."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdTable:
    """An immutable list of distinct ids. Reading is thread-safe.

    Ids with equal digests are compared by their bytes, so no id is mistaken for another.
    """

    blob: NDArray[np.uint8]
    offsets: NDArray[np.uint32] | NDArray[np.int64]
    hashes: NDArray[np.uint64]
    rows: NDArray[np.int32]

    @classmethod
    def from_ids(cls, ids: Sequence[str]) -> IdTable:
        """Build the table of `ids`, whose order gives the rows.

        Raises ValueError for a repeated id, or for an id with a lone surrogate.
        """
        encoded = [text.encode() for text in ids]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
        # blake2b and not Python's `hash`, which differs between processes.
        digests = np.fromiter(map(digest, encoded), np.uint64, len(encoded))
        order = np.argsort(digests, kind="stable")
        table = cls(
            blob=np.frombuffer(b"".join(encoded), dtype=np.uint8),
            offsets=offsets.astype(np.uint32) if offsets[-1] < _UINT32_LIMIT else offsets,
            hashes=digests[order],
            rows=order.astype(np.int32),
        )
        table._refuse_repeats()
        return table

    def _refuse_repeats(self) -> None:
        # Only equal digests can be equal ids, so there is no need to compare all ids.
        for position in np.flatnonzero(self.hashes[1:] == self.hashes[:-1]):
            row = int(self.rows[position + 1])
            if self.index(self.at(row)) != row:
                raise ValueError(f"an id occurs in two rows, the second is {row}")

    def __len__(self) -> int:
        return self.rows.size

    def __repr__(self) -> str:
        return f"IdTable({len(self)} ids, {self.blob.size} bytes)"

    def index(self, id: str) -> int:
        """Return the row of `id`, or -1 if the table does not have it."""
        data = _utf8(id)
        if data is None:
            return -1
        key = digest(data)
        # `bisect` on the buffer takes 0.5 µs, `np.searchsorted` 1.7.
        return self._row_of(data, key, bisect_left(self.hashes.data, key))

    def indices(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the rows of `ids`, (len(ids),) int32, with -1 for unknown ids."""
        if len(ids) <= _FEW or not len(self):
            return np.array([self.index(text) for text in ids], dtype=np.int32)
        encoded = [_utf8(text) for text in ids]
        digests = np.fromiter((0 if data is None else digest(data) for data in encoded), np.uint64, len(encoded))
        positions = np.searchsorted(self.hashes, digests)
        likely = self.rows[np.minimum(positions, len(self) - 1)]
        # As Python numbers, because reading single elements of arrays is slower.
        starts, ends = self.offsets[likely].tolist(), self.offsets[likely + 1].tolist()
        blob = self.blob.data
        rows = likely.copy()
        for asked, data in enumerate(encoded):
            if data is None:
                rows[asked] = -1
            elif data != bytes(blob[starts[asked] : ends[asked]]):
                rows[asked] = self._row_of(data, int(digests[asked]), int(positions[asked]))
        return rows

    def n_shared(self, others: IdTable) -> int:
        """Return the number of digests of `others` that this table has too. Takes about 0.1 s per million ids."""
        if not len(self):
            return 0
        positions = np.minimum(np.searchsorted(self.hashes, others.hashes), len(self) - 1)
        return int(np.count_nonzero(self.hashes[positions] == others.hashes))

    def _row_of(self, data: bytes, key: int, position: int) -> int:
        """Return the row of the id with the bytes `data` and the digest `key`, or -1.

        `position` is the first position in `hashes` with a digest of at least `key`.
        """
        # Different ids may share a digest. All that do stand together.
        while position < self.hashes.size and self.hashes[position] == key:
            row = int(self.rows[position])
            if self._bytes_at(row) == data:
                return row
            position += 1
        return -1

    def _bytes_at(self, row: int) -> bytes:
        return self.blob[int(self.offsets[row]) : int(self.offsets[row + 1])].tobytes()

    def at(self, row: int) -> str:
        """Return the id of `row`. Raises IndexError outside 0..len-1."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not within 0..{len(self) - 1}")
        return self._bytes_at(row).decode()

    def all(self) -> list[str]:
        """Return every id, in row order."""
        # One copy of all bytes, because slicing bytes is faster than slicing arrays a million times.
        data = self.blob.tobytes()
        ends = self.offsets.tolist()
        return [data[start:end].decode() for start, end in pairwise(ends)]


# A hash table of numpy arrays would take less memory than this dict, but its lookups were no faster.
AT_HAND = 1 << 16
"""A finder holds a table of up to this many ids as a dict, which takes about 120 bytes an id, so at most 8 MB."""
_FEW_IDS = 12
"""Fewer ids than this are found faster by `IdTable.indices`."""
_AT_ONCE = 1 << 16
"""The ids of the table that are digested at once. Bounds the memory for preparing a large table."""
# Odd numbers, with which different letters at one place never give equal products.
_MULTIPLIERS = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 64, 1024, dtype=np.uint64) | np.uint64(1)
"""One multiplier for each of the first 1,024 bytes of an id. Later bytes reuse them in turn."""

Letters = NDArray[np.uint8]
Lengths = NDArray[np.int64]


class IdFinder:
    """Finds the rows of many ids of `table` at once. Reading is thread-safe.

    A table of up to AT_HAND ids is held as a dict.

    For a larger table, the finder holds a digest (8 bytes) and a row (4 bytes) of each id. One call computes the
    digests of all its ids by a few numpy operations. If it has fewer than _FEW_IDS ids, or an id that is not ASCII, all
    its ids are looked up by `table.indices` instead.

    A client can choose ids with equal digests, so every match is compared byte by byte. If the bytes differ, the id is
    looked up by `table.index`.
    """

    _at_hand: dict[str, int] | None = None

    def __init__(self, table: IdTable) -> None:
        self._table = table
        if len(table) <= AT_HAND:
            # A comprehension lets other threads run in between. dict(zip(...)) would hold the GIL for milliseconds.
            self._at_hand = {text: row for row, text in enumerate(table.all())}
            return
        digests = np.empty(len(table), dtype=np.uint64)
        for start in range(0, len(table), _AT_ONCE):
            ends = table.offsets[start : start + _AT_ONCE + 1].astype(np.int64)
            digests[start : start + _AT_ONCE] = _digests(table.blob[ends[0] : ends[-1]], np.diff(ends))[0]
        self._rows = np.argsort(digests, kind="stable").astype(np.int32)
        self._digests = digests[self._rows]

    def indices(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the rows of `ids`, (len(ids),) int32, with -1 for unknown ids."""
        if self._at_hand is not None:
            # Takes 10 µs for 200 ids, and `IdTable.indices` 260.
            return np.fromiter(map(self._at_hand.get, ids, repeat(-1)), np.int32, len(ids))
        table = self._table
        text = "".join(ids)
        if len(ids) < _FEW_IDS or not table.blob.size or not text.isascii():
            return table.indices(ids)
        letters, lengths = np.frombuffer(text.encode(), dtype=np.uint8), np.fromiter(map(len, ids), np.int64, len(ids))
        digests, places = _digests(letters, lengths)
        nearest = np.searchsorted(self._digests, digests).clip(max=len(table) - 1)
        rows = np.where(self._digests[nearest] == digests, self._rows[nearest], -1)
        doubtful = (rows >= 0) & ~self._have_letters(rows, letters, lengths, places)
        for position in np.flatnonzero(doubtful).tolist():
            rows[position] = table.index(ids[position])
        return rows.astype(np.int32, copy=False)

    def _have_letters(
        self, rows: NDArray[np.int32], letters: Letters, lengths: Lengths, places: Lengths
    ) -> NDArray[np.bool_]:
        """Return whether the id of each row equals the id asked for at the same position, (n,).

        `letters`, `lengths` and `places` describe the ids asked for, as in `_digests`.
        """
        starts = self._table.offsets[rows].astype(np.int64)
        alike: NDArray[np.bool_] = self._table.offsets[rows + 1] - starts == lengths
        own = np.repeat(starts, lengths) + places
        # Clipped, because the bytes of a shorter id at the end of the table end before.
        differs = self._table.blob.take(own, mode="clip") != letters
        alike[np.repeat(np.arange(len(rows)), lengths)[differs]] = False
        return alike


def _digests(letters: Letters, lengths: Lengths) -> tuple[NDArray[np.uint64], Lengths]:
    """Return the digest of each id, (n,), and the place of each letter in its id, (b,).

    `letters`, (b,), are the concatenated UTF-8 bytes of the ids, and `lengths`, (n,), the number of bytes of each id.
    The digest is Σ letter · multiplier of its place, modulo 2⁶⁴.
    """
    ends = np.cumsum(lengths)
    places = np.arange(len(letters)) - np.repeat(ends - lengths, lengths)
    sums = np.zeros(len(letters) + 1, dtype=np.uint64)
    np.cumsum(letters * _MULTIPLIERS.take(places, mode="wrap"), out=sums[1:])
    # Differences of running sums modulo 2⁶⁴ are exact, whatever overflows before.
    return sums[ends] - sums[ends - lengths], places
