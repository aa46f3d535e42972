"""Compute the features of the candidates of one page from a query and the item record.

| symbol | meaning |
|---|---|
| n | the candidates, best first by the winner of the search |
| h | the history: the latest items of the query, at most MOST_HISTORY |
| F | the features, in the order of `item_record.names` |

A call of NumPy takes a microsecond or two even for a few numbers. So one lookup finds all numbers of an item, and one
finds the labels of history and candidates. No result depends on the number of candidates: a candidate at the same place
of another page gets the same bits.

A missing value is 0. If it can be missing for some candidates only, a second feature marks these.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from svc.model.ranker.item_record import ItemRecord

MOST_HISTORY: Final = 100
LAST: Final = 3
"""The number of latest items whose labels have a feature of their own."""
_LOG_PLACES: Final = np.log1p(np.arange(100, dtype=np.float64))
"""Log of 1 + place, for the longest page: training ranks 100 items and requests 50."""

Table = NDArray[np.float64]


def features(
    record: ItemRecord, history: NDArray[np.int32], items: NDArray[np.int32], scores: NDArray[np.float64]
) -> Table:
    """Return the features, (F, n), of `items`, (n,), in the order of the scores, (n,), of the reordered model.

    `history` are distinct item columns, oldest first if the record is ordered.
    """
    h, look, n = history[-MOST_HISTORY:], record.look, len(items)
    n_popularity, n_labelled = len(record.popularity_names), len(record.label_names)
    facts = look.facts.take(items, axis=0).T.astype(np.float64, order="C")
    sums = np.add.reduce(look.facts.take(h, axis=0), axis=0, dtype=np.float64)
    table = np.empty((look.n_features, n))
    row = 2 + n_popularity
    table[0], table[1], table[2:row] = scores, _LOG_PLACES[:n], facts[:n_popularity]
    np.multiply(facts[0], float(sums[0]) / max(len(h), 1), out=table[row])
    row = _neighbours(table, row + 1, record, h, items)
    if n_labelled:
        row = _labels(table, row, record, h, items, facts[n_popularity:][:n_labelled])
    if record.number_names:
        first = n_popularity + n_labelled
        _numbers(table[row:], facts[first:], sums[first:], len(h))
    return table


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


def _labels(  # noqa: PLR0917
    table: Table, row: int, record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32], is_missing: Table
) -> int:
    """Fill the rows of labels, with one lookup for the history and `items` together."""
    look, n, n_columns = record.look, len(items), len(record.label_names)
    both = np.concatenate([h, items])
    lengths = look.label_lengths.take(both)
    ends = lengths.cumsum()
    entries = np.arange(int(ends[-1])) + (look.label_ends.take(both) - ends).repeat(lengths)
    labels = record.labels.take(entries)
    first = int(ends[len(h) - 1]) if len(h) else 0
    own, parts = labels[first:], record.label_parts.take(entries[first:])
    cells = look.label_columns.take(own) + np.arange(0, n * n_columns, n_columns).repeat(lengths[len(h) :])

    def mean_shares(start: int, n_chosen: int) -> NDArray[Any]:
        """Return by column the mean share, over the labels of each item, of the history's items from `start` on."""
        counts = np.bincount(labels[start:first], minlength=len(look.label_columns))
        shares = counts.take(own) / max(n_chosen, 1) * parts
        return np.bincount(cells, shares, n * n_columns).reshape(n, n_columns).T

    kinds = 2 + record.ordered
    end = row + kinds * n_columns
    table[row:end:kinds] = mean_shares(0, len(h))
    table[row + 1 : end : kinds] = is_missing
    if record.ordered:
        start = int(ends[len(h) - LAST - 1]) if len(h) > LAST else 0
        table[row + 2 : end : kinds] = mean_shares(start, min(len(h), LAST))
    return end


def _numbers(table: Table, facts: Table, sums: NDArray[np.float64], n_chosen: int) -> None:
    """Fill the rows of numbers. `facts`, (2q, n), is overwritten."""
    n_columns = len(facts) // 2
    counts = n_chosen - sums[:n_columns]
    distances = facts[n_columns:]
    distances -= (sums[n_columns:] / np.maximum(counts, 1))[:, np.newaxis]
    np.abs(distances, out=distances)
    distances *= 1.0 - facts[:n_columns]
    distances *= (counts > 0)[:, np.newaxis]
    table[::2], table[1::2] = distances, facts[:n_columns]
