"""Compute the features of the candidates of pages, from which the ranker's weights are learned.

A candidate is an item that the winner of the search ranks high for a user. The ranker reorders the candidates of a
page.

| symbol | meaning |
|---|---|
| n | the candidates, best first by the winner of the search |
| h, w | the history of the query: its last items, at most MOST_HISTORY, and their weights |
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
from svc.model.ranking.item_sets import spans

Items = NDArray[np.int32]
Table = NDArray[np.float64]
Weights = NDArray[np.float64]


class PageFeatures:
    """Computes the features of pages from an item record."""

    def __init__(self, record: ItemRecord) -> None:
        self._record = record
        self._n_features = len(names(record))
        self._has_no_label = has_no_label(record)
        self._label_columns = label_columns(record)
        self._label_offsets = record.label_offsets.astype(np.intp)

    def of(
        self, history: Items, weights: NDArray[np.float32] | None, items: Items, scores: NDArray[np.float64]
    ) -> Table:
        """Return the features, (F, n), of `items`, (n,), which come best first.

        `scores`, (n,), are the scores of these items by the winner of the search. `history` are distinct item columns,
        oldest first if the record is ordered, else ascending, with their `weights`. None: all are 1. Only the last
        MOST_HISTORY of them count.
        """
        record, h, n = self._record, history[-MOST_HISTORY:], len(items)
        w = np.ones(len(h)) if weights is None else weights[-MOST_HISTORY:].astype(np.float64)
        popularity = record.popularity[items].T.astype(np.float64)
        mean = float((record.popularity[h, 0] * w).sum()) / (w.sum() or 1)
        # The history's mean alone is equal for all items of a page, so the softmax of the fit would cancel it.
        parts = [scores, np.log1p(np.arange(n)), *popularity, popularity[0] * mean, *self._of_neighbours(h, w, items)]
        table = np.empty((self._n_features, n))
        row = len(parts)
        table[:row] = parts
        if record.label_names:
            kinds, end = 2 + record.ordered, row + (2 + record.ordered) * len(record.label_names)
            table[row + 1 : end : kinds] = self._has_no_label[items].T
            histories = ((h, w), (h[-LAST:], w[-LAST:])) if record.ordered else ((h, w),)
            for kind, shares in zip((0, 2), self._mean_shares(histories, items), strict=False):
                table[row + kind : end : kinds] = shares
            row = end
        if record.number_names:
            own, chosen = record.numbers[items].T.astype(np.float64), record.numbers[h].astype(np.float64)
            counts = (~np.isnan(chosen) * w[:, np.newaxis]).sum(axis=0)
            sums = np.nansum(chosen * w[:, np.newaxis], axis=0)
            means = np.where(counts > 0, sums / np.where(counts > 0, counts, 1), np.nan)
            table[row::2], table[row + 1 :: 2] = np.nan_to_num(np.abs(own - means[:, np.newaxis])), np.isnan(own)
        return table

    def _of_neighbours(self, h: Items, w: Weights, items: Items) -> list[Weights]:
        record = self._record
        # One more than there are items: a missing neighbour has the number `n_items`, whose weight stays 0.
        weight_of = np.zeros(len(record.neighbours) + 1)
        weight_of[h] = w
        near = record.neighbours[items]
        own = weight_of[near]
        similar = record.similarities[items] * own
        rows = [similar.max(axis=1), own.sum(axis=1)]
        if record.ordered:
            # -1 equals no item. An empty history has no last one.
            rows.append((similar * (near == (h[-1] if len(h) else -1))).max(axis=1))
        return rows

    def _mean_shares(self, histories: Sequence[tuple[Items, Weights]], items: Items) -> Iterator[Table]:
        """Yield for each history how common the labels of each item are in it, for each column of labels, (columns, n).

        This is the share of the history's weight that is at items with a label, averaged over the labels of the item.
        It is 0 if the history is empty or the item has no label in the column.
        """
        record, n, n_columns = self._record, len(items), len(self._record.label_names)
        entries, owners = self._entries(items)
        own, parts = record.labels[entries], record.label_parts[entries]
        cells = owners * n_columns + self._label_columns[own]
        for h, w in histories:
            chosen, places = self._entries(h)
            counts = np.bincount(record.labels[chosen], w[places], len(self._label_columns))
            sums = np.bincount(cells, counts[own] / (w.sum() or 1) * parts, n * n_columns).astype(np.float64)
            yield sums.reshape(n, n_columns).T

    def _entries(self, items: Items) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the positions in `record.labels` of all labels of `items`, and for each the position of its item."""
        starts = self._label_offsets[items]
        lengths = self._label_offsets[items + 1] - starts
        return spans(starts, lengths), np.repeat(np.arange(len(items)), lengths)
