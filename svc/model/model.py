"""A trained model that can answer: requests become queries, queries become rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import (
    FeaturesNotSupported,
    FeatureStateMismatch,
    FeatureValueUnusable,
    PayloadInvalid,
    UnknownSeedItems,
    UnknownUser,
)
from svc.model.columns.feature_values import Encoded
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.final_ranking import candidate_query, explained, naming_new, reranked
from svc.model.history import History
from svc.model.id_finder import IdFinder
from svc.model.ids import IdTable
from svc.model.learning_part import LearningPart
from svc.model.ranking.item_sets import ItemSet, distinct, joined
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.profile import joined_profile, profile_of, settled
from svc.model.ranking.query import (
    NO_ITEMS,
    NOTHING_GIVEN,
    UNRESTRICTED,
    Given,
    Interaction,
    NewCandidates,
    PinFault,
    Prepared,
    Profile,
    Query,
    Ranking,
    Restriction,
)
from svc.model.ranking.rerank import Pin, Rules, Share
from svc.model.recommenders.base import Scorer, Side, excluded_columns
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.popularity import by_count, first_of
from svc.model.stored import Stored

Features = Mapping[str, object]
PLACED_AT_ONCE = 256
"""New items whose encoded features are held at once."""


class Model(Stored):
    """What the payload of an artifact holds. `ready` must be called before the first query; then it never changes.

    `scorer` answers for the users of the training data. `cold`, if present, answers instead of it for every query by
    features or seeds. Every method may run in several threads at once.
    """

    cold: Scorer | None = None
    cold_recency: float = 0.0
    """By which `cold` weighs histories where the parts of the scorer have recencies of their own; stored if above 0."""
    hidden: History | None = None
    """Items that a user is never shown; stored only where training data has any."""
    repeats: bool = False
    """Whether users are recommended what they have chosen before, unless a request says otherwise; stored if so."""
    popularity: NDArray[np.float64] | None = None
    """(n_items,) how much each item was chosen lately; stored only where the number of its users does not say it."""

    def __init__(
        self,
        *,
        user_ids: IdTable,
        item_ids: IdTable,
        history: History,
        scorer: Scorer,
        features: FeatureState | None,
        cold: Scorer | None = None,
        cold_recency: float = 0.0,
        hidden: History | None = None,
        repeats: bool = False,
        popularity: NDArray[np.float64] | None = None,
    ) -> None:
        self.user_ids = user_ids
        self.item_ids = item_ids
        self.history = history
        self.scorer = scorer
        self.features = features
        if cold is not None:  # not stored when absent, so that artifacts of a single part stay byte for byte the same
            self.cold = cold
        if cold_recency:
            self.cold_recency = cold_recency
        if hidden is not None:
            self.hidden = hidden
        if repeats:
            self.repeats = repeats
        if popularity is not None:
            self.popularity = popularity

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def reads_characters(self) -> bool:
        """Whether encoding the features of a request may take milliseconds."""
        return any(encoder.reads_characters for encoder in self._encoders())

    @property
    def kind(self) -> str:
        """Family of the scorer, such as "factors"."""
        return self.scorer.kind

    def ready(self) -> None:
        """Compute what the scorer keeps beside the stored arrays. Takes up to about a second for a large model.

        Raises PayloadInvalid for parts that do not belong together.
        """
        self._items = IdFinder(self.item_ids)
        sizes = (self.n_users, self.n_items)
        if self.hidden is not None and len(self.hidden) != self.n_users:
            raise PayloadInvalid(f"payload: {self.n_users} users do not match {len(self.hidden)} rows of hidden items")
        if sizes != (len(self.history), self.scorer.n_items):
            found = f"{len(self.history)} histories and {self.scorer.n_items} scored items"
            raise PayloadInvalid(f"payload: {sizes[0]} users and {sizes[1]} items do not match {found}")
        recencies = self.scorer.recencies if isinstance(self.scorer, BlendScorer) else ()
        if bool(recencies) != self.history.recency_by_part:
            raise PayloadInvalid("payload: the order of the histories does not match the recencies of the parts")
        if self.popularity is not None and self.popularity.shape != (self.n_items,):
            raise PayloadInvalid(f"payload: {self.n_items} items do not match the popularity of {self.popularity.size}")
        self.scorer.ready()
        for encoder in self._encoders():
            encoder.ready()
        if isinstance(self.scorer, BlendScorer):
            self.scorer.choose_plan(self.history)
        if self.cold is not None:
            if self.cold.n_items != self.n_items:
                raise PayloadInvalid(
                    f"payload: {self.n_items} items do not match {self.cold.n_items} of the second part"
                )
            self.cold.ready()

    def check_features(self, header: Mapping[str, Any]) -> None:
        """Compare the artifact header's `features` with the encoders of the payload.

        Raises FeatureStateMismatch where they disagree.
        """
        declared = header.get("features") or {}
        active = bool(declared.get("active"))
        if active != (self.features is not None):
            held = "holds no" if self.features is None else "holds an"
            raise FeatureStateMismatch(f"feature state check failed: active is {active}, the payload {held} encoder")
        if self.features is None:
            return
        if self.features.version != FEATURE_VERSION:
            raise FeatureStateMismatch(
                f"feature state check failed: the payload is of version {self.features.version},"
                f" this build reads {FEATURE_VERSION}"
            )
        for side in ("user", "item"):
            self._check_side(side, declared.get(side))

    def prepare_recommend(
        self,
        *,
        user_id: str | None,
        user_features: Features | None,
        limit: int,
        exclude_items: Sequence[str] = (),
        include_seen: bool | None = None,
        restriction: Restriction = UNRESTRICTED,
        history: Sequence[Interaction] = (),
        replace: bool = False,
        fallback: bool = False,
    ) -> Prepared:
        """The query for a user: from the history of a known `user_id`, else a cold start from `user_features`.

        A `history` of known items is added to that of a known user, or replaces it with `replace`; for an unknown user
        it is the whole history. With `include_seen` items of all of it may come back; None: where the model was trained
        with repeats. With `fallback`, a user of whom nothing is known gets the most chosen items. Raises UnknownUser,
        FeaturesNotSupported and FeatureValueUnusable.
        """
        include_seen = self.repeats if include_seen is None else include_seen
        user = -1 if user_id is None else self.user_ids.index(user_id)
        given = self._given(history)
        query, ignored = self._query(limit, exclude_items, restriction, given, include_seen=include_seen)
        if restriction.new is not None:
            seen = () if include_seen else [interaction.item_id for interaction in history]
            query = with_candidates(query, restriction, [*exclude_items, *seen])
        if user >= 0:
            query = self._without_hidden(query, user)
        if user >= 0 and (not replace or not len(given.columns)):
            query, profile = self._of_user(query, user, given)
            unused = tuple(user_features or ()) if self._encoder("user") is None else ()
            return self._resolve_pins(Prepared(query, unused, ignored, profile, restriction.offset), restriction)
        if self.cold is not None:
            query = query.at_recency(self.cold_recency)
        if user_features is not None:
            vector, others = self._encode("user", user_features)
            profile = "features+history" if len(given.columns) else "features"
            query = query._replace(user_features=vector.dense())
            return self._resolve_pins(Prepared(query, others, ignored, profile, restriction.offset), restriction)
        if len(given.columns):
            return self._resolve_pins(Prepared(query, (), ignored, "history", restriction.offset), restriction)
        if fallback:
            query = query._replace(popular=True, seeds=NO_ITEMS, seed_weights=None, seed_positions=None)
            query = query._replace(rules=restriction.rules, new=None)
            return self._resolve_pins(Prepared(query, (), ignored, "popular", restriction.offset), restriction)
        if history:
            raise UnknownUser("nothing is known of this user: no item of the history is in the training data")
        if self._encoder("user") is None:
            raise UnknownUser(UnknownUser.without_features)
        raise UnknownUser

    def prepare_popular(self, *, limit: int, restriction: Restriction) -> Prepared:
        """The most chosen items of the training data."""
        query, ignored = self._query(limit, (), restriction)
        return Prepared(query._replace(popular=True), (), ignored, "popular", restriction.offset)

    def prepare_related(
        self,
        *,
        seed_items: Sequence[str],
        item_features: Features | None,
        user_features: Features | None,
        limit: int,
        exclude_items: Sequence[str] = (),
        restriction: Restriction = UNRESTRICTED,
    ) -> Prepared:
        """The query for related items, whose seeds are taken as the history of a user whom training never saw.

        `item_features` describes one unseen item, or maps item ids to such descriptions; an id that training knows
        counts as a seed by itself and its features are not used. Seeds that are neither known nor described are left
        out. Raises UnknownSeedItems, FeaturesNotSupported and FeatureValueUnusable.
        """
        described = _by_item(item_features)
        known = self._columns([*seed_items, *(item for item in described if item is not None)])
        ignored: dict[str, None] = {}
        unseen = []
        for item, features in described.items():
            if item is None or self.item_ids.index(item) < 0:
                vector, others = self._encode("item", features)
                unseen.append(vector)
                ignored |= dict.fromkeys(others)
        prior = None
        if user_features is not None:
            encoded, others = self._encode("user", user_features)
            prior = encoded.dense()
            ignored |= dict.fromkeys(others)
        if not len(known) and not unseen:
            if self._encoder("item") is not None:
                raise UnknownSeedItems
            raise UnknownSeedItems(UnknownSeedItems.without_features)
        query, ignored_items = self._query(limit, exclude_items, restriction)
        query = query._replace(seeds=known, seed_features=tuple(unseen), user_features=prior)
        return self._resolve_pins(Prepared(query, tuple(ignored), ignored_items, None, restriction.offset), restriction)

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """One ranking per query, in order; empty where no candidate is left.

        The bits of a ranking depend on its query alone. Long array operations release the interpreter lock.
        """
        if not any(query.rules or query.explain or query.popular for query in queries):
            return self._scored(queries)
        ranked = self._unarranged([candidate_query(query, self.n_items) for query in queries])
        return [self._presented(query, ranking) for query, ranking in zip(queries, ranked, strict=True)]

    def _presented(self, query: Query, ranking: Ranking) -> Ranking:
        """The ranking in the order in which it is shown, with its reasons."""
        if query.rules is None and not query.explain:
            return ranking
        scorer, new = self.scorer_of(query), query.new
        if new is None or self._learning is None:
            ranking = reranked(query, ranking, self.n_items, scorer.similar, self._unarranged)
            return explained(query, ranking, scorer, self.history, self.features)
        similar = partial(self._learning.similar, new=new.items, similar=scorer.similar)
        ranking = reranked(query, ranking, self.n_items, similar, self._unarranged)
        ranking = explained(query, ranking, scorer, self.history, self.features, learning=self._learning)
        return naming_new(ranking, self.n_items)

    def _unarranged(self, queries: Sequence[Query]) -> list[Ranking]:
        if any(query.popular for query in queries):
            scored = iter(self._scored([query for query in queries if not query.popular]))
            rankings = [self._most_chosen(query) if query.popular else next(scored) for query in queries]
        else:
            rankings = self._scored(queries)
        if self._learning is None or not any(query.new for query in queries):
            return rankings
        return self._learning.join(queries, rankings, self.scorer_of)

    @cached_property
    def _learning(self) -> LearningPart | None:
        return LearningPart.of(self.cold or self.scorer, self.history, self.cold_recency)

    def new_items(self, ids: Sequence[str], features: Sequence[Features], max_share: float | None) -> NewItems:
        """Those of some items that the model does not know, placed by their features. Slow for many: use a thread.

        Raises FeaturesNotSupported where the model has no features of items, and FeatureValueUnusable, which names the
        item and its place in the list, from 1.
        """
        encoder = self._encoder("item")
        if encoder is None or self._learning is None:
            raise FeaturesNotSupported(FeaturesNotSupported.template.format(side="item"))
        unknown = self.unknown(ids).tolist()
        vectors = [self._learning.place(())]
        for start in range(0, len(unknown), PLACED_AT_ONCE):
            some = unknown[start : start + PLACED_AT_ONCE]
            vectors.append(self._learning.place([_encoded(encoder, ids, features, row) for row in some]))
        table = IdTable.from_ids([ids[row] for row in unknown])
        return NewItems(table, np.concatenate(vectors), self.n_items, max_share)

    def unknown(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """The places in `ids` of those that the model does not know."""
        return np.flatnonzero(self._items.indices(ids) < 0)

    def scorer_of(self, query: Query) -> Scorer:
        """The part that answers `query`."""
        if self.cold is None or query.user >= 0 or query.known:
            return self.scorer
        return self.cold

    def _scored(self, queries: Sequence[Query]) -> list[Ranking]:
        if self.cold is None:
            return self.scorer.rank(queries, self.history)
        found: dict[int, Ranking] = {}
        for part in (self.scorer, self.cold):
            places = [place for place, query in enumerate(queries) if self.scorer_of(query) is part]
            if places:
                found.update(zip(places, part.rank([queries[place] for place in places], self.history), strict=True))
        return [found[place] for place in range(len(queries))]

    @cached_property
    def _most_chosen_first(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Columns by descending number of users who chose them, or by how much they were chosen lately, and that count
        by column. Items that count the same stand in the order of columns: the more chosen of all times first.
        """
        counts: NDArray[Any] | None = self.popularity
        if counts is None:
            counts = np.bincount(self.history.columns, minlength=self.n_items)
        return by_count(counts), counts

    def _most_chosen(self, query: Query) -> Ranking:
        order, counts = self._most_chosen_first
        items = first_of(order, query, query.exclude)
        return Ranking(items, counts[items].astype(np.float64), popular=True)

    def _query(
        self,
        limit: int,
        exclude_items: Sequence[str],
        restriction: Restriction,
        given: Given = NOTHING_GIVEN,
        *,
        include_seen: bool = False,
    ) -> tuple[Query, tuple[str, ...]]:
        """The parts of a query that do not depend on the user, and the unknown ids, those of `given` first."""
        allowed, ignored = restriction.allowed, dict.fromkeys(given.unknown)
        if allowed is not None and allowed.n_items > self.n_items:  # it has columns for new items too
            allowed = ItemSet.of_flags(allowed.flags()[: self.n_items])
        if restriction.include_items is not None:
            columns = self._items.indices(restriction.include_items)
            unknown = np.flatnonzero(self._columns_in(restriction.include_items, restriction.new) < 0)
            if len(unknown):
                ignored |= dict.fromkeys(map(restriction.include_items.__getitem__, unknown.tolist()))
            allowed = joined(allowed, ItemSet.of_columns(columns[columns >= 0], self.n_items))
        exclude = self._columns(exclude_items)
        profile = profile_of(given, self.history)
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
            seed_positions=profile.positions,
        )
        return query, tuple(ignored)

    def _resolve_pins(self, prepared: Prepared, restriction: Restriction) -> Prepared:
        """The query with the columns of the pins that may be shown; the ids of the others become ignored items."""
        if not restriction.pins:
            return prepared
        query, n_items = prepared.query, self.n_items
        new = None if query.popular else restriction.new
        columns = self._columns_in([item for item, _ in restriction.pins], new)
        excluded = query.exclude if query.popular else excluded_columns(query, self.history)
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
        ignored = tuple(dict.fromkeys((*prepared.ignored_items, *(item for item, _ in gone))))
        active = rules if rules != Rules() or query.new is not None else None
        return prepared._replace(query=query._replace(rules=active), ignored_items=ignored, ignored_pins=gone)

    def _given(self, history: Sequence[Interaction]) -> Given:
        """The known items of a history, settled."""
        if not history:
            return NOTHING_GIVEN
        found = self._items.indices([one.item_id for one in history])
        weights = None
        if any(one.weight != 1.0 for one in history):
            weights = np.array([one.weight for one in history], dtype=np.float64)
        unknown: dict[str, None] = {}
        if found.min() < 0:
            is_known = found >= 0
            unknown = dict.fromkeys(history[place].item_id for place in np.flatnonzero(~is_known).tolist())
            found, weights = found[is_known], None if weights is None else weights[is_known]
        return settled(Given(found, weights, tuple(unknown)), self.history)

    def _of_user(self, query: Query, user: int, given: Given) -> tuple[Query, Profile]:
        """The query for a row of the training matrix, whose history `given` is joined to."""
        profile: Profile = "user+history" if len(given.columns) else "user"
        if profile == "user" and not (query.explain and self.scorer.explains_by_profile):
            return query._replace(user=user), profile
        seeds, weights, positions = joined_profile(self.history, user, given)
        return query._replace(seeds=seeds, seed_weights=weights, seed_positions=positions, known=True), profile

    def _without_hidden(self, query: Query, user: int) -> Query:
        """The query with the user's hidden items excluded."""
        if self.hidden is None or not len(self.hidden.items(user)):
            return query
        return query._replace(exclude=np.union1d(query.exclude, self.hidden.items(user)).astype(np.int32))

    def known_user(self, user: int, *, limit: int, restriction: Restriction = UNRESTRICTED) -> Query:
        """The query for a row of the training matrix, as a request that only names the user means it."""
        query, _ = self._query(limit, (), restriction, include_seen=self.repeats)
        if restriction.new is not None:
            query = with_candidates(query, restriction, ())
        return self._without_hidden(query._replace(user=user), user)

    def _columns(self, items: Sequence[str]) -> NDArray[np.int32]:
        """Distinct columns of the known items, rising."""
        if not items:
            return NO_ITEMS
        columns = distinct(self._items.indices(items))
        return columns[columns >= 0]

    def _columns_in(self, ids: Sequence[str], new: NewItems | None) -> NDArray[np.int32]:
        """Columns of items of the model and of new items, (len(ids),), −1 for each unknown one."""
        columns = self._items.indices(ids)
        if new is None:
            return columns
        rows = new.rows(ids)
        return np.where((columns < 0) & (rows >= 0), self.n_items + rows, columns)

    def _encoders(self) -> list[SideEncoder]:
        return [encoder for encoder in (self._encoder("user"), self._encoder("item")) if encoder is not None]

    def _encoder(self, side: Side) -> SideEncoder | None:
        if self.features is None:
            return None
        return self.features.user if side == "user" else self.features.item

    def _encode(self, side: Side, features: Features) -> tuple[Encoded, tuple[str, ...]]:
        encoder = self._encoder(side)
        if encoder is None:
            raise FeaturesNotSupported(FeaturesNotSupported.template.format(side=side))
        return encoder.encode_sparse(features)

    def _check_side(self, side: Side, declared: Mapping[str, Any] | None) -> None:
        encoder = self._encoder(side)
        held = None if encoder is None else (encoder.dim, list(encoder.columns))
        stated = None if declared is None else (declared.get("dimension"), declared.get("columns"))
        if held != stated:
            raise FeatureStateMismatch(f"feature state check failed: {side} is {stated}, the payload holds {held}")
        places = (self.cold or self.scorer).feature_dim(side)
        if encoder is not None and encoder.dim != places:
            raise FeatureStateMismatch(
                f"feature state check failed: the {side} encoder has {encoder.dim} places, the scorer {places}"
            )


def with_candidates(query: Query, restriction: Restriction, excluded: Sequence[str]) -> Query:
    """The query with the new items of the restriction that may come back, without the `excluded` ids."""
    new = restriction.new
    assert new is not None, "asked only where there are new items"
    rows = new.candidates(excluded, restriction.include_items, restriction.allowed)
    if not len(rows):
        return query
    share = None if new.max_share is None else Share(new.n_known, new.max_share)
    rules = (query.rules or Rules())._replace(share=share)
    return query._replace(new=NewCandidates(new, rows), rules=rules)


def _encoded(encoder: SideEncoder, ids: Sequence[str], features: Sequence[Features], row: int) -> Encoded:
    """The encoded features of an item of a list. Raises FeatureValueUnusable with the item."""
    try:
        return encoder.encode_sparse(features[row])[0]
    except FeatureValueUnusable as error:
        raise FeatureValueUnusable(f"data row {row + 1}, item {ids[row]!r}: {error.message}") from None


def payload_parts(model: Model) -> dict[str, int]:
    """Bytes of each array of the payload, by the path of attributes that leads to it."""
    return model.parts()


def _why_not_shown(column: np.int32, query: Query, excluded: NDArray[np.int32]) -> PinFault:
    """Why the item of a pin is left out; `excluded` are all columns that must not come back."""
    if column < 0:
        return "unknown"
    if column in query.exclude:
        return "excluded"
    return "seen" if column in excluded else "filtered"


def _by_item(item_features: Features | None) -> dict[str | None, Features]:
    """Features by item id; by None for one item without an id."""
    if item_features is None:
        return {}
    if item_features and all(isinstance(value, Mapping) for value in item_features.values()):
        return {item: features for item, features in item_features.items() if isinstance(features, Mapping)}
    return {None: item_features}
