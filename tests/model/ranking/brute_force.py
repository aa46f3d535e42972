"""Brute-force rankings, and a naive choice of a page, that several tests share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from hypothesis import strategies as st

from svc.model.ranking.query import Shown
from svc.model.ranking.rerank import Rules
from tests.planned import Variation


def with_pins(chosen: Sequence[int], pinned: Mapping[int, int], wanted: int) -> list[int]:
    """Return the first `wanted` columns with each pin at its position. A pin beyond the ranking comes last."""
    page = list(chosen)
    is_whole = len(page) < wanted
    for column, position in sorted(pinned.items(), key=lambda pin: pin[1]):
        if position <= len(page) or is_whole:
            page.insert(position, column)
    return page[:wanted]


def variations(ids: Sequence[str]) -> st.SearchStrategy[Variation]:
    """Return a strategy for shown items and a seed.

    Some shown items are unknown or repeated. Each part may be absent or have weight 0.
    """
    shown = st.builds(Shown, st.sampled_from([*ids, "none"]), st.sampled_from([1, 1, 2, 100]))
    weights = st.sampled_from([0.0, 0.25, 0.25, 1.0])
    return st.builds(
        Variation,
        st.just(()) | st.lists(shown, max_size=30),
        weights,
        st.none() | st.sampled_from(["u1 monday", "ü"]),
        weights,
    )


def with_rotation(columns: Any, values: Any, rules: Rules, ids: Sequence[str]) -> list[int]:
    """Return the columns of a ranking with these values, its 100 best in the order after rotation."""
    rotation = rules.rotation
    if rotation is None or not len(columns):
        return [int(column) for column in columns]
    deviation = np.std(values[:100])
    counts = [1] * len(rotation.shown) if rotation.times is None else rotation.times.tolist()
    times = dict(zip(rotation.shown.tolist(), counts, strict=True))
    places: list[tuple[float, int, int]] = []
    for place, column in enumerate(columns[:100]):
        gain = -rotation.rotation * times.get(int(column), 0)
        if rotation.seed is not None:
            hashed = blake2b(f"{rotation.seed}\0{ids[column]}".encode(), digest_size=8).digest()
            share = (int.from_bytes(hashed, "big") // 4096 + 0.5) / 2.0**52
            gain += rotation.shuffle * -math.log(-math.log(share))
        places.append((-(values[place] + deviation * gain), place, int(column)))
    return [column for _, _, column in sorted(places)] + [int(column) for column in columns[100:]]


NEAR = 1e-9
"""Values within this distance count as equal, because rounding depends on the order of additions."""


class Naive:
    """A naive choice of a page and of the items before it. It checks every candidate at every step.

    `ranked` are the columns in the order of `values`. `similar` are the similarities of all pairs.
    """

    def __init__(self, rules: Rules, wanted: int, ids: Sequence[str]) -> None:
        self.rules, self.wanted, self.ids = rules, wanted, ids
        self.pinned = {pin.column: pin.position for pin in rules.pins}
        self.chosen: list[int] = []
        self.ranked: list[int] = []
        self.values: Any = np.empty(0)
        self.similar: Any = np.empty((0, 0))

    def rank(self, columns: Sequence[int], scores: Any, ties: Mapping[int, Any]) -> None:
        """Boost and rotate the columns of a ranking. `ties` decide between equal boosted values."""
        self.ranked, self.values = list(columns), np.asarray(scores)
        if self.rules.boosts:
            factors = np.ones(len(self.ranked))
            for boost in self.rules.boosts:
                factors *= np.where(boost.items.contains(np.array(self.ranked, dtype=np.int32)), boost.factor, 1.0)
            values = (self.values - min(0.0, self.values.min(initial=0.0))) * factors
            order = sorted(range(len(values)), key=lambda place: (-values[place], ties[self.ranked[place]]))
            self.ranked, self.values = [self.ranked[place] for place in order], values[order]
        self.ranked = with_rotation(self.ranked, self.values, self.rules, self.ids)

    def left(self) -> list[int]:
        """Return the columns that may come next, best first."""
        raise NotImplementedError

    def due(self, left: list[int]) -> int | None:
        """Return the column that must come next, if any."""
        return None

    def page(self, answered: list[int]) -> list[int]:
        """Return the page. If items are equal up to rounding, prefer the item of `answered`."""
        if self.rules.diversity:
            self._choose_from_pool(answered)
        while len(self.chosen) < self.wanted and (left := self.left()):
            due = self.due(left)
            self.chosen.append(left[0] if due is None else due)
        return with_pins(self.chosen, self.pinned, self.wanted)

    def _choose_from_pool(self, answered: list[int]) -> None:
        size, share = max(100, 5 * self.wanted), self.rules.diversity
        pool, values = self.ranked[:size], self.values[:size]
        spread = float(np.ptp(values)) if len(pool) else 0.0
        relevance = (values - values.min(initial=np.inf)) / (spread or 1.0)
        while len(self.chosen) < self.wanted:
            left = self.left()
            may_come = set(left)
            places = [place for place, column in enumerate(pool) if column in may_come]
            if not places:
                return
            nearest = self.similar[np.ix_([pool[place] for place in places], self.chosen)].max(axis=1, initial=-1.0)
            gains = (1 - share) * relevance[places] - share * (nearest if self.chosen else 0.0)
            equal = [pool[place] for place, gain in zip(places, gains, strict=True) if gain >= gains.max() - NEAR]
            due = self.due(left)
            best = next((column for column in answered if column in equal), equal[0])
            self.chosen.append(best if due is None else due)
