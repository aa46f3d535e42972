"""Cost classes of queries. The class decides a query's queue, and its charge to the rate limit of an API key.

The class depends only on the content of a query, so it is known before the query is scored. It does not depend on
measurements, because a client could then lower the class of expensive queries by sending many cheap queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from svc.model.ranking.query import Query

PLAIN_LIMIT, PLAIN_PROFILE = 32, 64
"""Maximum number of items that a PLAIN query returns, and of items in its history, counting dislikes.

PLAIN_LIMIT is also the largest number of items given by features in a LONG query. PLAIN_PROFILE is also the longest
history of a query that is RULED for another reason than its history."""
LONG_PROFILE = 1000
"""Maximum number of items in the history of a LONG query, counting dislikes."""
RULED_PROFILE = 2000
"""Maximum number of items in the history of a query that is RULED only because of its history, counting dislikes.

It is the most that a request can name as history and dislikes. These 2,000 take twice the processor time of 1,000, and
3 to 40 times that of 10. The history of a known user may be longer.
"""
PLAIN_CONDITIONS, LONG_CONDITIONS, RULED_CONDITIONS, HEAVY_CONDITIONS = 8, 16, 64, 512
"""Maximum number of conditions in the filter and the boosts of a PLAIN, LONG, RULED and HEAVY request.

Finding the items of a condition takes 0.1 to 2 ms."""
RULED_LIMIT = 100
"""Maximum number of items that a query returns if it is RULED for another reason than its history."""

HEAVY_LIMIT = 200
"""Maximum number of items that a query with diversity returns if it is HEAVY, offset included.

1,000 items are chosen among 5,000, in 100 to 500 ms of processor time."""


class Cost(IntEnum):
    """The cost class of a query.

    The value is the query's weight: the number of plain queries that cost about as much.
    """

    PLAIN = 1
    """Few items for a known user or a short history."""
    LONG = 4
    """Many items or conditions, a long history, items given by features, or cheap rules such as pins.

    Also a query without a known user and without history items, such as a query for popular items."""
    RULED = 16
    """Limits, boosts, diversity, rotation, reasons, or users for an item.

    Also more than LONG_CONDITIONS conditions, more than PLAIN_LIMIT items given by features, or more than LONG_PROFILE
    items in the history."""
    HEAVY = 64
    """A query that is RULED for another reason than its history, and that has a large limit or a long history.

    The limit is above RULED_LIMIT, or the history has more than PLAIN_PROFILE items. Any query with more than
    RULED_PROFILE items in its history, or with more than RULED_CONDITIONS conditions, is HEAVY too."""

    HUGE = 512
    """A query with diversity for more than HEAVY_LIMIT items, or a request with more than HEAVY_CONDITIONS conditions.

    The query is ranked in turns of a few milliseconds, so that other queries need not wait until it ends. Conditions
    are compiled in turns, too."""

    @property
    def is_sliced(self) -> bool:
        """True if the query is ranked in turns."""
        return self is Cost.HUGE

    @property
    def turn(self) -> Cost:
        """The weight of the work of one turn."""
        return Cost.RULED if self.is_sliced else self

    @property
    def is_expensive(self) -> bool:
        """True if plain queries must not wait for a query of this class."""
        return self > Cost.LONG


def cost_class(
    *,
    limit: int,
    profile: int,
    described: int,
    is_ruled: bool,
    is_other: bool,
    conditions: int = 0,
    is_diverse: bool = False,
) -> Cost:
    """Return the cost class of a query for `limit` items.

    `profile` is the number of chosen and disliked items whose vectors are added. `described` is the number of items
    that are given by features, and `conditions` the number of filter conditions that must be compiled. `is_ruled` is
    True for queries with limits, boosts, diversity, rotation or reasons, and for queries for users. `is_other` is True
    if the query is not plain for another reason, such as a cold start. `is_diverse` is True with diversity.
    """
    if (is_diverse and limit > HEAVY_LIMIT) or conditions > HEAVY_CONDITIONS:
        return Cost.HUGE
    if conditions > RULED_CONDITIONS or profile > RULED_PROFILE:
        return Cost.HEAVY
    if is_ruled or described > PLAIN_LIMIT or conditions > LONG_CONDITIONS:
        return Cost.HEAVY if limit > RULED_LIMIT or profile > PLAIN_PROFILE else Cost.RULED
    # Not LONG: solving for 2,000 items with iALS of 512 components takes 57 ms, too long beside plain queries.
    if profile > LONG_PROFILE:
        return Cost.RULED
    is_long = is_other or described > 0 or limit > PLAIN_LIMIT or profile > PLAIN_PROFILE
    is_long = is_long or conditions > PLAIN_CONDITIONS
    return Cost.LONG if is_long else Cost.PLAIN


def costs_of(queries: Iterable[Query]) -> list[Cost]:
    """Return the cost class of each query."""
    return [cost_of(query) for query in queries]


def cost_of(query: Query) -> Cost:
    """Return the cost class of a query. Filter conditions do not count, because they have already been compiled."""
    rules, seeds = query.rules, len(query.seeds)
    return cost_class(
        limit=query.limit,
        # Sums over the history of a known user took 0.1 ms for 10 items and 16 ms for 10,000.
        profile=seeds + len(query.dislikes) + query.summed,
        described=len(query.seed_features),
        is_ruled=bool(
            query.explain
            or query.audience
            or (rules is not None and (rules.diversity or rules.limits or rules.boosts or rules.rotation))
        ),
        is_other=rules is not None or (query.user < 0 and not seeds),
        is_diverse=rules is not None and rules.diversity > 0,
    )
