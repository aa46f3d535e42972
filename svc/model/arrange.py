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
    items, scores = found.items, found.scores
    values, factors = _boosted(items, scores, rules.boosts)
    if factors is not None:
        order = np.lexsort((items, -values))
        items, scores, values, factors = items[order], scores[order], values[order], factors[order]
    own = np.isin(items, [pin.column for pin in rules.pins], invert=True)
    items, scores, values = items[own], scores[own], values[own]
    chosen, early = _choose(items, values, rules, wanted, similar)
    is_whole = found.is_whole
    if len(chosen) < wanted and not is_whole:
        whole, whole_scores = found.rest()
        free = np.isin(whole, [pin.column for pin in rules.pins], invert=True)
        items, scores, is_whole = whole[free], whole_scores[free], True
        chosen += _continued(items, rules.limits, chosen, wanted)
    reasons = [
        (*(("boosted",) if _is_boosted(rules.boosts, column) else ()), *(("diversified",) if place in early else ()))
        for place, column in zip(chosen, items[chosen].tolist(), strict=True)
    ]
    ends = len(chosen) < wanted or (is_whole and len(chosen) == len(items))
    rows = list(zip(items[chosen].tolist(), scores[chosen].tolist(), reasons, strict=True))
    return _with_pins(rows, rules.pins, pinned, wanted, ends=ends)


def _boosted(items: Items, scores: Scores, boosts: Sequence[Boost]) -> tuple[Scores, Scores | None]:
    """Scores shifted to be non-negative times their boost factors; and those factors, None without boosts."""
    if not boosts or not len(items):
        return scores, None
    factors = np.ones(len(items))
    for boost in boosts:
        factors[boost.items.contains(items)] *= boost.factor
    return (scores - min(0.0, float(scores.min()))) * factors, factors


def _is_boosted(boosts: Sequence[Boost], column: int) -> bool:
    factor = 1.0
    for boost in boosts:
        if boost.items.contains(np.array([column], dtype=np.int32))[0]:
            factor *= boost.factor
    return factor != 1.0


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
    for place in range(len(items)):
        if len(chosen) + len(found) == wanted:
            break
        if counts.eligible[place]:
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
