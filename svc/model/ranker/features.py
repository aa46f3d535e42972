"""Compute the features of the candidates of one page from a query and the item record.

| symbol | meaning |
|---|---|
| n | the candidates, best first by the winner of the search |
| h | the history: the latest items of the query, at most MOST_HISTORY |
| F | the features, in the order of `item_record.names` |

No step depends on the number of candidates: a candidate has the same bits on any page that has it at the same place.
A missing value is 0. If it may be missing for some candidates alone, a second feature marks these.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from svc.model.ranker.item_record import ItemRecord

MOST_HISTORY: Final = 100
LAST: Final = 3
"""The number of latest items whose labels have a feature of their own."""
_LOG_PLACES: Final = np.log1p(np.arange(100, dtype=np.float64))
"""A page never has more places: training ranks 100 and requests 50."""

Table = NDArray[np.float64]


def features(
    record: ItemRecord, history: NDArray[np.int32], items: NDArray[np.int32], scores: NDArray[np.float64]
) -> Table:
    """Return the features, (F, n), of `items`, (n,), which the winner ranks in this order by `scores`, (n,).

    `history` are distinct item columns, oldest first where the record is ordered.
    """
    h, n = history[-MOST_HISTORY:], len(items)
    table = np.empty((record.look.n_features, n))
    table[0], table[1] = scores, _LOG_PLACES[:n]
    row = _popularity(table, 2, record, h, items)
    row = _neighbours(table, row, record, h, items)
    if record.label_names:
        row = _labels(table, row, record, h, items)
    if record.number_names:
        _numbers(table, row, record, h, items)
    return table


def _popularity(table: Table, row: int, record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> int:
    end = row + len(record.popularity_names)
    table[row:end] = record.popularity.take(items, axis=0).T
    chosen = record.look.all_time.take(h)
    mean = float(np.add.reduce(chosen, dtype=np.float64)) / len(h) if len(h) else 0.0
    np.multiply(table[row], mean, out=table[end])
    return end + 1


def _neighbours(table: Table, row: int, record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> int:
    chosen = np.zeros(len(record.neighbours) + 1, dtype=np.bool_)
    chosen[h] = True
    near, similar = record.neighbours.take(items, axis=0), record.similarities.take(items, axis=0)
    is_chosen = chosen.take(near)
    np.maximum.reduce(similar * is_chosen, axis=1, out=table[row])
    np.add.reduce(is_chosen, axis=1, out=table[row + 1])
    if not record.ordered:
        return row + 2
    last = h[-1] if len(h) else len(record.neighbours)  # the padding, whose similarity is 0
    np.maximum.reduce(similar * (near == last), axis=1, out=table[row + 2])
    return row + 3


def _labels(table: Table, row: int, record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> int:
    look, n, n_columns = record.look, len(items), len(record.label_names)
    lengths = look.label_lengths.take(items)
    entries = record.label_entries(items, lengths)
    labels, parts = record.labels.take(entries), record.label_parts.take(entries)
    cells = look.label_columns.take(entries) * n + np.arange(n).repeat(lengths)
    kinds = 2 + record.ordered
    end = row + kinds * n_columns
    table[row:end:kinds] = np.bincount(cells, _shares(record, h).take(labels) * parts, n * n_columns).reshape(-1, n)
    table[row + 1 : end : kinds] = look.has_no_label.take(items, axis=0).T
    if record.ordered:
        shares = _shares(record, h[-LAST:])
        table[row + 2 : end : kinds] = np.bincount(cells, shares.take(labels) * parts, n * n_columns).reshape(-1, n)
    return end


def _shares(record: ItemRecord, h: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the share of the items `h` that have each label, (n_labels,)."""
    entries = record.label_entries(h, record.look.label_lengths.take(h))
    counts = np.bincount(record.labels.take(entries), minlength=int(record.first_labels[-1]))
    return counts / max(len(h), 1)


def _numbers(table: Table, row: int, record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> None:
    look = record.look
    counts = np.add.reduce(look.has_number.take(h, axis=0), axis=0)
    means = np.add.reduce(look.numbers.take(h, axis=0), axis=0, dtype=np.float64) / np.maximum(counts, 1)
    is_known = look.has_number.take(items, axis=0)
    distances = np.abs(look.numbers.take(items, axis=0) - means) * is_known * (counts > 0)
    table[row::2], table[row + 1 :: 2] = distances.T, ~is_known.T
