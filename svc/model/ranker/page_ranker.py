"""Reorder the items that the model's scorer ranks best, by a weighted sum of features.

| symbol | meaning |
|---|---|
| winner | the scorer that won the search, which makes the first ranking |
| n | the candidates, best first by the winner |
| h, w | the history of the query: its last items, at most MOST_HISTORY, and their weights (None: all are 1) |
| m | the items of the history and the candidates |
| G | the groups of features |
| q | the numeric columns of the item table |
| scale | weight / deviation of a feature |

A call of NumPy takes a microsecond or two even for a few numbers, so this module makes few calls. It adds up at load
time the addends that depend on the item alone. It looks up all numbers of history and candidates in one call, and all
their labels in another. A ranking takes a quarter less time (97 instead of 131 µs on a busy core) than if each feature
is computed by itself, as in `svc.training.ranker.features`.

No result depends on the number of candidates, so that the same candidate at the same place gets the same bits in a
shorter and a longer ranking.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from svc.model.codec import Stored
from svc.model.history import History
from svc.model.ranker.item_record import NEIGHBOURS, Feature, ItemRecord, has_no_label, label_columns, names
from svc.model.ranking.item_sets import best
from svc.model.ranking.query import Query, Ranking

MOST_HISTORY: Final = 100
"""The number of last items of a history that count: the latest ones, or the least popular ones if the record is not
ordered, because histories are then sorted by column, and columns by falling popularity."""
LAST: Final = 3
"""The number of latest items of the history to which the features `share_of_last` compare labels."""
GROUPS: Final = ("scores", "popularity", "neighbours", "labels", "numbers")

Items = NDArray[np.int32]
Values = NDArray[np.float64]


REORDERED: Final = 50
"""The number of best items that the ranker reorders, counted after exclusions and filters."""


@dataclass(eq=False, repr=False)
class PageRanker(Stored):
    """A linear model that scores an item by Σ weight · (feature − mean) / deviation over F features.

    `weights`, `means` and `deviations` are (F,) float32.

    A feature that did not vary in training has the weight 0 and the deviation 1.

    With `weighs`, the items of a history count by their weights, such as those of events, without recency.

    `_facts`, (n_items, 3 + G + 2q), has a row for each item, with these columns:

    - the number of the item's labels, the end of their entries in `labels`, and the popularity over all time
    - G addends, one to each group, that depend on the item alone
    - q flags: 1 for a known number, 0 for a missing one
    - q numbers, with 0 for a missing one

    `_of_share` and `_of_last`, (n_labels,), are the scales of the features `share` and `share_of_last` of each label's
    column.
    """

    record: ItemRecord
    weights: NDArray[np.float32]
    means: NDArray[np.float32]
    deviations: NDArray[np.float32]
    weighs: bool = False

    @property
    def features(self) -> tuple[Feature, ...]:
        """Return the features in the order of the weights."""
        return names(self.record)

    def ready(self) -> None:
        """Compute the addends that depend on the item alone."""
        record = self.record
        weights, means, deviations = (array.astype(np.float64) for array in (self.weights, self.means, self.deviations))
        kinds, n_columns = 2 + record.ordered, len(record.label_names)
        lengths = (2, len(record.popularity_names) + 1, kinds, kinds * n_columns, 2 * len(record.number_names))
        ends = accumulate(lengths)
        parts = [slice(end - length, end) for length, end in zip(lengths, ends, strict=True)]
        scales = weights / deviations
        scores, popularity, neighbours, labels, numbers = (scales[part] for part in parts)
        own = np.zeros((len(GROUPS), len(record.popularity)))
        # The means are the same for all items, so they are subtracted here once instead of from each feature.
        own -= np.array([[(scales[part] * means[part]).sum()] for part in parts])
        is_missing, by_kind = np.isnan(record.numbers), labels.reshape(n_columns, kinds)
        own[1] += (record.popularity * popularity[:-1]).sum(axis=1)
        own[3] += (has_no_label(record) * by_kind[:, 1]).sum(axis=1)
        own[4] += (is_missing * numbers[1::2]).sum(axis=1)
        entries = (np.diff(record.label_offsets), record.label_offsets[1:])
        filled = np.where(is_missing, np.float32(0), record.numbers)
        # One table, so that one `take` reads all facts about an item.
        table = np.column_stack([*entries, record.popularity[:, 0], own.T, ~is_missing, filled])
        columns = label_columns(record)
        # The factor by which the winner's score counts: weight / deviation.
        self.scale_of_score = float(scores[0])
        # NumPy stacks columns in either order, and `take` copies the whole table if its rows are not contiguous.
        self._facts = np.ascontiguousarray(table, dtype=np.float64)
        self._of_places = np.log1p(np.arange(REORDERED)) * scores[1]
        self._by_history = float(popularity[-1])
        self._of_strongest, self._of_count, *of_last = neighbours.tolist()
        self._of_last_item = of_last[0] if record.ordered else 0.0
        self._similarities = record.similarities.ravel()
        self._of_share, self._of_last = by_kind[columns, 0], by_kind[columns, -1] if record.ordered else None
        self._of_distances = np.ascontiguousarray(numbers[::2])

    def page(self, query: Query, ranking: Ranking, history: History) -> Ranking:
        """Reorder the best REORDERED items of `ranking`, the winner's ranking, to answer `query`.

        The other items keep their order and scores. The scores of the best items are shifted so that the last of them
        has the score that the winner gave at its place. So none of them is below the other items. The answer is cut to
        the limit of the query, unless the query is unordered.
        """
        items, scores = ranking.items, ranking.scores
        # The rules will select from all items, in any order, but the ranker needs the winner's best ones first.
        if query.unordered:
            order = _best_first(items, scores, REORDERED)
            items, scores = items[order], scores[order]
        n = min(REORDERED, len(items))
        if not n:
            return ranking
        own = np.add.reduce(self.contributions(*history_of(query, history), items[:n], scores[:n]), axis=0)
        order = (-own).argsort(kind="stable")
        own = own.take(order)
        # One constant for all, so that differences between the reordered items stay those of the weights.
        first, shown, ties = items[:n].take(order), own - own[-1] + scores[n - 1], np.arange(n)
        if n < len(items):
            first, shown = np.concatenate([first, items[n:]]), np.concatenate([shown, scores[n:]])
            # Later than those of all reordered items, because equal scores are ordered by `ties`.
            ties = np.concatenate([ties, REORDERED + items[n:].astype(np.int64)])
        kept = slice(None if query.unordered else query.limit)
        return Ranking(first[kept], shown[kept], ties=ties[kept])

    def contributions(self, history: Items, weights: NDArray[Any] | None, items: Items, scores: Values) -> Values:
        """Return the contributions of the groups, (G, n), to the scores of `items`, (n,), best first by the winner.

        `scores`, (n,), are the winner's scores of these items. `history` are distinct item columns, oldest first if the
        record is ordered, else ascending. `weights` are theirs. None: all are 1. Only the last MOST_HISTORY of them
        count.
        """
        h, record = history[-MOST_HISTORY:], self.record
        n_chosen = len(h)
        w = weights[-MOST_HISTORY:].astype(np.float64) if self.weighs and weights is not None and n_chosen else None
        facts = self._facts.take(np.concatenate([h, items]), axis=0)
        chosen, own = facts[:n_chosen], facts[n_chosen:].T
        sums = np.add.reduce(chosen if w is None else chosen * w[:, np.newaxis], axis=0)
        first_number = 3 + len(GROUPS)
        groups = own[3:first_number]
        by_score = scores * self.scale_of_score
        by_score += self._of_places[: len(items)]
        groups[0] += by_score
        groups[1] += own[2] * (float(sums[2]) / (max(n_chosen, 1) if w is None else w.sum()) * self._by_history)
        groups[2] += self._of_neighbours(h, w, items)
        if record.label_names:
            groups[3] += self._of_labels(facts[:, 0].astype(np.intp), facts[:, 1].astype(np.intp), n_chosen, w)
        if record.number_names:
            groups[4] += self._of_numbers(own[first_number:], sums[first_number:])
        return groups

    def _of_neighbours(self, h: Items, w: Values | None, items: Items) -> Values:
        neighbours, n = self.record.neighbours, len(items)
        # Flags need an eighth of the bytes: a lookup of 2,500 neighbours takes 2.4 instead of 5.5 µs.
        weight_of: NDArray[Any] = np.zeros(len(neighbours) + 1, dtype=np.bool_ if w is None else np.float64)
        weight_of[h] = True if w is None else w
        near = neighbours.take(items, axis=0)
        weights = weight_of.take(near).ravel()
        # Few of the neighbours of a page are in a history, so the rest works on these alone.
        hits = weights.nonzero()[0]
        rows = hits // NEIGHBOURS
        similarities = self._similarities.take((items.take(rows) - rows) * NEIGHBOURS + hits).astype(np.float64)
        of_count: Any = self._of_count
        if w is not None:
            weights = weights.take(hits)
            similarities *= weights
            of_count *= weights
        strongest = np.zeros(n)
        np.maximum.at(strongest, rows, similarities)
        strongest *= self._of_strongest
        # `h[-1:]` instead of `h[-1]`, which fails for an empty history.
        similarities *= near.ravel().take(hits) == h[-1:]
        similarities *= self._of_last_item
        similarities += of_count
        strongest += np.bincount(rows, similarities, n)
        return strongest

    def _of_labels(
        self, lengths: NDArray[np.intp], entry_ends: NDArray[np.intp], n_chosen: int, w: Values | None
    ) -> Values:
        """Return the contributions of the features `share` and `share_of_last`, (n,).

        `lengths` and `entry_ends`, (m,), are the label counts and entry ends of the items. The first `n_chosen` items
        are the history, the others the candidates.
        """
        n = len(lengths) - n_chosen
        if not n_chosen:
            return np.zeros(n)
        ends = lengths.cumsum()
        entries = (entry_ends - ends).repeat(lengths)
        entries += np.arange(len(entries))
        labels, first = self.record.labels.take(entries), int(ends[n_chosen - 1])
        chosen, own = labels[:first], labels[first:]
        weights, total = self._of_share.take(chosen), n_chosen if w is None else w.sum()
        if self._of_last is not None:
            start, n_last = int(ends[n_chosen - LAST - 1]) if n_chosen > LAST else 0, min(n_chosen, LAST)
            of_last = n_last if w is None else w[-LAST:].sum()
            # The last items count in both features, so one sum over the history gives both.
            weights[start:] += self._of_last.take(chosen[start:]) * (total / of_last)
        if w is not None:
            weights *= w.repeat(lengths[:n_chosen])
        of_labels = np.bincount(chosen, weights, len(self._of_share))
        of_own = of_labels.take(own) * self.record.label_parts.take(entries[first:])
        totals: Values = np.bincount(np.arange(n).repeat(lengths[n_chosen:]), of_own, n) / total
        return totals

    def _of_numbers(self, own: Values, sums: Values) -> Values:
        """Return the contributions of the features `distance`, (n,).

        `own`, (2q, n), are the numbers of the candidates, as in `_facts`. `sums`, (2q,), are the weighted sums of the
        same numbers over the items of the history.
        """
        n_columns = len(self._of_distances)
        counts = sums[:n_columns]
        means = sums[n_columns:] / np.where(counts > 0, counts, 1)
        distances = own[n_columns:] - own[:n_columns] * means[:, np.newaxis]
        np.abs(distances, out=distances)
        # Without a known number in the history there is no distance.
        distances *= (self._of_distances * (counts > 0))[:, np.newaxis]
        totals: Values = np.add.reduce(distances, axis=0)
        return totals


def history_of(query: Query, history: History) -> tuple[Items, NDArray[Any] | None]:
    """Return the item columns of the query's history and their weights before recency, (h,). None: all are 1.

    The items stand oldest first if the model keeps the order of histories.
    """
    if query.user >= 0:
        return history.items(query.user), history.values(query.user)
    return query.seeds, query.seed_values


def _best_first(items: NDArray[np.int32], scores: Values, most: int) -> NDArray[np.intp]:
    """Return an order of `items`: first the best `most`, by descending score, ties by ascending column."""
    first = best(scores, most, items)
    others = np.ones(len(items), dtype=np.bool_)
    others[first] = False
    return np.concatenate([first, np.flatnonzero(others)])
