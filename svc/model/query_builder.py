"""Build the parts of a query that do not depend on the scorer: item columns from ids, restrictions, and pins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from svc.model.history import LEAST, History, Weights
from svc.model.ids import IdFinder, IdTable
from svc.model.ranking.item_sets import ItemSet, added_up, distinct, intersect
from svc.model.ranking.new_items import NewItems, id_at
from svc.model.ranking.query import (
    NO_ITEMS,
    NOTHING_GIVEN,
    Given,
    Interaction,
    NewCandidates,
    PinFault,
    Prepared,
    Profile,
    Query,
    Restriction,
    profile_of,
    settle_history,
)
from svc.model.ranking.rerank import Pin, Rotation, Rules
from svc.model.recommenders.base import excluded_columns


class QueryBuilder:
    """Translates the item ids of requests into columns of the training matrix, `history`. Thread-safe."""

    def __init__(self, item_ids: IdTable, history: History) -> None:
        self._finder = IdFinder(item_ids)
        self._n_items = len(item_ids)
        self._item_ids = item_ids
        self._history = history

    def unknown(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions in `ids` of ids that are not items of the model."""
        return np.flatnonzero(self._finder.indices(ids) < 0)

    def columns(self, items: Sequence[str]) -> NDArray[np.int32]:
        """Return the distinct columns of the known items, in ascending order."""
        if not items:
            return NO_ITEMS
        columns = distinct(self._finder.indices(items))
        return columns[columns >= 0]

    def given(self, history: Sequence[Interaction]) -> Given:
        """Return the known items and the unknown ids of a request's history.

        The items are distinct, unless the model's histories are ordered (see `settle_history`).
        """
        if not history:
            return NOTHING_GIVEN
        columns, weights, unknown = self._known(history, None)
        return settle_history(Given(columns, weights, tuple(dict.fromkeys(unknown))), self._history)

    def resolve_dislikes(self, dislikes: Sequence[Interaction], new: NewItems | None) -> Given:
        """Return the disliked items of the model, and the ids that are neither in the model nor new items.

        Weights of a repeated item add up. Dislikes with a weight below LEAST are left out.
        """
        if not dislikes:
            return NOTHING_GIVEN
        columns, weights, unknown = self._known(dislikes, new)
        counts = columns < self._n_items
        if weights is not None:
            counts &= weights >= LEAST
            weights = weights[counts]
        return Given(*added_up(columns[counts], weights), tuple(dict.fromkeys(unknown)))

    def build(
        self,
        limit: int,
        exclude_items: Sequence[str],
        restriction: Restriction,
        given: Given = NOTHING_GIVEN,
        *,
        include_seen: bool = False,
    ) -> tuple[Query, tuple[str, ...]]:
        """Return a query without its user, and the unknown ids of `given` and then of `restriction.include_items`."""
        allowed, ignored = restriction.allowed, dict.fromkeys(given.unknown)
        if allowed is not None and allowed.n_items > self._n_items:
            # Scorers know no columns of new items. `with_candidates` applies the restriction to these.
            allowed = ItemSet.of_flags(allowed.flags()[: self._n_items])
        if restriction.include_items is not None:
            columns = self._finder.indices(restriction.include_items)
            unknown = np.flatnonzero(self._columns_with_new(restriction.include_items, restriction.new) < 0)
            if len(unknown):
                ignored |= dict.fromkeys(map(restriction.include_items.__getitem__, unknown.tolist()))
            allowed = intersect(allowed, ItemSet.of_columns(columns[columns >= 0], self._n_items))
        exclude = self.columns(exclude_items)
        profile = profile_of(given, self._history)
        query = Query(
            limit=limit + restriction.offset,
            seeds=profile.columns,
            seed_weights=profile.weights,
            exclude=exclude,
            include_seen=include_seen,
            allowed=allowed,
            rules=restriction.rules,
            explain=restriction.explain,
            offset=restriction.offset,
            seeds_beside=profile.beside,
        )
        return query, tuple(ignored)

    def vary(self, restriction: Restriction) -> tuple[Restriction, tuple[str, ...]]:
        """Add the requested rotation to the rules. Return the restriction, and the unknown ids among the shown items.

        The counts of a repeated item add up.
        """
        asked = restriction.variation
        if asked is None:
            return restriction, ()
        columns, times, unknown = self._known(asked.shown, restriction.new)
        id_of = partial(id_at, self._item_ids, restriction.new)
        rotation = Rotation(*added_up(columns, times), asked.rotation, asked.seed, asked.shuffle, id_of)
        if rotation.moves:
            restriction = restriction._replace(rules=(restriction.rules or Rules())._replace(rotation=rotation))
        return restriction, tuple(unknown)

    def prepared(
        self,
        query: Query,
        ignored_items: tuple[str, ...],
        restriction: Restriction,
        profile: Profile | None,
        ignored_features: tuple[str, ...] = (),
    ) -> Prepared:
        """Add to the query the pins that may be shown. Return it with the facts that its answer reports.

        Pins that may not be shown are among these facts, as ignored items and with the reason.
        """
        prepared = Prepared(query, ignored_features, ignored_items, profile, restriction.offset)
        if not restriction.pins:
            return prepared
        n_items = self._n_items
        new = None if query.popular else restriction.new
        columns = self._columns_with_new([item for item, _ in restriction.pins], new)
        excluded = query.exclude if query.popular else excluded_columns(query, self._history)
        shown = ~ItemSet.of_columns(excluded, n_items)
        if query.allowed is not None:
            shown &= query.allowed
        may = (columns >= 0) & (columns < n_items) & shown.contains(columns.clip(0, n_items - 1))
        if query.new is not None:
            may |= np.isin(columns, n_items + query.new.rows)
        pins = tuple(Pin(int(columns[n]), restriction.pins[n][1]) for n in np.flatnonzero(may).tolist())
        gone = tuple(
            (restriction.pins[n][0], _why_not_shown(columns[n], query, excluded)) for n in np.flatnonzero(~may).tolist()
        )
        rules = (query.rules or Rules())._replace(pins=pins)
        ignored = tuple(dict.fromkeys((*ignored_items, *(item for item, _ in gone))))
        active = rules if rules != Rules() or query.new is not None else None
        return prepared._replace(query=query._replace(rules=active), ignored_items=ignored, ignored_pins=gone)

    def _known(
        self, given: Sequence[tuple[str, float]], new: NewItems | None
    ) -> tuple[NDArray[np.int32], Weights | None, list[str]]:
        """Return columns and weights (None: all 1) of the known and new items of `given`, and the unknown ids.

        All stand in the order of `given`, which has pairs of id and weight.
        """
        if not given:
            return NO_ITEMS, None, []
        ids, numbers = zip(*given, strict=True)
        weights = None if numbers.count(1) == len(numbers) else np.array(numbers, dtype=np.float64)
        columns = self._columns_with_new(ids, new)
        if columns.min() >= 0:
            return columns, weights, []
        is_known = columns >= 0
        unknown = [ids[position] for position in np.flatnonzero(~is_known).tolist()]
        return columns[is_known], None if weights is None else weights[is_known], unknown

    def _columns_with_new(self, ids: Sequence[str], new: NewItems | None) -> NDArray[np.int32]:
        """Return columns of known and new items, (len(ids),), with −1 for unknown ids."""
        columns = self._finder.indices(ids)
        if new is None:
            return columns
        rows = new.rows(ids)
        return np.where((columns < 0) & (rows >= 0), self._n_items + rows, columns)


def with_candidates(query: Query, restriction: Restriction, excluded: Sequence[str]) -> Query:
    """Add to the query the new items that may be recommended. New items with `excluded` ids are left out."""
    new = restriction.new
    assert new is not None, "asked only where there are new items"
    rows = new.candidates(excluded, restriction.include_items, restriction.allowed)
    if not len(rows):
        return query
    rules = (query.rules or Rules())._replace(share=new.share)
    return query._replace(new=NewCandidates(new, rows), rules=rules)


def _why_not_shown(column: np.int32, query: Query, excluded: NDArray[np.int32]) -> PinFault:
    """Return the reason for leaving out the item of a pin. `excluded` are all columns that must not be recommended."""
    if column < 0:
        return "unknown"
    if column in query.exclude:
        return "excluded"
    return "seen" if column in excluded else "filtered"
