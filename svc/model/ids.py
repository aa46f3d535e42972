"""Map user or item ids to rows and back, in four flat arrays.

A Python dict of a million ids takes over 100 MB and a second to load. These arrays are views of the artifact's own
bytes.

symbol    dtype, shape      meaning
blob      uint8 (b,)        UTF-8 of all ids, end to end, in row order
offsets   uint32|int64 (n+1,)  id i is blob[offsets[i]:offsets[i+1]]
hashes    uint64 (n,)       64-bit digests of the ids, ascending
rows      int32 (n,)        row of the id whose digest stands at that place
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_DIGEST_BYTES = 8
_FEW = 8
# Halves the stored offsets, unless the ids take 4 GiB or more.
_UINT32_LIMIT = 1 << 32


def digest(data: bytes) -> int:
    """Return a 64-bit digest of the UTF-8 bytes of an id. Artifacts store it, so it must never change."""
    return int.from_bytes(blake2b(data, digest_size=_DIGEST_BYTES).digest(), "little")


def _utf8(text: str) -> bytes | None:
    """Return the UTF-8 bytes of an id, or None if it has lone surrogates, which JSON allows but UTF-8 does not."""
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

        Raises ValueError for a repeated id or one that UTF-8 cannot hold (a lone surrogate).
        """
        encoded = [text.encode() for text in ids]
        offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
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
        for position in np.flatnonzero(self.hashes[1:] == self.hashes[:-1]):
            row = int(self.rows[position + 1])
            if self.index(self.at(row)) != row:
                raise ValueError(f"an id stands in two rows, the second is {row}")

    def __len__(self) -> int:
        return self.rows.size

    def __repr__(self) -> str:
        return f"IdTable({len(self)} ids, {self.blob.size} bytes)"

    def index(self, id: str) -> int:
        """Return the row of `id`, or -1."""
        data = _utf8(id)
        if data is None:
            return -1
        key = digest(data)
        return self._row_of(data, key, bisect_left(self.hashes.data, key))

    def indices(self, ids: Sequence[str]) -> NDArray[np.int32]:
        """Return the rows of `ids`, (len(ids),) int32, with -1 for unknown ids."""
        if len(ids) <= _FEW or not len(self):
            return np.array([self.index(text) for text in ids], dtype=np.int32)
        encoded = [_utf8(text) for text in ids]
        digests = np.fromiter((0 if data is None else digest(data) for data in encoded), np.uint64, len(encoded))
        positions = np.searchsorted(self.hashes, digests)
        likely = self.rows[np.minimum(positions, len(self) - 1)]
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
        """Return the number of ids of `others` in this table, by their digests. Takes about 0.1 s per million ids."""
        if not len(self):
            return 0
        positions = np.minimum(np.searchsorted(self.hashes, others.hashes), len(self) - 1)
        return int(np.count_nonzero(self.hashes[positions] == others.hashes))

    def _row_of(self, data: bytes, key: int, position: int) -> int:
        """Return the row of the id with these bytes, searching from the first `position` that may hold its digest."""
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
        data = self.blob.tobytes()
        ends = self.offsets.tolist()
        return [data[start:end].decode() for start, end in pairwise(ends)]
