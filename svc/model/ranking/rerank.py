"""Rearrange a ranking for display: boosts, rotation, diversity and limits, pins. The entry point is `rerank`.

Filters, availability, exclusions and seen items have been applied before. No rule here adds an item that they removed.

| symbol | meaning |
|---|---|
| value | the score after boosts |
| pool | the best max(100, 5 · wanted) items by value, among which diversity chooses |
| relevance | the value, rescaled to 0..1 within the pool |
| eligible | not pinned, not chosen yet, and none of its labels has reached its limit |
| deviation | the standard deviation of the values of the `ROTATED` best items, whatever page is asked for |
| noise | a standard Gumbel variate, from a hash of the seed and the item's id |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.ranking.filter_fields import LabelField
from svc.model.ranking.item_sets import ItemSet, best
from svc.model.ranking.steps import Steps, result_of

ROTATED: Final = 100
"""The number of best items that rotation moves. They change places among themselves, so later pages stay the same."""
_HASH_BITS: Final = 52
"""The number of bits of a hash that are used. The hash plus 0.5 is then exact in float64.

So the noise is never computed from exactly 0 or 1, for which it would be infinite.
"""


class Rotation(NamedTuple):
    """Moves the best items, by how often each was shown before, and by a seed.

    `shown`, (s,), are the columns of the items shown before, ascending, and `times`, (s,), tells how often each was
    shown. None: all once. Each time lowers the item's value by `rotation` deviations. With a `seed`, each item gains
    `shuffle` deviations times its noise. `id_of` returns the id of a column.
    """

    shown: NDArray[np.int32]
    times: NDArray[np.float64] | None
    rotation: float
    seed: str | None
    shuffle: float
    id_of: Callable[[int], str]

    @property
    def moves(self) -> bool:
        """Return whether any item can change its place."""
        return bool((len(self.shown) and self.rotation) or (self.seed and self.shuffle))

    def order(self, items: NDArray[np.int32], values: NDArray[np.float64]) -> NDArray[np.intp]:
        """Return the new order as positions in `items`, (n,). `values`, (n,), are the values of the items, descending.

        Items whose new values are equal keep their order.
        """
        if not len(items):
            return np.arange(0)
        gains = np.zeros(len(items))
        if len(self.shown):
            places = self.shown.searchsorted(items)
            lost = -self.rotation if self.times is None else self.times.take(places, mode="clip") * -self.rotation
            gains = (self.shown.take(places, mode="clip") == items) * lost
        if self.seed and self.shuffle:
            gains = gains + self.shuffle * np.array([*self._noise(items)])
        differences = values - values.sum() / len(values)  # the steps of `values.std()`, in half of the time
        deviation = math.sqrt((differences * differences).sum() / len(values))
        return np.argsort(-(values + deviation * gains), kind="stable")

    def _noise(self, items: NDArray[np.int32]) -> Iterator[float]:
        """Yield the noise of each item. It does not depend on the other items."""
        # The zero byte separates seed and id, so that no other pair gives the same text.
        of_seed = blake2b(f"{self.seed}\0".encode(), digest_size=8)
        for column in items.tolist():
            # A copy of the seed's state saves hashing the seed again for each item.
            hashed = of_seed.copy()
            hashed.update(self.id_of(column).encode())
            uniform = ((int.from_bytes(hashed.digest(), "big") >> (64 - _HASH_BITS)) + 0.5) / 2**_HASH_BITS
            # Sorting by value plus Gumbel noise draws pages like Plackett and Luce's model, whose probabilities are
            # known.
            yield -math.log(-math.log(uniform))


POOL: Final = 100
POOL_PER_ITEM: Final = 5
_ROUNDING: Final = 1e-9

Items = NDArray[np.int32]
NO_SPARE: Final[Items] = np.empty(0, dtype=np.int32)
Scores = NDArray[np.float64]
Ties = NDArray[np.int64]
Similar = Callable[[int], NDArray[np.float64]]
"""A function from the position of an item in a pool to its similarities with all items of the pool."""
CompareItems = Callable[[Items], Steps[Similar]]
"""A function from the items of a pool to the function that compares them."""


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
    """Bounds of the share of new items, which have the column `first` or a later column.

    For every n, at most floor(most · n) of the first n items of a ranking are new, and at least floor(least · n) as
    long as any new item is eligible.
    """

    first: int
    most: float
    least: float = 0.0

    def room(self, n: int) -> int:
        """Return the largest number of new items among the first `n`.

        Adds a little before rounding down, because 0.29 · 100 is below 29 in floating point.
        """
        return math.floor(self.most * n + _ROUNDING)

    def due(self, n: int) -> int:
        """Return the smallest number of new items among the first `n`, rounded as in `room`."""
        return math.floor(self.least * n + _ROUNDING)


class Rules(NamedTuple):
    """The rules for one ranking. The defaults leave it unchanged."""

    diversity: float = 0.0
    limits: tuple[Limit, ...] = ()
    boosts: tuple[Boost, ...] = ()
    pins: tuple[Pin, ...] = ()
    share: Share | None = None
    rotation: Rotation | None = None

    def pool(self, wanted: int) -> int:
        """Return the number of best items from which the rules can usually choose `wanted` items.

        If they cannot, `rerank` gets all items.
        """
        if self.diversity or self.limits:
            return max(POOL, POOL_PER_ITEM * wanted)
        return max(wanted + len(self.pins), 0 if self.rotation is None else ROTATED)


class Reranked(NamedTuple):
    """Item columns, their model scores, and for each item the rules that put it at its position."""

    items: Items
    scores: Scores
    reasons: tuple[tuple[str, ...], ...]


class Candidates(NamedTuple):
    """A ranking from which the rules choose.

    Items stand by descending score, or in any order if there are boosts. Items of equal scores are ordered by ascending
    `ties`. None: by ascending column. Unless `is_whole`, `items` are only the beginning of the ranking, and `whole`
    returns all of it in any order. `spare` are new items that rank behind the beginning, best first, to fill a minimum
    share.
    """

    items: Items
    scores: Scores
    is_whole: bool
    whole: Callable[[], Candidates]
    ties: Ties | None = None
    spare: Items = NO_SPARE


def rerank(candidates: Candidates, rules: Rules, wanted: int, similar: CompareItems, pinned: Scores) -> Reranked:
    """Return the result of `rerank_steps`."""
    return result_of(rerank_steps(candidates, rules, wanted, similar, pinned))


def rerank_steps(
    candidates: Candidates, rules: Rules, wanted: int, similar: CompareItems, pinned: Scores
) -> Steps[Reranked]:
    """Return the first `wanted` items after applying `rules` to the candidates.

    `similar` returns the function that compares the items of a pool. `pinned` are the scores of the pins in `rules`.
    """
    rotation = rules.rotation
    # Rotation alone needs none of the steps below.
    if rotation and rules == Rules(rotation=rotation) and (candidates.is_whole or len(candidates.items) >= wanted):
        return _rotate(candidates, rotation, wanted)
    # With a share, any new item may be due, however low it ranks.
    most = rules.pool(wanted) if rules.share is None else len(candidates.items)
    ordered = _order_candidates(candidates, rules.boosts, most)
    first = ordered.items[:ROTATED]
    order = None if rotation is None else rotation.order(first, ordered.values[:ROTATED])
    choice = _Choice(ordered.rotate(slice(len(first)), order), candidates.spare, rules)
    diversified = yield from _diversify(choice, rules, wanted, similar)
    yield from _continue(choice, rules, wanted)
    if len(choice.chosen) < wanted and not choice.ordered.is_whole:
        whole = candidates if candidates.is_whole else candidates.whole()
        if rules.share is None:
            # Unsorted: `_select` sorts only as many items as are still missing.
            valued = _value_candidates(whole, rules.boosts)
            choice = choice.among(valued.rotate(_places(valued.items, first), order), rules)
            _select(choice, wanted)
        else:
            ordered = _order_candidates(whole, rules.boosts, len(whole.items))
            choice = choice.among(ordered.rotate(slice(len(first)), order), rules)
            yield from _continue(choice, rules, wanted)
    items = choice.items[choice.chosen]
    # An item has risen if it comes from a later position.
    risen = () if order is None else first[order[order > np.arange(len(order))]].tolist()
    reasons = _reasons(items, rules.boosts, {*risen}, diversified)
    rows = list(zip(items.tolist(), choice.ordered.scores[choice.anchors].tolist(), reasons, strict=True))
    return _insert_pins(rows, rules.pins, pinned, wanted)


def _rotate(candidates: Candidates, rotation: Rotation, wanted: int) -> Reranked:
    """Return the first `wanted` items after rotation alone, as `rerank` does for any rules, in a third of the time."""
    order = rotation.order(candidates.items[:ROTATED], candidates.scores[:ROTATED])
    places = np.arange(min(wanted, len(candidates.items)))
    first = places.copy()
    first[: len(order)] = order[: len(first)]
    reasons = tuple([("rotated",) if rose else () for rose in (first > places).tolist()])
    return Reranked(candidates.items[first], candidates.scores[first], reasons)


class _Valued(NamedTuple):
    """Items with their scores and values.

    The values are the scores. With boosts, they are the scores, raised so that none is negative, times the factors.
    """

    items: Items
    scores: Scores
    values: Scores
    is_whole: bool
    ties: Items | Ties

    def at(self, positions: NDArray[np.intp], *, is_whole: bool) -> _Valued:
        """Return the items at these positions."""
        items, scores, values, _, ties = self
        return _Valued(items[positions], scores[positions], values[positions], is_whole, ties[positions])

    def rotate(self, places: slice | list[int], order: NDArray[np.intp] | None) -> _Valued:
        """Rearrange the items at `places` and their scores by `order`.

        Values and ties stay where they are, so that the items still stand by descending value.
        """
        if order is None:
            return self
        items, scores = self.items.copy(), self.scores.copy()
        items[places], scores[places] = items[places][order], scores[places][order]
        return self._replace(items=items, scores=scores)


def _reasons(items: Items, boosts: Sequence[Boost], rotated: set[int], diversified: set[int]) -> list[tuple[str, ...]]:
    """Return the rules that moved each item, in the order in which they apply."""
    boosted = set(items[_factors(items, boosts) != 1.0].tolist()) if boosts else set()
    by_rule = (("boosted", boosted), ("rotated", rotated), ("diversified", diversified))
    active = [(name, moved) for name, moved in by_rule if moved]
    return [tuple([name for name, moved in active if item in moved]) for item in items.tolist()]


def _value_candidates(candidates: Candidates, boosts: Sequence[Boost]) -> _Valued:
    """Return the candidates with their values, in the same order."""
    items, scores = candidates.items, candidates.scores
    ties = items if candidates.ties is None else candidates.ties
    if not boosts or not len(items):
        return _Valued(items, scores, scores, candidates.is_whole, ties)
    # Raised above 0 first, because a factor above 1 would lower a negative score.
    values = (scores - min(0.0, float(scores.min()))) * _factors(items, boosts)
    return _Valued(items, scores, values, candidates.is_whole, ties)


def _order_candidates(candidates: Candidates, boosts: Sequence[Boost], most: int) -> _Valued:
    """Return the candidates by descending value. With boosts, return the `most` best, not all."""
    valued = _value_candidates(candidates, boosts)
    if not boosts or not len(candidates.items):
        return valued
    best_positions = _best(valued, np.arange(len(candidates.items)), most)
    return valued.at(best_positions, is_whole=candidates.is_whole and len(best_positions) == len(candidates.items))


def _best(valued: _Valued, positions: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """Return the positions of the `most` best items, by descending value, equal values by ascending tie."""
    return positions[best(valued.values[positions], most, valued.ties[positions])]


def _places(items: Items, some: Items) -> list[int]:
    """Return the positions of `some` of the items, in the order of `some`."""
    position_of = np.zeros(int(items.max(initial=0)) + 1, dtype=np.intp)
    position_of[items] = np.arange(len(items))
    positions: list[int] = position_of[some].tolist()
    return positions


def _factors(items: Items, boosts: Sequence[Boost]) -> Scores:
    """Return the product of the boost factors of each item."""
    factors = np.ones(len(items))
    for boost in boosts:
        factors[boost.items.contains(items)] *= boost.factor
    return factors


class _Choice:
    """The items chosen so far, and the items that may be chosen next.

    `items` are the items of `ordered`, followed by the spare items. `chosen` and `anchors` are positions in `items`.

    An item is eligible until it is chosen or one of its labels has reached its limit. A pinned item is never eligible.
    A chosen item carries the score of its anchor. The anchor is the item itself, unless the item was chosen to fill a
    minimum share. Then the anchor is the best item that would have been chosen instead.
    """

    def __init__(self, ordered: _Valued, spare: Items, rules: Rules) -> None:
        self.ordered = ordered
        self.items = np.concatenate([ordered.items, spare])
        self.eligible = np.ones(len(self.items), dtype=np.bool_)
        if rules.pins:
            self.eligible[np.isin(self.items, [pin.column for pin in rules.pins])] = False
        self.chosen: list[int] = []
        self.anchors: list[int] = []
        self._limits = rules.limits
        self._taken: dict[tuple[int, int], int] = {}
        self._share = rules.share
        self._n_sharing = 0

    def among(self, ordered: _Valued, rules: Rules) -> _Choice:
        """Return the choice with the same chosen items over `ordered`, a ranking of all items."""
        choice = _Choice(ordered, NO_SPARE, rules)
        positions = _places(ordered.items, self.items[self.chosen])
        anchors = _places(ordered.items, self.items[self.anchors])
        for position, anchor in zip(positions, anchors, strict=True):
            # Taken again one by one, so that limits and shares count what is chosen already.
            choice.take(position, anchor)
        return choice

    def now(self) -> NDArray[np.bool_]:
        """Return whether each item of the ranking may come next, (n,).

        A new item may not if the share of new items has reached its maximum.
        """
        eligible, share = self.eligible[: len(self.ordered.items)], self._share
        if share is None or self._n_sharing < share.room(len(self.chosen) + 1):
            return eligible
        return eligible & (self.ordered.items < share.first)

    def due(self) -> int | None:
        """Return the position of the best eligible new item if the minimum share requires a new item, else None."""
        share = self._share
        if share is None or self._n_sharing >= share.due(len(self.chosen) + 1):
            return None
        sharing = self.eligible & (self.items >= share.first)
        return int(np.argmax(sharing)) if sharing.any() else None

    def next_new(self, position: int, most: int) -> NDArray[np.intp]:
        """Return the position of a new item and of the eligible new items behind it, at most `most`."""
        assert self._share is not None, "only a share makes new items due"
        may_come = self.eligible[position + 1 :] & (self.items[position + 1 :] >= self._share.first)
        return np.append(position, position + 1 + np.flatnonzero(may_come)[: most - 1])

    def take(self, position: int, anchor: int) -> None:
        """Choose the item at a position, with the score of the item at `anchor`."""
        self.eligible[position] = False
        self.chosen.append(position)
        self.anchors.append(anchor)
        column = int(self.items[position])
        self._n_sharing += self._share is not None and column >= self._share.first
        for number, limit in enumerate(self._limits):
            for label in limit.field.labels_of(column).tolist():
                taken = self._taken[number, label] = self._taken.get((number, label), 0) + 1
                if taken == limit.most:
                    self.eligible[limit.field.having(label).contains(self.items)] = False


def _diversify(choice: _Choice, rules: Rules, wanted: int, similar: CompareItems) -> Steps[set[int]]:
    """Choose items from the pool by diversity. Return the items that were preferred to a more relevant item.

    Pinned items are part of the pool, so that a pin does not change the relevance of the other items.
    """
    if not rules.diversity:
        return set()
    pool = choice.ordered.items[: rules.pool(wanted)]
    to_pool = yield from similar(pool)
    relevance = _relevance(choice.ordered.values[: len(pool)]) * (1 - rules.diversity)
    nearest = np.full(len(pool), -np.inf)
    early: set[int] = set()
    place_of: dict[int, int] = {}
    while len(choice.chosen) < wanted and (may_come := choice.now()[: len(pool)]).any():
        yield
        first, taken = int(np.argmax(may_come)), choice.due()
        if taken is None:
            gains = relevance - rules.diversity * nearest if choice.chosen else relevance
            # `argmax` returns the first of equal gains, which is the more relevant item.
            taken = int(np.argmax(np.where(may_come, gains, -np.inf)))
            if taken != first:
                early.add(int(pool[taken]))
            choice.take(taken, taken)
        else:
            choice.take(taken, first)
        if taken >= len(pool) and taken not in place_of:  # a minimum share of new items takes some behind the pool
            behind = choice.next_new(taken, wanted)
            to_pool = yield from similar(np.concatenate([pool, choice.items[behind]]))
            place_of = {position: len(pool) + number for number, position in enumerate(behind.tolist())}
        # Only the nearest chosen item counts, so one row of similarities for each choice is enough.
        np.maximum(nearest, to_pool(place_of.get(taken, taken))[: len(pool)], out=nearest)
    return early


def _continue(choice: _Choice, rules: Rules, wanted: int) -> Steps[None]:
    """Choose further items in the order of the ranking until `wanted` items are chosen."""
    if rules.share is None and not rules.limits:
        for position in np.flatnonzero(choice.eligible)[: wanted - len(choice.chosen)].tolist():
            choice.take(position, position)
        return
    rank = 0
    while len(choice.chosen) < wanted and (may_come := choice.now()[rank:]).any():
        yield
        position = rank + int(np.argmax(may_come))
        due = choice.due()
        choice.take(position if due is None else due, position)
        if rules.share is None:  # with a share, new items that were skipped may come later, once there is room for them
            rank = position


def _select(choice: _Choice, wanted: int) -> None:
    """Choose the best eligible items of an unordered ranking until `wanted` items are chosen.

    Avoids sorting all items. Each round sorts only the best eligible items, and more of them than the round before.
    """
    most = POOL
    while len(choice.chosen) < wanted:
        eligible = np.flatnonzero(choice.eligible)
        if not len(eligible):
            break
        # Growing rounds: limits may block most of the best items, and the number of rounds stays logarithmic.
        most = POOL_PER_ITEM * max(wanted - len(choice.chosen), most)
        for rank in _best(choice.ordered, eligible, most).tolist():
            if len(choice.chosen) < wanted and choice.eligible[rank]:
                choice.take(rank, rank)


def _relevance(values: Scores) -> Scores:
    low, high = float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


def _insert_pins(
    rows: list[tuple[int, float, tuple[str, ...]]], pins: Sequence[Pin], pinned: Scores, wanted: int
) -> Reranked:
    """Insert each pin at its position, and cut the rows to `wanted`.

    If the ranking has fewer than `wanted` items, a pin beyond its end becomes the last item. Otherwise such a pin is
    left out.
    """
    ends = len(rows) < wanted
    # By position, because each insertion moves the rows behind it.
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
