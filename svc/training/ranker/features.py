"""Compute the features of the candidates of pages, from which the ranker's weights are learned.

A candidate is an item that the winner of the search ranks high for a user. The ranker reorders the candidates of a
page.

| symbol | meaning |
|---|---|
| n | the candidates, best first by the winner of the search |
| h | the history of the query: its last items, at most MOST_HISTORY |
| F | the features, in the order of `item_record.names` |

A missing value is 0. For each column of labels or numbers, a second feature marks the candidates without a value.

A server computes the same weighted sums without this table (`svc.model.ranker.page_ranker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.model.ranker.item_record import ItemRecord, has_no_label, label_columns, names
from svc.model.ranker.page_ranker import LAST, MOST_HISTORY
from svc.model.recommenders.users import spans

Items = NDArray[np.int32]
Table = NDArray[np.float64]


class PageFeatures:
    """Computes the features of pages from an item record."""

    def __init__(self, record: ItemRecord) -> None:
        self._record = record
        self._n_features = len(names(record))
        self._has_no_label = has_no_label(record)
        self._label_columns = label_columns(record)
        self._label_offsets = record.label_offsets.astype(np.intp)

    def of(self, history: Items, items: Items, scores: NDArray[np.float64]) -> Table:
        """Return the features, (F, n), of `items`, (n,), which come best first.

        `scores`, (n,), are the scores of these items by the winner of the search. `history` are distinct item columns,
        oldest first if the record is ordered, else ascending. Only the last MOST_HISTORY of them count.
        """
        record, h, n = self._record, history[-MOST_HISTORY:], len(items)
        popularity = record.popularity[items].T.astype(np.float64)
        mean = float(record.popularity[h, 0].sum(dtype=np.float64)) / max(len(h), 1)
        parts = [scores, np.log1p(np.arange(n)), *popularity, popularity[0] * mean, *self._of_neighbours(h, items)]
        table = np.empty((self._n_features, n))
        row = len(parts)
        table[:row] = parts
        if record.label_names:
            kinds, end = 2 + record.ordered, row + (2 + record.ordered) * len(record.label_names)
            table[row + 1 : end : kinds] = self._has_no_label[items].T
            histories = (h, h[-LAST:]) if record.ordered else (h,)
            for kind, shares in zip((0, 2), self._mean_shares(histories, items), strict=False):
                table[row + kind : end : kinds] = shares
            row = end
        if record.number_names:
            own, chosen = record.numbers[items].T.astype(np.float64), record.numbers[h].astype(np.float64)
            counts = (~np.isnan(chosen)).sum(axis=0)
            means = np.where(counts > 0, np.nansum(chosen, axis=0) / np.maximum(counts, 1), np.nan)
            table[row::2], table[row + 1 :: 2] = np.nan_to_num(np.abs(own - means[:, np.newaxis])), np.isnan(own)
        return table

    def _of_neighbours(self, h: Items, items: Items) -> list[NDArray[np.generic]]:
        record = self._record
        is_chosen = np.zeros(len(record.neighbours) + 1, dtype=np.bool_)
        is_chosen[h] = True
        near, similar = record.neighbours[items], record.similarities[items]
        is_near = is_chosen[near]
        rows = [(similar * is_near).max(axis=1), is_near.sum(axis=1)]
        if record.ordered:
            rows.append((similar * (near == (h[-1] if len(h) else -1))).max(axis=1))
        return rows

    def _mean_shares(self, histories: Sequence[Items], items: Items) -> Iterator[Table]:
        """Yield for each history how common the labels of each item are in it, for each column of labels, (columns, n).

        This is the share of the items of the history that have a label, averaged over the labels of the item. It is 0
        if the history is empty or the item has no label in the column.
        """
        record, n, n_columns = self._record, len(items), len(self._record.label_names)
        entries, owners = self._entries(items)
        own, parts = record.labels[entries], record.label_parts[entries]
        cells = owners * n_columns + self._label_columns[own]
        for h in histories:
            counts = np.bincount(record.labels[self._entries(h)[0]], minlength=len(self._label_columns))
            sums = np.bincount(cells, counts[own] / max(len(h), 1) * parts, n * n_columns).astype(np.float64)
            yield sums.reshape(n, n_columns).T

    def _entries(self, items: Items) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions in `record.labels` of all labels of `items`, and for each the position of its item."""
        starts = self._label_offsets[items]
        lengths = self._label_offsets[items + 1] - starts
        return spans(starts, lengths), np.repeat(np.arange(len(items)), lengths)
