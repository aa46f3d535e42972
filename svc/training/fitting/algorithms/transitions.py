"""Transitions: item weights from the order in which users choose items.

The weight of item i for item j counts how often j follows i within `max_steps` positions of a history, each time
divided by the distance. Ludewig and Jannach, "Evaluation of Session-based Recommendation Algorithms", UMUAI 2018, call
this "sequential rules" (SR). `backward` adds the opposite direction, as in their association rules. The two exponents
penalize items that precede or follow many other items. When svc recommends for a session, recency weights the items of
the session by position, as in Kersbergen et al., "Serenade", SIGMOD 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from irspack.recommenders.base import BaseSimilarityRecommender
from numpy.typing import NDArray
from scipy import sparse

_MINUTE_NS = 60 * 10**9
MAX_GAPS_NS = {"none": None, "30m": 30 * _MINUTE_NS, "1d": 1_440 * _MINUTE_NS, "30d": 43_200 * _MINUTE_NS}
"""The longest time between the two items of a pair, in nanoseconds, by its name in a recipe. None means no limit."""
_MOST_PAIRS = 4_000_000
"""Maximum number of pairs of an item and a nearby position that are in memory at once."""


class TransitionsRecommender(BaseSimilarityRecommender, register_class=False):
    """A recommender by item weights that follow from the order of histories.

    weight(i → j) = C(i, j) / (Σ_k C(i, k))^source_exponent / (Σ_k C(k, j))^target_exponent

    C(i, j) is the sum of 1/distance over all pairs of items in a history with i before j, plus `backward` times the
    same sum with j before i. The distance is a number of positions. Items of one user with the same time share a
    position. `same_time` is the weight of such a pair, in both directions. Pairs more than `max_steps` positions or
    `max_gap` apart do not count. The `top_k` largest weights of each item i are kept. Of equal weights, those in the
    lower columns are kept first.

    `times`, (users, items) CSR, has the time of each entry of `matrix`, in nanoseconds since any fixed time.
    """

    default_tune_range: list[Any] = []  # noqa: RUF012 - declared as in irspack, without ClassVar

    def __init__(
        self,
        matrix: Any,
        *,
        times: sparse.csr_matrix,
        max_steps: int = 10,
        backward: float = 0.0,
        max_gap: str = "none",
        same_time: float = 0.0,
        source_exponent: float = 1.0,
        target_exponent: float = 0.0,
        top_k: int = 100,
    ) -> None:
        super().__init__(matrix)
        self._positions = Positions(times)
        self.max_steps = max_steps
        self.backward = backward
        self.max_gap = max_gap
        self.same_time = same_time
        self.source_exponent = source_exponent
        self.target_exponent = target_exponent
        self.top_k = top_k

    def _learn(self) -> None:
        forward = 1.0 / np.arange(1, self.max_steps + 1)
        near = Near(self._positions, forward, self.backward * forward, self.same_time, MAX_GAPS_NS[self.max_gap])
        sources = near.sums() ** self.source_exponent
        targets = near.reverse().sums() ** self.target_exponent
        blocks = []
        for first, counts in near.counts():
            rows = np.repeat(np.arange(first, first + counts.shape[0]), np.diff(counts.indptr))
            counts.data /= sources[rows] * targets[counts.indices]
            blocks.append(strongest(counts, self.top_k))
        self._W = sparse.vstack(blocks, format="csr")


class Positions:
    """The positions of all histories, sorted by user and time. A position is one time of one user.

    - `user`, (positions,), and `time_ns`, (positions,), are the user and the time of each position.
    - `items`, (positions, items) CSR, is 1 at each item that the user chose at the time of the position.

    With `breaks_ties`, each item has a position of its own. Items of one time are then in a random order.
    """

    def __init__(self, times: sparse.csr_matrix, *, breaks_ties: bool = False) -> None:
        users = np.repeat(np.arange(times.shape[0]), np.diff(times.indptr))
        # A constant seed: the order within one time means nothing, but a training must give the same bytes again.
        ties = np.random.default_rng(0).permutation(times.nnz) if breaks_ties else times.indices
        order = np.lexsort((ties, times.data, users))
        users, moments, items = users[order], times.data[order], times.indices[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = breaks_ties | (users[1:] != users[:-1]) | (moments[1:] != moments[:-1])
        starts = np.append(np.flatnonzero(begins), len(order))
        self.user = users[begins]
        self.time_ns = moments[begins]
        self.items = sparse.csr_matrix((np.ones(len(order)), items, starts), shape=(len(self.user), times.shape[1]))

    def of_items(self, kept: NDArray[np.intp]) -> Positions:
        """Return the same positions with only the columns `kept` of `items`."""
        positions = copy(self)
        positions.items = self.items[:, kept]
        return positions


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """All pairs of an item i and a position of the same user that is near a position of i, each with a weight.

    `after[d - 1]` is the weight of a pair whose position is d steps later than that of the item, and `before[d - 1]` if
    it is d steps earlier. `same` is its weight if the position is that of the item. An item forms no pair with itself.
    Positions more than `max_gap_ns` apart form no pair.
    """

    positions: Positions
    after: NDArray[np.float64]
    before: NDArray[np.float64]
    same: float = 0.0
    max_gap_ns: int | None = None

    def reverse(self) -> Near:
        """Return the same pairs with the weights of earlier and later positions exchanged."""
        return replace(self, after=self.before, before=self.after)

    def sums(self) -> NDArray[np.float64]:
        """Return Σ_k C(i, k) of each item i, (items,), with 1 instead of 0, because weights are divided by the sums."""
        sizes = np.diff(self.positions.items.indptr).astype(np.float64)
        sums = np.concatenate([pairs @ sizes for _, pairs in self.pairs()])
        sums -= self.same * np.bincount(self.positions.items.indices, minlength=len(sums))
        return np.where(sums > 0, sums, 1.0)

    def counts(self) -> Iterator[tuple[int, sparse.csr_matrix]]:
        """Yield C in blocks of rows. Each is the number of its first item and a (items of the block, items) CSR."""
        for first, pairs in self.pairs():
            counts = pairs @ self.positions.items
            if self.same:
                rows = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
                # An item shares its own position, so `same` has paired it with itself.
                counts.data[counts.indices == first + rows] = 0.0
                counts.eliminate_zeros()
            counts.sort_indices()
            yield first, counts

    def pairs(self) -> Iterator[tuple[int, sparse.csr_matrix]]:
        """Yield the weights of all pairs in blocks of items.

        Each block is the number of its first item and a (items of the block, positions) CSR. It has at most
        `_MOST_PAIRS` pairs, unless it is a single item.
        """
        by_item = self.positions.items.tocsc()
        entries, starts = by_item.indices.astype(np.int64), by_item.indptr.astype(np.int64)
        n_items = len(starts) - 1
        most_entries = max(1, _MOST_PAIRS // (2 * len(self.after)))
        first = 0
        while first < n_items:
            end = int(np.searchsorted(starts, starts[first] + most_entries, side="right")) - 1
            end = min(max(end, first + 1), n_items)
            own = entries[starts[first] : starts[end]]
            rows = np.repeat(np.arange(end - first), np.diff(starts[first : end + 1]))
            yield first, self._pairs(rows, own, end - first)
            first = end

    def _pairs(self, rows: NDArray[np.int64], own: NDArray[np.int64], n_rows: int) -> sparse.csr_matrix:
        user, time_ns = self.positions.user, self.positions.time_ns
        parts = []
        for sign, weights in ((1, [self.same, *self.after]), (-1, [0.0, *self.before])):
            for steps, weight in enumerate(weights):
                other = own + sign * steps
                inside = (other >= 0) & (other < len(user)) & (weight > 0)
                source, target = own[inside], other[inside]
                near = user[target] == user[source]
                if self.max_gap_ns is not None:
                    near &= np.abs(time_ns[target] - time_ns[source]) <= self.max_gap_ns
                parts.append((rows[inside][near], target[near], np.full(int(near.sum()), weight)))
        all_rows, all_targets, all_weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return sparse.csr_matrix((all_weights, (all_rows, all_targets)), shape=(n_rows, len(user)))


def strongest(weights: sparse.csr_matrix, top_k: int) -> sparse.csr_matrix:
    """Return the `top_k` largest entries of each row. Of equal entries, those in the lower columns are kept first."""
    # Only rows that are too long are looked at, because partitioning costs a call for each row.
    is_kept = np.ones(weights.nnz, dtype=bool)
    for row in np.flatnonzero(np.diff(weights.indptr) > top_k):
        begin, end = weights.indptr[row], weights.indptr[row + 1]
        values = weights.data[begin:end]
        # A bound and not `argpartition`, which keeps any of the weights that tie at the end.
        bound = np.partition(values, len(values) - top_k)[len(values) - top_k]
        at_bound = np.flatnonzero(values == bound)
        keep = values > bound
        keep[at_bound[: top_k - np.count_nonzero(keep)]] = True
        is_kept[begin:end] = keep
    rows = np.repeat(np.arange(weights.shape[0]), np.diff(weights.indptr))[is_kept]
    return sparse.csr_matrix((weights.data[is_kept], (rows, weights.indices[is_kept])), shape=weights.shape)
