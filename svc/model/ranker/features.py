"""The features of the candidates of one page: what a query and an item say together.

| symbol | meaning |
|---|---|
| n | the candidates, best first by the winner of the search |
| h | the history: the latest items of the query, at most MOST_HISTORY |
| F | the features, in the order of `names` |

No step depends on the number of candidates: a candidate has the same bits on any page that has it at the same place.
Whatever cannot be known of a candidate is 0. Where that may differ between candidates, a feature tells which they are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranker.item_record import ItemRecord

MOST_HISTORY: Final = 100
LAST: Final = 3
"""The labels of so many latest items are looked at apart from those of the whole history."""

Table = NDArray[np.float64]


class Feature(NamedTuple):
    """A feature, and the group that it is shown with."""

    name: str
    group: str


def names(record: ItemRecord) -> tuple[Feature, ...]:
    """The features in the order of the rows of `features`."""
    told = [Feature("score", "scores"), Feature("log_place", "scores")]
    told += [Feature(name, "popularity") for name in record.popularity_names]
    told += [Feature("popularity_by_history", "popularity")]
    told += [Feature(name, "neighbours") for name in ("strongest_neighbour", "number_of_neighbours")]
    if record.ordered:
        told.append(Feature("similarity_to_last", "neighbours"))
    for column in record.label_names:
        told.append(Feature(f"{column}.share", "labels"))
        told.append(Feature(f"{column}.missing", "labels"))
        if record.ordered:
            told.append(Feature(f"{column}.share_of_last", "labels"))
    for column in record.number_names:
        told += [Feature(f"{column}.distance", "numbers"), Feature(f"{column}.missing", "numbers")]
    return tuple(told)


def features(
    record: ItemRecord, history: NDArray[np.int32], items: NDArray[np.int32], scores: NDArray[np.float64]
) -> Table:
    """(F, n) the features of `items`, (n,), which the winner ranks in this order by `scores`, (n,).

    `history` are distinct item columns, oldest first where the record is ordered.
    """
    h = history[-MOST_HISTORY:]
    rows = [scores[np.newaxis], np.log1p(np.arange(len(items), dtype=np.float64))[np.newaxis]]
    rows += [_popularity(record, h, items), _neighbours(record, h, items)]
    if record.label_names:
        rows.append(_labels(record, h, items))
    if record.number_names:
        rows.append(_numbers(record, h, items))
    return np.concatenate(rows)


def _popularity(record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> Table:
    own = record.popularity.take(items, axis=0).T.astype(np.float64)
    mean = record.popularity[:, 0].take(h).mean(dtype=np.float64) if len(h) else 0.0
    return np.concatenate([own, own[:1] * mean])


def _neighbours(record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> Table:
    chosen = np.zeros(len(record.neighbours) + 1, dtype=np.bool_)
    chosen[h] = True
    near, similar = record.neighbours.take(items, axis=0), record.similarities.take(items, axis=0)
    is_chosen = chosen.take(near)
    rows = [(similar * is_chosen).max(axis=1), is_chosen.sum(axis=1)]
    if record.ordered:
        last = h[-1] if len(h) else len(record.neighbours)  # the padding, whose similarity is 0
        rows.append((similar * (near == last)).max(axis=1))
    return np.array(rows, dtype=np.float64)


def _labels(record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> Table:
    entries, owners = record.label_entries(items)
    labels, n, n_columns = record.labels.take(entries), len(items), len(record.label_names)
    cells = owners * n_columns + record.column_of.take(labels)
    parts = record.label_parts.take(entries)
    size = n * n_columns
    rows = [
        np.bincount(cells, _shares(record, h).take(labels) * parts, minlength=size),
        np.bincount(cells, minlength=size) == 0,
    ]
    if record.ordered:
        rows.append(np.bincount(cells, _shares(record, h[-LAST:]).take(labels) * parts, minlength=size))
    # by column of the tables, then as in `names`
    table = np.array(rows, dtype=np.float64).reshape(len(rows), n, n_columns)
    return table.transpose(2, 0, 1).reshape(len(rows) * n_columns, n)


def _shares(record: ItemRecord, h: NDArray[np.int32]) -> NDArray[np.float64]:
    """The share of some items that have each label, (n_labels,)."""
    entries, _ = record.label_entries(h)
    counts = np.bincount(record.labels.take(entries), minlength=int(record.first_labels[-1]))
    return counts / max(len(h), 1)


def _numbers(record: ItemRecord, h: NDArray[np.int32], items: NDArray[np.int32]) -> Table:
    own, chosen = record.numbers.take(items, axis=0).T, record.numbers.take(h, axis=0)
    is_known = ~np.isnan(chosen)
    n_known = is_known.sum(axis=0)
    means = np.where(is_known, chosen, 0).sum(axis=0, dtype=np.float64) / np.maximum(n_known, 1)
    is_missing = np.isnan(own)
    distances = np.where(is_missing | (n_known == 0)[:, np.newaxis], 0.0, np.abs(own - means[:, np.newaxis]))
    return np.stack([distances, is_missing], axis=1).reshape(2 * len(own), len(items))
