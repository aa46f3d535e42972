"""Similarities of the items of a pool: cosines of their vectors, or of their strongest weights on other items.

| symbol | meaning |
|---|---|
| m | the number of items in the pool |
| E | the number of weights of all items in the pool, at most m · `STRONGEST` |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.item_sets import best, spans
from svc.model.ranking.rerank import Similar
from svc.model.ranking.steps import Steps

STRONGEST: Final = 100
"""The most weights of an item that are compared, those with the largest absolute values.

Bounds the cost of diversity: with all 2,000 weights of an item, a page of 1,000 items took 98 s.
"""

HUB_SHARE, HUB_LEAST = 1 / 8, 500
"""A column is a hub if more rows than both this share of the pool and HUB_LEAST have it.

At most STRONGEST / HUB_SHARE columns are hubs. They are added as whole vectors of m numbers, several times faster than
entry by entry: a page of 1,000 items, all of which share 100 columns, took 2.3 s.
"""


def cosines(vectors: NDArray[Any]) -> Similar:
    """Return a function that maps a row number of `vectors`, (m, K), to the cosines with all rows, (m,).

    The cosine with a row of zeros is 0. Products are computed row by row, so that equal rows have equal cosines.
    """
    # `vecdot` and not a matrix product, whose bits may differ between equal rows.
    norms = np.sqrt(np.vecdot(vectors, vectors).astype(np.float64))
    scales = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)

    def to_all(row: int) -> NDArray[np.float64]:
        products: NDArray[np.float64] = np.vecdot(vectors, vectors[row]) * (scales * scales[row])
        return products

    return to_all


def strongest(
    columns: NDArray[np.int32], weights: NDArray[np.float32], own: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the STRONGEST weights of the item `own` on other items, and their columns, in the given order.

    Equal weights are kept by ascending column. The weight of an item on itself never counts.
    """
    if len(weights) <= STRONGEST:
        others = columns != own
        return columns[others], weights[others]
    strengths = np.abs(weights)
    strengths[columns == own] = -np.inf
    kept = best(strengths, STRONGEST, columns)
    kept.sort()  # in ascending order again, as the caller has given them
    return columns[kept], weights[kept]


def cosines_of_rows(rows: Iterable[tuple[NDArray[np.int32], NDArray[np.float32]]]) -> Steps[Similar]:
    """Return a function that maps the number of a row to its cosines with all rows, (m,).

    A row has the columns of an item's weights and the weights. A call reads only weights in the columns of its row, so
    it takes 50 µs instead of 3 ms for 5,000 neighbours of one user. Sums are in the order of the row's columns, so that
    equal rows have equal cosines.
    """
    of_rows = []
    for row in rows:
        of_rows.append(row)
        yield
    m, lengths = len(of_rows), np.array([len(columns) for columns, _ in of_rows], dtype=np.intp)
    if not lengths.sum():
        return lambda _: np.zeros(m)
    columns = np.concatenate([columns for columns, _ in of_rows])
    weights = np.concatenate([weights for _, weights in of_rows]).astype(np.float64)
    owners, ends = np.repeat(np.arange(m), lengths), lengths.cumsum()
    norms = np.sqrt(np.bincount(owners, weights * weights, minlength=m))
    scales = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    yield
    # Entries of one column stand together, and within it in the order of the pool.
    order = columns.argsort(kind="stable")
    yield
    is_first = np.diff(columns[order], prepend=-1) > 0
    firsts = np.flatnonzero(is_first)
    counts = np.diff(firsts, append=len(order))
    group_of = np.empty_like(order)
    group_of[order] = is_first.cumsum() - 1
    owners_by_column, weights_by_column = owners[order], weights[order]
    yield
    hubs = np.flatnonzero(counts > max(m * HUB_SHARE, HUB_LEAST))
    hub_of, of_hubs = np.full(len(counts), -1), np.zeros((len(hubs), m))
    hub_of[hubs] = np.arange(len(hubs))
    for number, (first, count) in enumerate(zip(firsts[hubs].tolist(), counts[hubs].tolist(), strict=True)):
        of_hubs[number, owners_by_column[first : first + count]] = weights_by_column[first : first + count]

    def to_all(number: int) -> NDArray[np.float64]:
        own = slice(ends[number] - lengths[number], ends[number])
        groups, own_weights = group_of[own], weights[own]
        own_hubs = hub_of[groups]
        is_other = own_hubs < 0
        groups, other_weights = groups[is_other], own_weights[is_other]
        shared = counts[groups]
        entries = spans(firsts[groups], shared)
        products = weights_by_column[entries] * np.repeat(other_weights, shared)
        sums = np.bincount(owners_by_column[entries], products, minlength=m).astype(np.float64, copy=False)
        for hub, weight in zip(own_hubs[~is_other].tolist(), own_weights[~is_other].tolist(), strict=True):
            sums += of_hubs[hub] * weight
        similarities: NDArray[np.float64] = sums * (scales * scales[number])
        return similarities

    return to_all
