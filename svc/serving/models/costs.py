"""Cost classes of queries, which depend on the content of a query and are known before it is scored.

Earlier measurements never lower the class of a query, because a client could send cheap queries to lower it.
"""

from __future__ import annotations

import math
from enum import IntEnum

from svc.model.ranking.query import Query

PLAIN_LIMIT, PLAIN_PROFILE = 32, 64
"""The longest answer and the longest history of a PLAIN query. The first bounds the described items of a LONG one."""
LONG_PROFILE = 1000
"""The most items that a LONG query adds up: as many as the history of a request. Known users may have more."""
PLAIN_CONDITIONS, LONG_CONDITIONS, RULED_CONDITIONS = 8, 16, 64
"""Most conditions of filters and boosts in each class. Finding the items of a condition takes 0.1 to 2 ms."""
RULED_LIMIT = 100
"""The longest answer of a RULED query."""
LARGEST_CALL = 256
UNKNOWN_PLAIN_S = 1e-3
"""Assumed cost of a plain query until one is measured."""
# The n-th call changes the median by one n-th, later ones by 5%: the first calls count much, one slow call little.
LEAST_STEP = 0.05


class Cost(IntEnum):
    """The four cost classes. The value is the weight of a query: the number of plain queries that cost as much."""

    PLAIN = 1
    """Few items for a known user or a short history."""
    LONG = 4
    """Many items, a long history, features, or popular items."""
    RULED = 16
    """Limits, boosts, diversity, rotation, reasons, users for an item, many described items, or a very long history."""
    HEAVY = 64
    """A RULED query for many items or from a long history."""

    @property
    def is_expensive(self) -> bool:
        """True if plain queries must not wait for a query of this class."""
        return self > Cost.LONG


def cost_class(
    *, limit: int, profile: int, described: int, is_ruled: bool, is_other: bool, conditions: int = 0
) -> Cost:
    """Return the class of a query for `limit` items.

    `profile` counts chosen and disliked items that are added up, `described` items with features, and `conditions` the
    conditions to compile. `is_other` marks a query that is not plain for another reason, such as a cold start.
    """
    if conditions > RULED_CONDITIONS:
        return Cost.HEAVY
    if is_ruled or described > PLAIN_LIMIT or conditions > LONG_CONDITIONS or profile > LONG_PROFILE:
        return Cost.HEAVY if limit > RULED_LIMIT or profile > PLAIN_PROFILE else Cost.RULED
    is_long = is_other or described > 0 or limit > PLAIN_LIMIT or profile > PLAIN_PROFILE
    is_long = is_long or conditions > PLAIN_CONDITIONS
    return Cost.LONG if is_long else Cost.PLAIN


def cost_of(query: Query) -> Cost:
    rules, seeds = query.rules, len(query.seeds)
    return cost_class(
        limit=query.limit,
        profile=seeds + len(query.dislikes) + query.summed,
        described=len(query.seed_features),
        is_ruled=bool(
            query.explain
            or query.audience
            or (rules is not None and (rules.diversity or rules.limits or rules.boosts or rules.rotation))
        ),
        is_other=rules is not None or (query.user < 0 and not seeds),
    )


class Median:
    """A running estimate of a median, infinite before the first measurement.

    A rare slow measurement hardly moves it. Early measurements move it further than later ones.
    """

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value = math.inf
        self._count = 0

    def learn(self, measured: float) -> None:
        self._count += 1
        if self._count == 1:
            self.value = measured
            return
        step = 1 + max(LEAST_STEP, 1 / self._count)
        self.value *= step if measured > self.value else 1 / step


class PlainCosts:
    """Processor seconds of plain queries of one model, by the number scored together."""

    def __init__(self) -> None:
        self._medians = [Median() for _ in range(LARGEST_CALL.bit_length() + 1)]

    def measured_s(self, count: int) -> float:
        """Return the seconds of a call of about `count` queries, infinite before the first such call."""
        return self._medians[count.bit_length()].value

    def expected_s(self, weight: int) -> float:
        """Return the expected seconds of a call of this weight, at most LARGEST_CALL."""
        measured_s, one_s = self.measured_s(weight), self.measured_s(1)
        if measured_s < math.inf:
            return measured_s
        return weight * (one_s if one_s < math.inf else UNKNOWN_PLAIN_S)

    def learn(self, count: int, seconds: float) -> None:
        self._medians[count.bit_length()].learn(seconds)
