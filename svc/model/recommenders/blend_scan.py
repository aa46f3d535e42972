"""The best items by the sum of an inner product and an offset of each item.

| symbol | meaning |
|---|---|
| n, K, b | items, components, vectors of one scan |
| position | place of an item in the index, by falling norm; see factor_scan.py |
| offset | the score of an item by the other parts of the blend, (n,) by position, exact in float64 |
| upper | offset + ‖vector‖·‖item‖: no score of the item is above it |
| bound | a value that at least `limit` approximate scores reach |
| slack | bound of \\|approximate − exact\\| for any item |

One vector: most items have no offset worth speaking of and a short vector. So the items with the largest `upper` are
scored first, which gives a bound; what `upper` does not lift to the bound less twice the slack cannot be in the answer.
Where the bound is not sharp enough for that, more items are scored, in the end all.

Several vectors: one float32 product scores the items of the largest norms, the head, for all of them, which costs less
for each than picking some out; of the others `upper` leaves few.

Both ways lose where norms hardly differ, as those of wide models do: then `upper` leaves nearly all items, and the
first attempts were for nothing. So `choose_plan` lets some users of the model take both ways when it is loaded, counts
the items that were scored for them, and where that exceeds one product with all items, the head is all items, for a
single vector too.

Where numkong is installed, such a model begins with a product of rounded vectors instead; see rounded.py. Either
product is a first look.

Whichever way, candidates are scored exactly and sorted by that, so all give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.query import Ranking
from svc.model.ranking.topk import reaching
from svc.model.recommenders.base import is_few
from svc.model.recommenders.factor_scan import LOWEST, UNIT_ROUNDOFF, Layout, Wanted, error_bound, row_sums

FIRST_SCORED, SCORED_PER_ITEM = 256, 8
"""How many items are scored first: at least this many, and this many for each item wanted."""
GROWTH = 4
FULL_SHARE = 6
"""Above one item in this many, scoring all in order is faster than gathering some."""
HEAD, HEAD_SHARE = 4096, 6
"""Items that are scored for several vectors at once: at least so many, and one in so many."""
SHARED_PRODUCT_GAIN = 4
"""The product of many vectors with the items takes so many times less for each of them than that of one vector."""
MOST = 1e37
"""Scores above this may be beyond the range of float32 in a first look."""
LOST = 1e-44
"""More than a component below the smallest normal number loses when it becomes float32."""
ROUNDINGS = 4
"""More than the operations in float32 by which an offset is added."""

Positions = NDArray[np.intp]
Values = NDArray[np.float64]


class NormedLayout(NamedTuple):
    """An index with the norm of every item, (n,) by position, rounded up so that no bound is too low."""

    layout: Layout
    norms: Values


class FirstLook(NamedTuple):
    """Approximate inner products of a vector with the first items of an index, (m,), and a bound of their errors.

    The bound is infinite where nothing can be told: then all items are scored exactly.
    """

    scores: NDArray[np.float32]
    error: float


class Plan(NamedTuple):
    """How the items of a model are scanned. It decides about time alone, never about a ranking."""

    picks: bool
    """Whether one vector or a few begin with the items of the largest `upper`, each for itself, and not with the head.
    """
    head: int
    """How many items of the largest norms are scored for all vectors at once."""


def default_plan(n_items: int) -> Plan:
    """The plan for item vectors whose norms differ."""
    return Plan(picks=True, head=min(n_items, max(HEAD, n_items // HEAD_SHARE)))


def choose_plan(index: NormedLayout, probes: Iterable[tuple[Values, Values, Wanted]]) -> Plan:
    """The plan that scores fewer items for the `probes`: user vectors, offsets, and what each ranking may hold."""
    n_items = len(index.norms)
    plan = default_plan(n_items)
    alone, behind = [], []
    for vector, offsets, wanted in probes:
        scan, upper = _prepared(index, vector, offsets, wanted)
        picked = scan.picked(upper)
        alone.append(picked.scored * FULL_SHARE + (n_items if picked.positions is None else 0))
        scores = scan.all_scores(upper)
        first = reaching(scores[: plan.head], wanted.limit, 2 * scan.slack)
        reached = int(np.count_nonzero(upper[plan.head :] >= scan.floor(scores[first])))
        behind.append(plan.head + SHARED_PRODUCT_GAIN * min(reached * FULL_SHARE, n_items - plan.head))
    if not alone:
        return plan
    return Plan(picks=fmean(alone) <= n_items, head=plan.head if fmean(behind) <= n_items else n_items)


def scan_sum(index: NormedLayout, vector: Values, offsets: Values, wanted: Wanted) -> Ranking:
    """The best items by vector · item + offset. Ties: lower column first."""
    if wanted.allowed is not None and is_few(wanted.allowed):
        positions = index.layout.positions
        few = np.setdiff1d(positions[wanted.allowed.columns()], positions[wanted.excluded])
        return _scan(index, vector, offsets, wanted).ranked(few.astype(np.intp))
    scan, upper = _prepared(index, vector, offsets, wanted)
    picked = scan.picked(upper).positions
    return scan.ranked(scan.best_of_all(upper) if picked is None else picked)


def _scan(index: NormedLayout, vector: Values, offsets: Values, wanted: Wanted) -> _Scan:
    slack = error_bound(len(vector), math.sqrt(vector @ vector) * index.layout.norms[0])
    return _Scan(index.layout, vector, vector.astype(np.float32), offsets, wanted.limit, slack)


def _prepared(index: NormedLayout, vector: Values, offsets: Values, wanted: Wanted) -> tuple[_Scan, Values]:
    """The scan of a vector, and `upper` of every item, minus infinity for those that must not come back."""
    layout, norms = index
    upper = norms * math.sqrt(vector @ vector)
    upper += offsets
    upper[layout.positions[wanted.excluded]] = -np.inf
    if wanted.allowed is not None:
        upper[~wanted.allowed.flags()[layout.columns]] = -np.inf
    return _scan(index, vector, offsets, wanted), upper


class _Picked(NamedTuple):
    """Positions that may be in the answer, or None where the bound is not sharp; how many items were scored for it."""

    positions: Positions | None
    scored: int


class _Scan(NamedTuple):
    """The scan of one vector; `approximate` is the vector in float32."""

    layout: Layout
    vector: Values
    approximate: NDArray[np.float32]
    offsets: Values
    limit: int
    slack: float

    def picked(self, upper: Values) -> _Picked:
        """A few positions that contain the whole answer."""
        size, scored = max(FIRST_SCORED, SCORED_PER_ITEM * self.limit), 0
        while size * FULL_SHARE < len(upper):
            first = reaching(upper, size)
            positions = np.flatnonzero(upper >= self.floor(self._scores(first)))
            scored += len(first)
            if len(positions) <= GROWTH * size:
                return _Picked(positions, scored + len(positions))
            size *= GROWTH
        return _Picked(None, scored)

    def best_of_all(self, upper: Values) -> Positions:
        """Positions that may be in the answer, by the scores of all items."""
        return reaching(self.all_scores(upper), self.limit, 2 * self.slack)

    def all_scores(self, upper: Values) -> Values:
        """Approximate scores of all items, minus infinity where `upper` is."""
        scores = self.layout.scores_of_one(self.approximate, 0, len(upper), cosine=False) + self.offsets
        scores[upper == -np.inf] = -np.inf
        return scores

    def ranked(self, positions: Positions) -> Ranking:
        """The best at these positions, by their exact scores."""
        if len(positions) > GROWTH * self.limit:
            scores = self._scores(positions)
            positions = positions[scores >= self.floor(scores)]
        return _ranked(self.layout, self.vector, self.offsets, self.limit, positions)

    def _scores(self, positions: Positions) -> Values:
        """Approximate scores."""
        scores = self.layout.scores_at(self.approximate, positions, cosine=False).astype(np.float64)
        scores += self.offsets[positions]
        return scores

    def floor(self, scores: Values) -> float:
        """A lower bound for the exact score of every item in the answer, from the approximate scores of some items."""
        position = len(scores) - self.limit
        if position < 0:
            return LOWEST  # still above minus infinity, the score of excluded items
        return max(float(np.partition(scores, position)[position]) - 2 * self.slack, LOWEST)


def first_looks(layout: Layout, vectors: Values, head: int) -> list[FirstLook]:
    """At the first items of the index, for each row of `vectors`, (b, K)."""
    components, longest = vectors.shape[1], layout.norms[0]
    usable = np.abs(vectors).max(axis=1) * components * max(longest, 1.0) < MOST
    vectors = np.where(usable[:, np.newaxis], vectors, 0.0)
    errors = error_bound(components, np.sqrt(row_sums(vectors * vectors)) * longest) + LOST * components * longest
    errors[~usable] = np.inf
    return list(map(FirstLook, layout.scores(vectors.astype(np.float32), 0, head, cosine=False), errors.tolist()))


def scan_behind(index: NormedLayout, look: FirstLook, vector: Values, offsets: Values, wanted: Wanted) -> Ranking:
    """As `scan_sum`, with a first look at the items, whose scores are changed."""
    layout, norms = index
    scores, head = look.scores, len(look.scores)
    excluded = layout.positions[wanted.excluded]
    unwanted = None if wanted.allowed is None else ~wanted.allowed.flags()[layout.columns]
    reach = max(float(offsets.max()), -float(offsets.min()))
    if not max(look.error, reach) < MOST:
        return _ranked(layout, vector, offsets, wanted.limit, _all_but(len(norms), excluded, unwanted))
    scores += offsets[:head].astype(np.float32)
    slack = look.error + ROUNDINGS * UNIT_ROUNDOFF * reach
    scan = _Scan(layout, vector, vector.astype(np.float32), offsets, wanted.limit, slack)
    scores[excluded if head == len(norms) else excluded[excluded < head]] = -np.inf
    if unwanted is not None:
        scores[unwanted[:head]] = -np.inf
    first = reaching(scores, wanted.limit, 2 * slack)
    if head == len(norms):
        return scan.ranked(first)
    upper = norms[head:] * math.sqrt(vector @ vector)
    upper += offsets[head:]
    upper[excluded[excluded >= head] - head] = -np.inf
    if unwanted is not None:
        upper[unwanted[head:]] = -np.inf
    floor = scan.floor(scores[first].astype(np.float64))
    more = np.flatnonzero(upper >= floor)
    if len(more) * FULL_SHARE > len(upper):
        tail = layout.scores_of_one(scan.approximate, head, len(norms), cosine=False) + offsets[head:]
        more = more[tail[more] >= floor]
    return scan.ranked(np.concatenate([first, more + head]))


def _all_but(n_items: int, excluded: NDArray[np.int32], unwanted: NDArray[np.bool_] | None) -> Positions:
    kept = np.ones(n_items, dtype=np.bool_) if unwanted is None else ~unwanted
    kept[excluded] = False
    return np.flatnonzero(kept)


def _ranked(layout: Layout, vector: Values, offsets: Values, limit: int, positions: Positions) -> Ranking:
    """The best at these positions, all of which are scored exactly."""
    scores = layout.exact_of_one(vector, positions, cosine=False) + offsets[positions]
    columns = layout.columns[positions]
    order = np.lexsort((columns, -scores))[:limit]
    return Ranking(columns[order], scores[order])
