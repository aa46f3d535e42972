"""A recipe's `serving` block in the form that requests use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeVar

from svc.recipe.filter_tree import Filter, parse_filter
from svc.recipe.schema import Recipe


class TimedBoost(NamedTuple):
    """A boost from the Unix time `since` until before the Unix time `until`."""

    tree: Filter
    factor: float
    since: float = -math.inf
    until: float = math.inf


class TimedPin(NamedTuple):
    """A pin from the Unix time `since` until before the Unix time `until`."""

    item_id: str
    position: int
    since: float = -math.inf
    until: float = math.inf


Timed = TypeVar("Timed", TimedBoost, TimedPin)


@dataclass(frozen=True, slots=True)
class Policy:
    """The serving rules of a recipe.

    `filter` applies to every request, the other rules if a request does not set its own. `users` permits requests for
    users of an item.
    """

    filter: Filter | None = None
    popular_fallback: bool = False
    diversity: float = 0.0
    limits: tuple[tuple[str, int], ...] = ()
    boosts: tuple[TimedBoost, ...] = ()
    pins: tuple[TimedPin, ...] = ()
    users: bool = False

    @property
    def timed(self) -> bool:
        return bool(self.boosts or self.pins)

    @property
    def has_rules(self) -> bool:
        """True if the recipe's rules may reorder the ranking of a request that sets no rules itself."""
        return bool(self.diversity or self.limits or self.boosts or self.pins)

    @classmethod
    def of(cls, recipe: Recipe) -> Policy:
        serving = recipe.serving
        if serving is None:
            return DEFAULT_POLICY
        kinds = recipe.filter_kinds
        return cls(
            filter=None if serving.filter is None else parse_filter(serving.filter, kinds),
            popular_fallback=serving.fallback == "popular",
            diversity=serving.diversity,
            limits=tuple((limit.field, limit.max) for limit in serving.limits),
            boosts=tuple(
                TimedBoost(
                    parse_filter(boost.filter, kinds), boost.factor, _time(boost.from_, -1), _time(boost.until, 1)
                )
                for boost in serving.boosts
            ),
            pins=tuple(
                TimedPin(pin.item_id, pin.position, _time(pin.from_, -1), _time(pin.until, 1)) for pin in serving.pins
            ),
            users=serving.users,
        )


DEFAULT_POLICY = Policy()


def active(entries: Iterable[Timed], now: float) -> list[Timed]:
    """Return the entries that hold at the Unix time `now`."""
    return [entry for entry in entries if entry.since <= now < entry.until]


def _time(moment: datetime | None, sign: int) -> float:
    """Return the Unix time of `moment`, or infinity with the sign of `sign` if it is None."""
    return sign * math.inf if moment is None else moment.timestamp()
