"""Find many ids of one table at once, by a dict of all ids or by digests that numpy computes.

A large table has no dict: it would take about 120 bytes an id.

| symbol | meaning |
|---|---|
| letters | uint8 (b,): the UTF-8 of some ids, end to end |
| digest | Σ letter · multiplier of its place, modulo 2⁶⁴ |
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from svc.model.ids import IdTable

# A table of hashes for numpy, smaller and read for all ids at once, took as long.
AT_HAND = 1 << 16
"""Tables of up to this many ids are held as a dict, which takes about 120 bytes an id: 8 MB at most."""
_FEW = 12
"""Below this number of ids, single lookups are faster."""
_AT_ONCE = 1 << 16
"""Ids of the table that are digested at once, which bounds the memory for preparing a large table."""
_MULTIPLIERS = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 64, 1024, dtype=np.uint64) | np.uint64(1)
"""One multiplier for each position in an id. Longer ids reuse them."""

Letters = NDArray[np.uint8]
Lengths = NDArray[np.int64]


class IdFinder:
    """Finds the rows of many ids of `table` at once. Takes 12 bytes an id unless it holds a dict. Reading is
    thread-safe.

    A client can choose ids that share a digest, so every match is compared byte by byte. An id whose match fails is
    looked up by itself.
    """

    _at_hand: dict[str, int] | None = None

    def __init__(self, table: IdTable) -> None:
        self._table = table
        if len(table) <= AT_HAND:
            # not dict(zip(...)): it would hold the interpreter's lock for milliseconds
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
            return np.fromiter(map(self._at_hand.get, ids, repeat(-1)), np.int32, len(ids))
        table = self._table
        text = "".join(ids)
        if len(ids) < _FEW or not table.blob.size or not text.isascii():
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
        """Return whether the ids of `rows` consist of these letters, (n,)."""
        starts = self._table.offsets[rows].astype(np.int64)
        alike: NDArray[np.bool_] = self._table.offsets[rows + 1] - starts == lengths
        own = np.repeat(starts, lengths) + places
        differs = self._table.blob.take(own, mode="clip") != letters
        alike[np.repeat(np.arange(len(rows)), lengths)[differs]] = False
        return alike


def _digests(letters: Letters, lengths: Lengths) -> tuple[NDArray[np.uint64], Lengths]:
    """Return the digest of each id, (n,), and the place of each letter in its id, (b,)."""
    ends = np.cumsum(lengths)
    places = np.arange(len(letters)) - np.repeat(ends - lengths, lengths)
    sums = np.zeros(len(letters) + 1, dtype=np.uint64)
    np.cumsum(letters * _MULTIPLIERS.take(places, mode="wrap"), out=sums[1:])
    return sums[ends] - sums[ends - lengths], places
