"""Rearranges a ranking for display: boosts first, then diversity and limits, then pins. The entry point is `arrange`.

Which items may be shown is decided earlier: filters, availability, exclusions and seen items have already been applied,
and no rule here adds an item that they removed.

| symbol | meaning |
|---|---|
| pool | the best max(100, 5 · wanted) items, among which diversity chooses |
| relevance | the score, rescaled to 0..1 within the pool |
| eligible | not chosen yet, and none of its labels has reached its limit |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.filter_fields import LabelField
from svc.model.item_sets import ItemSet
from svc.model.topk import reaching

POOL: Final = 100
POOL_PER_ITEM: Final = 5

Items = NDArray[np.int32]
Scores = NDArray[np.float64]
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


class Rules(NamedTuple):
    """The rules for one ranking. The defaults leave it unchanged."""

    diversity: float = 0.0
    limits: tuple[Limit, ...] = ()
    boosts: tuple[Boost, ...] = ()
    pins: tuple[Pin, ...] = ()

    @property
    def needs_all(self) -> bool:
        """True when a rule may lift any item to the top, so that ranking only the best items is not enough."""
        return bool(self.boosts)

    def pool(self, wanted: int) -> int:
        """How many of the best items must be ranked so that `wanted` of them can be chosen."""
        return max(POOL, POOL_PER_ITEM * wanted) if self.diversity or self.limits else wanted + len(self.pins)


class Arranged(NamedTuple):
    """Item columns, their model scores, and for each item the rules that put it at its position."""

    items: Items
    scores: Scores
    reasons: tuple[tuple[str, ...], ...]


class Candidates(NamedTuple):
    """A ranking by descending score. When `items` are only its beginning, `rest` returns all of it."""

    items: Items
    scores: Scores
    is_whole: bool
    rest: Callable[[], tuple[Items, Scores]]


def arrange(
    found: Candidates, rules: Rules, wanted: int, similar: Callable[[Items], Similar], pinned: Scores
) -> Arranged:
    """The first `wanted` items under `rules`. `similar` makes similarities of a pool; `pinned` scores the pins."""
    ordered = _ordered(found, rules, rules.pool(wanted) + len(rules.pins))
    chosen, early = _choose(ordered.items, ordered.values, rules, wanted, similar)
    if len(chosen) < wanted and not ordered.is_whole:
        ordered = _ordered(_whole(found), rules)
        chosen += _continued(ordered.items, rules.limits, chosen, wanted)
    items, boosted = ordered.items[chosen].tolist(), ordered.is_boosted[chosen].tolist()
    reasons = [
        (*(("boosted",) if lifted else ()), *(("diversified",) if place in early else ()))
        for place, lifted in zip(chosen, boosted, strict=True)
    ]
    ends = len(chosen) < wanted or (ordered.is_whole and len(chosen) == len(ordered.items))
    rows = list(zip(items, ordered.scores[chosen].tolist(), reasons, strict=True))
    return _with_pins(rows, rules.pins, pinned, wanted, ends=ends)


class _Ordered(NamedTuple):
    """Items without the pinned ones, by descending value: their score, or what the boosts make of it."""

    items: Items
    scores: Scores
    values: Scores
    is_boosted: NDArray[np.bool_]
    is_whole: bool


def _whole(found: Candidates) -> Candidates:
    if found.is_whole:
        return found
    items, scores = found.rest()
    return Candidates(items, scores, is_whole=True, rest=found.rest)


def _ordered(found: Candidates, rules: Rules, most: int | None = None) -> _Ordered:
    """The candidates in the order of their values; with boosts only the best `most` of them are sorted."""
    items, scores, is_whole = found.items, found.scores, found.is_whole
    values, is_boosted = scores, np.zeros(len(items), dtype=np.bool_)
    if rules.boosts and len(items):
        factors = _factors(items, rules.boosts)
        values, is_boosted = (scores - min(0.0, float(scores.min()))) * factors, factors != 1.0
        kept = np.arange(len(items)) if most is None else reaching(values, most)
        kept = kept[np.lexsort((items[kept], -values[kept]))]
        is_whole = is_whole and len(kept) == len(items)
        items, scores, values, is_boosted = items[kept], scores[kept], values[kept], is_boosted[kept]
    if rules.pins:
        own = np.isin(items, [pin.column for pin in rules.pins], invert=True)
        items, scores, values, is_boosted = items[own], scores[own], values[own], is_boosted[own]
    return _Ordered(items, scores, values, is_boosted, is_whole)


def _factors(items: Items, boosts: Sequence[Boost]) -> Scores:
    """The product of the boost factors of each item."""
    factors = np.ones(len(items))
    for boost in boosts:
        factors[boost.items.contains(items)] *= boost.factor
    return factors


class _Counts:
    """Counts the labels of the chosen items, and marks every item ineligible whose label has reached its limit."""

    def __init__(self, items: Items, limits: Sequence[Limit]) -> None:
        self.eligible = np.ones(len(items), dtype=np.bool_)
        self._items = items
        self._limits = limits
        self._taken: dict[tuple[int, int], int] = {}

    def take(self, place: int) -> None:
        self.eligible[place] = False
        self.count(int(self._items[place]))

    def count(self, column: int) -> None:
        for number, limit in enumerate(self._limits):
            for label in limit.field.labels_of(column).tolist():
                taken = self._taken[number, label] = self._taken.get((number, label), 0) + 1
                if taken == limit.most:
                    self.eligible[limit.field.having(label).contains(self._items)] = False


def _choose(
    items: Items, values: Scores, rules: Rules, wanted: int, similar: Callable[[Items], Similar]
) -> tuple[list[int], set[int]]:
    """Indices of the chosen items in order, and the set of those that diversity preferred to a more relevant item."""
    if not rules.diversity:
        return _continued(items, rules.limits, [], wanted), set()
    pool = items[: rules.pool(wanted)]
    counts, to_pool = _Counts(pool, rules.limits), similar(pool)
    relevance = _relevance(values[: len(pool)]) * (1 - rules.diversity)
    nearest = np.full(len(pool), -np.inf)
    chosen: list[int] = []
    early: set[int] = set()
    while len(chosen) < wanted and counts.eligible.any():
        gains = relevance - rules.diversity * nearest if chosen else relevance
        place = int(np.argmax(np.where(counts.eligible, gains, -np.inf)))
        if place != int(np.argmax(counts.eligible)):
            early.add(place)
        chosen.append(place)
        counts.take(place)
        np.maximum(nearest, to_pool(place), out=nearest)
    return chosen, early


def _continued(items: Items, limits: Sequence[Limit], chosen: Sequence[int], wanted: int) -> list[int]:
    """Indices of further items in ranking order until `wanted` are chosen; the limits count those chosen already."""
    if not limits:
        taken = set(chosen)
        return [place for place in range(min(len(items), wanted + len(taken))) if place not in taken][
            : max(0, wanted - len(chosen))
        ]
    counts = _Counts(items, limits)
    for place in chosen:
        counts.take(place)
    found: list[int] = []
    place = 0
    while len(chosen) + len(found) < wanted and place < len(items):
        place += int(np.argmax(counts.eligible[place:]))
        if not counts.eligible[place]:
            break
        counts.take(place)
        found.append(place)
    return found


def _relevance(values: Scores) -> Scores:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


def _with_pins(
    rows: list[tuple[int, float, tuple[str, ...]]], pins: Sequence[Pin], pinned: Scores, wanted: int, *, ends: bool
) -> Arranged:
    """Insert each pin at its position. One beyond the whole ranking goes to its end, if `rows` reach that far."""
    for number in sorted(range(len(pins)), key=lambda number: pins[number].position):
        pin = pins[number]
        if pin.position <= len(rows) or ends:
            rows.insert(pin.position, (pin.column, float(pinned[number]), ("pinned",)))
    rows = rows[:wanted]
    return Arranged(
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([row[1] for row in rows], dtype=np.float64),
        tuple(row[2] for row in rows),
    )
