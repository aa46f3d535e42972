"""What a question costs, learned from what earlier questions of its kind took.

A *plain* question asks for few items of a known user or of a short history, without rules and reasons. Everything else
is counted as so many plain questions: its *weight*. A kind that was not measured yet has a guessed weight.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import NamedTuple

from svc.model.ranking.query import Query

PLAIN_LIMIT, PLAIN_SEEDS = 32, 64
"""The longest answer and the longest history of a plain question."""
DEAR_WEIGHT = 4.0
"""Questions of a larger weight are scored apart from the others."""
LARGEST_CALL = 256
MOST_KINDS = 1024
"""Measured kinds that are kept; the one that was measured longest ago goes first."""
UNKNOWN_PLAIN_S = 1e-3
"""Stands for the cost of a plain question before one was measured."""
LEAST_STEP = 0.05


class Kind(NamedTuple):
    """Questions that cost about the same: sizes are bit lengths, so those of one kind differ by less than two times."""

    limit: int = 0
    profile: int = 0
    described: int = 0
    boosts: int = 0
    limits: int = 0
    is_diverse: bool = False
    has_pins: bool = False
    is_explained: bool = False
    is_popular: bool = False
    is_cold: bool = False
    has_new: bool = False

    @property
    def guess(self) -> float:
        """The weight before it was measured: of the right order at 100,000 items."""
        items = 2.0**self.limit if self.limit else PLAIN_LIMIT
        weight = 1.0 + 0.1 * (2.0**self.described - 1)
        if self.boosts or self.limits:  # a rule that may look at all items
            weight += 15
        if self.is_diverse:  # each chosen item is compared with a pool of five times the items
            weight += 5 * items * items / 1e5
        if self.is_explained:
            weight += items / 16
        if self.has_new:  # a second ranking, by the part that learned from features
            weight += 1
        return weight


PLAIN = Kind()


def kind_of(query: Query) -> Kind:
    rules, profile = query.rules, len(query.seeds)
    is_short = query.limit <= PLAIN_LIMIT and profile <= PLAIN_SEEDS
    if is_short and (query.user >= 0 or profile) and rules is None and not (query.explain or query.seed_features):
        return PLAIN
    kind = Kind(
        limit=query.limit.bit_length() if query.limit > PLAIN_LIMIT else 0,
        profile=profile.bit_length() if profile > PLAIN_SEEDS else 0,
        described=len(query.seed_features).bit_length(),
        is_explained=bool(query.explain),
        is_popular=query.popular,
        is_cold=query.user < 0 and not profile,
        has_new=query.new is not None,
    )
    if rules is None:
        return kind
    return kind._replace(
        boosts=len(rules.boosts).bit_length(),
        limits=len(rules.limits),
        is_diverse=bool(rules.diversity),
        has_pins=bool(rules.pins),
    )


class Median:
    """Follows the median of what is measured: a rare slow measurement hardly moves it. Infinite before the first.

    The first measurements move it further than later ones do.
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


class Costs:
    """Processor seconds of the questions to one model, by kind; of plain ones by how many are scored together."""

    def __init__(self) -> None:
        self._plain = [Median() for _ in range(LARGEST_CALL.bit_length() + 1)]
        self._kinds: OrderedDict[Kind, Median] = OrderedDict()

    def plain_s(self, count: int) -> float:
        """Seconds of a call of about so many plain questions; infinite before the first such call."""
        return self._plain[count.bit_length()].value

    def weight(self, query: Query) -> float:
        """How many plain questions take as long as this one; never less than 1."""
        return self._weight(kind_of(query))

    def seconds(self, query: Query) -> float:
        """Seconds that the question takes by itself."""
        kind = kind_of(query)
        measured_s = self._measured_s(kind)
        if measured_s < math.inf:
            return measured_s
        plain_s = self.plain_s(1)
        return kind.guess * (plain_s if plain_s < math.inf else UNKNOWN_PLAIN_S)

    def is_measured(self, query: Query) -> bool:
        return self._measured_s(kind_of(query)) < math.inf

    def is_weighed(self, query: Query) -> bool:
        """True once the weight is measured and no guess."""
        kind = kind_of(query)
        return kind is PLAIN or max(self.plain_s(1), self._measured_s(kind)) < math.inf

    def is_dear(self, query: Query) -> bool:
        """True for a question that must not keep plain ones waiting."""
        kind = kind_of(query)
        return kind is not PLAIN and self._weight(kind) > DEAR_WEIGHT

    def learn(self, kind: Kind, count: int, seconds: float) -> None:
        """A call took so many seconds for `count` questions of one kind."""
        if kind is PLAIN:
            self._plain[count.bit_length()].learn(seconds)
            return
        median = self._kinds.get(kind)
        if median is None:
            median = self._kinds[kind] = Median()
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(kind)
        median.learn(seconds / count)

    def _weight(self, kind: Kind) -> float:
        if kind is PLAIN:
            return 1.0
        plain_s, measured_s = self.plain_s(1), self._measured_s(kind)
        if math.inf in (plain_s, measured_s):
            return kind.guess
        return max(1.0, measured_s / max(plain_s, 1e-9))

    def _measured_s(self, kind: Kind) -> float:
        if kind is PLAIN:
            return self.plain_s(1)
        median = self._kinds.get(kind)
        return math.inf if median is None else median.value
