"""Rearranges a ranking for display: boosts first, then diversity and limits, then pins. The entry point is `rerank`.

Which items may be shown is decided earlier: filters, availability, exclusions and seen items have already been applied,
and no rule here adds an item that they removed.

| symbol | meaning |
|---|---|
| pool | the best max(100, 5 · wanted) items, among which diversity chooses |
| relevance | the score, rescaled to 0..1 within the pool |
| eligible | not chosen yet, and none of its labels has reached its limit |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.topk import reaching

POOL: Final = 100
POOL_PER_ITEM: Final = 5
_ROUNDING: Final = 1e-9

Items = NDArray[np.int32]
Scores = NDArray[np.float64]
Ties = NDArray[np.int64]
Similar = Callable[[int], NDArray[np.float64]]
"""Maps an index into a pool to the similarities of that item to every item of the pool."""


class Boost(NamedTuple):
    items: ItemSet
    factor: float


class Limit(NamedTuple):
    field: LabelField
    most: int


class Pin(NamedTuple):
    """An item that may be shown, and its place in the whole ranking, from 0."""

    column: int
    position: int


class Share(NamedTuple):
    """Of the first n items of a ranking, whatever n, at most floor(most · n) have the column `first` or a later one."""

    first: int
    most: float

    def room(self, n: int) -> int:
        """How many of the first `n` items these may be; 0.29 · 100 is 29, though floats multiply to less."""
        return math.floor(self.most * n + _ROUNDING)


class Rules(NamedTuple):
    """The rules for one ranking. The defaults leave it unchanged."""

    diversity: float = 0.0
    limits: tuple[Limit, ...] = ()
    boosts: tuple[Boost, ...] = ()
    pins: tuple[Pin, ...] = ()
    share: Share | None = None

    @property
    def needs_all(self) -> bool:
        """True when a rule may lift any item to the top, so that ranking only the best items is not enough."""
        return bool(self.boosts)

    def pool(self, wanted: int) -> int:
        """How many of the best items must be ranked so that `wanted` of them can be chosen."""
        return max(POOL, POOL_PER_ITEM * wanted) if self.diversity or self.limits else wanted + len(self.pins)


class Reranked(NamedTuple):
    """Item columns, their model scores, and for each item the rules that put it at its position."""

    items: Items
    scores: Scores
    reasons: tuple[tuple[str, ...], ...]


class Candidates(NamedTuple):
    """A ranking by descending score. When `items` are only its beginning, `rest` returns all of it, in any order.

    With boosts the items may come in any order. `ties` rise among items of equal scores; None: columns do.
    """

    items: Items
    scores: Scores
    is_whole: bool
    rest: Callable[[], Candidates]
    ties: Ties | None = None


def rerank(
    found: Candidates, rules: Rules, wanted: int, similar: Callable[[Items], Similar], pinned: Scores
) -> Reranked:
    """The first `wanted` items under `rules`. `similar` makes similarities of a pool; `pinned` scores the pins."""
    most = rules.pool(wanted) if rules.share is None else len(found.items)
    ordered = _ordered(found, rules.boosts, most)
    chosen, early = _diverse(ordered, rules, wanted, similar)
    diversified = set(ordered.items[early].tolist())
    chosen += _continued(ordered.items, rules, chosen, wanted)
    if len(chosen) < wanted and not ordered.is_whole:
        first, whole = ordered.items[chosen], _whole(found)
        if rules.share is None:
            ordered = _valued(whole, rules.boosts)
            chosen = _selected(ordered, rules, _places(ordered.items, first), wanted)
        else:
            ordered = _ordered(whole, rules.boosts, len(whole.items))
            chosen = _places(ordered.items, first)
            chosen += _continued(ordered.items, rules, chosen, wanted)
    items, boosted = ordered.items[chosen].tolist(), ordered.is_boosted[chosen].tolist()
    reasons = [
        (*(("boosted",) if lifted else ()), *(("diversified",) if item in diversified else ()))
        for item, lifted in zip(items, boosted, strict=True)
    ]
    rows = list(zip(items, ordered.scores[chosen].tolist(), reasons, strict=True))
    return _insert_pins(rows, rules.pins, pinned, wanted)


class _Valued(NamedTuple):
    """Items with their values: the score, or what the boosts make of it."""

    items: Items
    scores: Scores
    values: Scores
    is_boosted: NDArray[np.bool_]
    is_whole: bool
    ties: Items | Ties

    def at(self, places: NDArray[np.intp], *, is_whole: bool) -> _Valued:
        """The items at some places."""
        items, scores, values, is_boosted, _, ties = self
        return _Valued(items[places], scores[places], values[places], is_boosted[places], is_whole, ties[places])


def _whole(found: Candidates) -> Candidates:
    if found.is_whole:
        return found
    return found.rest()


def _valued(found: Candidates, boosts: Sequence[Boost]) -> _Valued:
    """The candidates in the order in which they stand."""
    items, scores = found.items, found.scores
    ties = items if found.ties is None else found.ties
    if not boosts or not len(items):
        return _Valued(items, scores, scores, np.zeros(len(items), dtype=np.bool_), found.is_whole, ties)
    factors = _factors(items, boosts)
    values = (scores - min(0.0, float(scores.min()))) * factors
    return _Valued(items, scores, values, factors != 1.0, found.is_whole, ties)


def _ordered(found: Candidates, boosts: Sequence[Boost], most: int) -> _Valued:
    """The candidates by descending value; with boosts only the best `most` of them."""
    valued = _valued(found, boosts)
    if not boosts or not len(found.items):
        return valued
    kept = _best(valued, np.arange(len(found.items)), most)
    return valued.at(kept, is_whole=found.is_whole and len(kept) == len(found.items))


def _best(valued: _Valued, places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """The `most` best of some places, and others of equal value, by descending value and rising ties."""
    kept = places[reaching(valued.values[places], most)]
    return kept[np.lexsort((valued.ties[kept], -valued.values[kept]))]


def _places(items: Items, some: Items) -> list[int]:
    """Where some of the items stand, in the order of `some`."""
    place_of = np.zeros(int(items.max(initial=0)) + 1, dtype=np.intp)
    place_of[items] = np.arange(len(items))
    places: list[int] = place_of[some].tolist()
    return places


def _factors(items: Items, boosts: Sequence[Boost]) -> Scores:
    """The product of the boost factors of each item."""
    factors = np.ones(len(items))
    for boost in boosts:
        factors[boost.items.contains(items)] *= boost.factor
    return factors


class _Counts:
    """Counts the labels of the chosen items. An item is eligible until it is chosen or one of its labels has reached
    its limit; a pinned item never is. Items whose share is limited come only where there is room for them.
    """

    def __init__(self, items: Items, rules: Rules) -> None:
        self.eligible = np.isin(items, [pin.column for pin in rules.pins], invert=True)
        self._items = items
        self._limits = rules.limits
        self._taken: dict[tuple[int, int], int] = {}
        self._share = rules.share
        self._n_taken = self._n_sharing = 0

    def now(self) -> NDArray[np.bool_]:
        """Of each item whether it may come next."""
        share = self._share
        if share is None or self._n_sharing < share.room(self._n_taken + 1):
            return self.eligible
        return self.eligible & (self._items < share.first)

    def take(self, place: int) -> None:
        self.eligible[place] = False
        column = int(self._items[place])
        self._n_taken += 1
        self._n_sharing += self._share is not None and column >= self._share.first
        for number, limit in enumerate(self._limits):
            for label in limit.field.labels_of(column).tolist():
                taken = self._taken[number, label] = self._taken.get((number, label), 0) + 1
                if taken == limit.most:
                    self.eligible[limit.field.having(label).contains(self._items)] = False


def _diverse(
    ordered: _Valued, rules: Rules, wanted: int, similar: Callable[[Items], Similar]
) -> tuple[list[int], list[int]]:
    """Indices of the items that diversity chooses from the pool, in order, and those of them that it preferred to a
    more relevant item. Pinned items are part of the pool, so a pin does not change the relevance of the others.
    """
    if not rules.diversity:
        return [], []
    pool = ordered.items[: rules.pool(wanted)]
    counts, to_pool = _Counts(pool, rules), similar(pool)
    relevance = _relevance(ordered.values[: len(pool)]) * (1 - rules.diversity)
    nearest = np.full(len(pool), -np.inf)
    chosen: list[int] = []
    early: list[int] = []
    while len(chosen) < wanted and (may_come := counts.now()).any():
        gains = relevance - rules.diversity * nearest if chosen else relevance
        place = int(np.argmax(np.where(may_come, gains, -np.inf)))
        if place != int(np.argmax(may_come)):
            early.append(place)
        chosen.append(place)
        counts.take(place)
        np.maximum(nearest, to_pool(place), out=nearest)
    return chosen, early


def _continued(items: Items, rules: Rules, chosen: Sequence[int], wanted: int) -> list[int]:
    """Indices of further items in ranking order until `wanted` are chosen; the limits count those chosen already."""
    if len(chosen) >= wanted:
        return []
    if not (rules.limits or rules.share):  # then every item may follow, and this many places hold enough of them
        items = items[: wanted + len(chosen) + len(rules.pins)]
    counts = _Counts(items, rules)
    for rank in chosen:
        counts.take(rank)
    further: list[int] = []
    rank = 0
    while len(chosen) + len(further) < wanted and (may_come := counts.now()[rank:]).any():
        position = rank + int(np.argmax(may_come))
        counts.take(position)
        further.append(position)
        if rules.share is None:  # else items before it may come later, once there is room for them
            rank = position
    return further


def _selected(whole: _Valued, rules: Rules, chosen: list[int], wanted: int) -> list[int]:
    """Indices of `wanted` items: those chosen already, then the best eligible ones of all, selected by partitions.

    Items that are not eligible any more are left out before each partition, which is larger each time.
    """
    counts = _Counts(whole.items, rules)
    for rank in chosen:
        counts.take(rank)
    most = POOL
    while len(chosen) < wanted:
        places = np.flatnonzero(counts.eligible)
        if not len(places):
            break
        most = POOL_PER_ITEM * max(wanted - len(chosen), most)
        for rank in _best(whole, places, most).tolist():
            if len(chosen) < wanted and counts.eligible[rank]:
                counts.take(rank)
                chosen.append(rank)
    return chosen


def _relevance(values: Scores) -> Scores:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


def _insert_pins(
    rows: list[tuple[int, float, tuple[str, ...]]], pins: Sequence[Pin], pinned: Scores, wanted: int
) -> Reranked:
    """Insert each pin at its position. One beyond the whole ranking goes to its end, if `rows` reach that far."""
    ends = len(rows) < wanted
    for number in sorted(range(len(pins)), key=lambda number: pins[number].position):
        pin = pins[number]
        if pin.position <= len(rows) or ends:
            rows.insert(pin.position, (pin.column, float(pinned[number]), ("pinned",)))
    rows = rows[:wanted]
    return Reranked(
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([row[1] for row in rows], dtype=np.float64),
        tuple(row[2] for row in rows),
    )
