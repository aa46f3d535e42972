"""The trained model: it translates requests into queries, and answers queries with rankings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import (
    FeaturesNotSupported,
    FeatureValueUnusable,
    UnknownSeedItems,
    UnknownUser,
    UsersNotServed,
)
from svc.model.codec import Stored
from svc.model.columns.feature_values import Encoded
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.features import FeatureState, SideEncoder
from svc.model.final_ranking import add_reasons, apply_rules, candidate_query, with_reason_new
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.query_builder import QueryBuilder, with_candidates
from svc.model.ranker.page_ranker import REORDERED, PageRanker
from svc.model.ranking.new_items import Descriptions, NewItems
from svc.model.ranking.query import (
    NO_ITEMS,
    NOTHING_GIVEN,
    UNRESTRICTED,
    Audience,
    Given,
    Interaction,
    Prepared,
    Profile,
    Query,
    Ranking,
    Restriction,
    Seeds,
    Trained,
    joined_profile,
)
from svc.model.ranking.rerank import CompareItems, Steps, result_of
from svc.model.recommenders.base import Scorer, Side, rank_in_groups
from svc.model.recommenders.popularity import by_count, first_of
from svc.model.recommenders.users import UserScorer
from svc.model.user_ranker import UserRanker, owners
from svc.names import Order

Features = Mapping[str, object]
MIN_HISTORY_OF_LIFT = 5
"""The least number of items in the history of a user ranked by lift, unless a request gives another number.

Lift misleads for shorter histories.
"""
PLACED_AT_ONCE = 256
"""The number of new items that are encoded before their vectors are computed together. Bounds memory."""


@dataclass(eq=False, repr=False, kw_only=True)
class Model(Stored):
    """The content of an artifact's payload.

    `scorer` answers queries for training users. If `cold` is present, it answers queries for all other users, by
    features or seeds.

    Call `ready` before the first query. `ready`, `measure_users` and `serve_users` change the model, so call them
    before several threads use it. All other methods may run in several threads at once.
    """

    user_ids: IdTable
    item_ids: IdTable
    history: History
    scorer: Scorer
    features: FeatureState | None
    cold: Scorer | None = None
    cold_recency: float = 0.0
    """The recency (see `History`) by which `cold` weighs histories. Stored if above 0.

    It is used if `history` has `recency_beside`. Otherwise `cold` uses the recency of `history`.
    """
    hidden: History | None = None
    """The items that must not be shown to each user. Stored only if the training data has such items.

    An item with a value of 1 is hidden permanently. Below 1, it comes back if a request includes seen items.
    """
    repeats: bool = False
    """Whether users get items that they have chosen before, unless a request says otherwise. Stored if true."""
    popularity: NDArray[np.float64] | None = None
    """Recent popularity of each item, (n_items,). None: popularity is the number of users of the item."""
    hidden_new: History | None = None
    """Hidden items that `item_ids` lacks, because they occur only in hidden rows of the training data.

    Columns are rows of `hidden_new_ids`.
    """
    hidden_new_ids: IdTable | None = None
    hidden_of_others: History | None = None
    """The items that must not be shown to users who are not in `user_ids`, because all their rows are hidden.

    Rows are those of `other_user_ids`. Columns from `n_items` on are new items, in the rows of `hidden_new_ids`.
    """
    other_user_ids: IdTable | None = None
    ranker: PageRanker | None = None
    """Reorders the best items that `scorer` ranks for a user. Stored if the model has a ranker."""
    user_moments: NDArray[np.float64] | None = field(init=False, default=None)
    """Mean and deviation of each user's scores of all items, (2, n_users). Set by `measure_users`."""
    _users: UserRanker | None = field(init=False, default=None)

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def reads_characters(self) -> bool:
        """Return whether encoding the features of a request may take milliseconds."""
        return any(encoder.reads_characters for encoder in self._encoders())

    @property
    def kind(self) -> str:
        """Return the family of the scorer, such as "factors"."""
        return self.scorer.kind

    def ready(self) -> None:
        """Compute the derived data of all parts. Takes up to about a second for a large model."""
        self._queries = QueryBuilder(self.item_ids, self.history)
        self.scorer.ready()
        if self.ranker is not None:
            self.ranker.ready()
        for encoder in self._encoders():
            encoder.ready()
        if self.cold is not None:
            self.cold.ready()

    def measure_users(self) -> None:
        """Compute the mean and deviation of each user's scores and store them, in 16 bytes a user.

        This scores all items for each user. Afterwards `serve_users` takes 0.2 s for 100,000 users.

        Nothing is stored for factor models, whose moments have a closed form, or for models that rank all users alike.
        """
        if isinstance(self.scorer, UserScorer) and self.scorer.sums_history:
            self.user_moments = np.array(self.scorer.moments_of_users(self.history))

    def serve_users(self) -> None:
        """Compute the data that ranking users for an item needs.

        Until this call, `require_users` raises UsersNotServed. For 100,000 users the call takes 0.1 to 0.2 s, or about
        10 s if the moments of the users have no closed form and `measure_users` was not called.
        """
        moments = None if self.user_moments is None else (self.user_moments[0], self.user_moments[1])
        self._users = UserRanker(self.scorer, self.history, self.hidden, self._embedder, moments)

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
        dislikes: Sequence[Interaction] = (),
    ) -> Prepared:
        """Return the query for a user. The profile of a known `user_id` is the training history.

        - `user_features`: the features of the user, for a cold start. They are not used if the training history is
          used.
        - `history`: items that are added to the history of a known user, or replace it with `replace`. If none of them
          is known, the training history stays. For an unknown user they are the whole history. Unknown items are
          ignored. If an unknown user's history has new items and no known ones, their features describe the user.
        - `include_seen`: whether items of these histories may be recommended. None: as the model was trained. True also
          allows the user's hidden items with a value below 1.
        - `dislikes`: items that are never recommended. If the scorer reads dislikes, they change the scores of other
          items, too. Dislikes alone are not enough for a profile.
        - `fallback`: whether a user without a profile gets the most chosen items.

        Raises UnknownUser if there is no profile and no `fallback`. Raises FeaturesNotSupported and
        FeatureValueUnusable for `user_features`.
        """
        user = -1 if user_id is None else self.user_ids.index(user_id)
        hidden, hidden_new = self._hidden_from(user, user_id, brings_back=include_seen is True)
        include_seen = self.repeats if include_seen is None else include_seen
        given, against = self._queries.given(history), self._queries.resolve_dislikes(dislikes, restriction.new)
        if dislikes:
            exclude_items = [*exclude_items, *(dislike.item_id for dislike in dislikes)]
        restriction, unknown = self._queries.vary(restriction)
        described = {} if user >= 0 or len(given.columns) else _features_of_new(history, restriction.new)
        own_unknown = [item for item in given.unknown if item not in described]
        given = given._replace(unknown=(*own_unknown, *against.unknown, *unknown))
        query, ignored = self._queries.build(limit, exclude_items, restriction, given, include_seen=include_seen)
        query = query._replace(reordered=self.ranker is not None, seed_features=tuple(described.values()))
        if restriction.new is not None:
            seen = () if include_seen else [interaction.item_id for interaction in history]
            query = with_candidates(query, restriction, [*exclude_items, *seen, *hidden_new])
        query = _without(query, hidden)
        # If a history that replaces has no known item, the user keeps the training history.
        if user >= 0 and (not replace or not len(given.columns)):
            query, profile = self._of_user(query, user, given, against)
            unused = tuple(user_features or ()) if self._encoder("user") is None else ()
            return self._queries.prepared(query, ignored, restriction, profile, unused)
        if self.cold is not None:
            query = query.at_recency(self.cold_recency)
        has_history = bool(len(given.columns) or described)
        if not len(given.columns):
            query = query._replace(reordered=False)  # the ranker was fitted and judged on histories
        if user_features is not None or has_history:
            query = _with_dislikes(query, self.scorer_of(query), against)
        if user_features is not None:
            vector, others = self._encode("user", user_features)
            profile = "features+history" if has_history else "features"
            query = query._replace(user_features=vector.dense())
            return self._queries.prepared(query, ignored, restriction, profile, others)
        if has_history:
            return self._queries.prepared(query, ignored, restriction, "history")
        if fallback:
            query = query.of_profile(Seeds(NO_ITEMS, None))
            query = query._replace(popular=True, rules=restriction.rules, new=None, reordered=False)
            return self._queries.prepared(query, ignored, restriction, "popular")
        if history:
            words = "nothing is known of this user: no item of the history is in the training data"
            raise UnknownUser(f"{words}; fallback: popular answers anyway")
        if dislikes and user_id is None:
            raise UnknownUser(
                "nothing is known of this user: dislikes are not a profile; give user_id, history or fallback"
            )
        if self._encoder("user") is None:
            raise UnknownUser(UnknownUser.without_features)
        raise UnknownUser

    def prepare_popular(self, *, limit: int, restriction: Restriction) -> Prepared:
        """Return the query for the most chosen items of the training data.

        It uses no pins, no variation and no new items of the `restriction`.
        """
        query, ignored = self._queries.build(limit, (), restriction)
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
        new: NewItems | None = None,
    ) -> Prepared:
        """Return the query for items related to the seeds. It treats the seeds as the history of an unknown user.

        `item_features` are the features of one unknown item, or a mapping from item ids to features. A known item in
        the mapping is a seed, and its features are ignored. A seed among the `new` items has the features in their
        list, unless the mapping has others. Other unknown seeds are left out. `user_features` are a prior beside the
        seeds.

        Raises UnknownSeedItems if no seed is left. Raises FeaturesNotSupported and FeatureValueUnusable.
        """
        described = _by_item(item_features)
        seeds = self._queries.columns([*seed_items, *(item for item in described if item is not None)])
        ignored: dict[str, None] = {}
        unseen = []
        for item, features in described.items():
            if item is None or self.item_ids.index(item) < 0:
                vector, others = self._encode("item", features)
                unseen.append(vector)
                ignored |= dict.fromkeys(others)
        if new is not None:
            unseen += new.describe([item for item in dict.fromkeys(seed_items) if item not in described]).values()
        prior = None
        if user_features is not None:
            encoded, others = self._encode("user", user_features)
            prior = encoded.dense()
            ignored |= dict.fromkeys(others)
        if not len(seeds) and not unseen:
            if self._encoder("item") is not None:
                raise UnknownSeedItems
            raise UnknownSeedItems(UnknownSeedItems.without_features)
        query, ignored_items = self._queries.build(limit, exclude_items, restriction)
        query = query._replace(seeds=seeds, seed_features=tuple(unseen), user_features=prior)
        return self._queries.prepared(query, ignored_items, restriction, None, tuple(ignored))

    def prepare_users(
        self,
        *,
        item_id: str | None,
        item_features: Features | None,
        limit: int,
        offset: int = 0,
        order: Order = "score",
        min_history: int | None = None,
        include_users: Sequence[str] | None = None,
        exclude_users: Sequence[str] = (),
        include_seen: bool | None = None,
    ) -> Prepared:
        """Return the query that ranks users for an item, which a known `item_id` or `item_features` describe.

        Only users with at least `min_history` items are ranked. None: MIN_HISTORY_OF_LIFT for the order `lift`, else 1.

        Raises UsersNotServed, UnknownSeedItems, FeaturesNotSupported and FeatureValueUnusable.
        """
        users = self.require_users()
        column = -1 if item_id is None else self.item_ids.index(item_id)
        vector, ignored, exclude = None, tuple[str, ...](), self._rows(exclude_users)
        if column < 0:
            if item_features is None:
                raise UnknownSeedItems(UnknownSeedItems.unknown_item)
            encoded, ignored = self._encode("item", item_features)
            vector = users.vector_of(encoded)
            if item_id is not None and self.hidden_new is not None and self.hidden_new_ids is not None:
                hiding = owners(self.hidden_new, self.hidden_new_ids.index(item_id), float(include_seen is True))
                exclude = np.concatenate([exclude, hiding])
        audience = Audience(
            column,
            vector,
            order,
            min_history=(MIN_HISTORY_OF_LIFT if order == "lift" else 1) if min_history is None else min_history,
            include=None if include_users is None else self._rows(include_users),
            exclude=exclude,
            brings_back=include_seen is True,
        )
        query = Query(limit + offset, offset=offset, audience=audience)
        query = query._replace(include_seen=self.repeats if include_seen is None else include_seen)
        return Prepared(query, ignored, offset=offset)

    @property
    def ranks_users(self) -> bool:
        """Return whether `serve_users` was called."""
        return self._users is not None

    @property
    def can_rank_users(self) -> bool:
        """Return whether `require_users` returns a ranker."""
        return self._users is not None and self._users.can_rank

    def require_users(self) -> UserRanker:
        """Return the ranker of users for an item.

        Raises UsersNotServed before `serve_users`, and for a model with the same scores for every user.
        """
        if self._users is None:
            raise UsersNotServed
        if not self._users.can_rank:
            raise UsersNotServed(UsersNotServed.template.format(kind=self.kind))
        return self._users

    def _rows(self, users: Sequence[str]) -> NDArray[np.int32]:
        rows = self.user_ids.indices(users)
        return rows[rows >= 0]

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """Return one ranking per query, in order. A ranking is empty if no item may be recommended, or no user named.

        A ranking has the same bits in any batch. Long array operations release the GIL.
        """
        if not any(query.rules or query.explain or query.popular or query.audience for query in queries):
            return self._rank_by_score(queries)
        if any(query.audience for query in queries):
            return [self.require_users().rank(query) if query.audience else self.rank([query])[0] for query in queries]
        ranked = self._rank_unarranged([candidate_query(query, self.n_items) for query in queries])
        return [result_of(self._arrange(query, ranking)) for query, ranking in zip(queries, ranked, strict=True)]

    def rank_steps(self, query: Query) -> Steps[Ranking]:
        """Return the ranking of `rank`, in steps between which other queries may be ranked."""
        if query.audience:
            return self.rank([query])[0]
        (ranking,) = self._rank_unarranged([candidate_query(query, self.n_items)])
        yield
        return (yield from self._arrange(query, ranking))

    def _arrange(self, query: Query, ranking: Ranking) -> Steps[Ranking]:
        """Apply the rules of the query to the ranking, and add explanations."""
        if query.rules is None and not query.explain:
            return ranking
        scorer, new = self.scorer_of(query), query.new
        ranker = self.ranker if self._is_reordered(query) else None
        similar: CompareItems = scorer.similar
        embedder = None
        if new is not None and self._embedder is not None:
            embedder = self._embedder
            similar = partial(embedder.similar, new=new.items, similar=scorer.similar)
        ranking = yield from apply_rules(query, ranking, self.n_items, similar, self._rank_unarranged)
        ranking = add_reasons(query, ranking, scorer, self.history, self.features, ranker=ranker, embedder=embedder)
        return ranking if embedder is None else with_reason_new(ranking, self.n_items)

    def _rank_unarranged(self, queries: Sequence[Query]) -> list[Ranking]:
        if any(query.popular for query in queries):
            scored = iter(self._rank_by_score([query for query in queries if not query.popular]))
            rankings = [self._most_chosen(query) if query.popular else next(scored) for query in queries]
        else:
            rankings = self._rank_by_score(queries)
        if self._embedder is None or not any(query.new for query in queries):
            return rankings
        return self._embedder.join(queries, rankings, self.scorer_of)

    @cached_property
    def _embedder(self) -> FeatureEmbedder | None:
        return FeatureEmbedder.of(self.cold or self.scorer, self.history, self.cold_recency)

    def new_items(
        self,
        ids: Sequence[str],
        features: Sequence[Features],
        max_share: float | None,
        min_share: float = 0.0,
        *,
        yield_gil: Callable[[], None] = lambda: None,
    ) -> NewItems:
        """Compute vectors from features for the items of a list that the model does not know.

        `ids` and `features` are the columns of the list. `max_share` and `min_share` are those of `NewItems`.

        This is slow for many items, so servers run it in a thread. `yield_gil` is called after each item, and lets
        other threads run.

        Raises FeaturesNotSupported if the model has no item features. Raises FeatureValueUnusable, which names the item
        and its row in the list, from 1.
        """
        encoder = self._encoder("item")
        if encoder is None or self._embedder is None:
            raise FeaturesNotSupported(FeaturesNotSupported.template.format(side="item"))
        unknown = self.unknown(ids).tolist()
        vectors, described = [self._embedder.place(())], list[Encoded]()
        for start in range(0, len(unknown), PLACED_AT_ONCE):
            some = unknown[start : start + PLACED_AT_ONCE]
            encoded = []
            for row in some:
                encoded.append(_encode_row(encoder, ids, features, row))
                yield_gil()
            vectors.append(self._embedder.place(encoded))
            described += encoded
        table = IdTable.from_ids([ids[row] for row in unknown])
        descriptions = Descriptions.of(described)
        return NewItems(table, np.concatenate(vectors), self.n_items, max_share, min_share, descriptions)

    def unknown(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions in `ids` of ids that are not items of the model."""
        return self._queries.unknown(ids)

    def scorer_of(self, query: Query) -> Scorer:
        """Return the scorer that answers `query`: `scorer` for training users, else `cold` if the model has it."""
        if self.cold is None or query.user >= 0 or query.of_trained_user:
            return self.scorer
        return self.cold

    def _rank_by_score(self, queries: Sequence[Query]) -> list[Ranking]:
        """Return the rankings by score. The model's ranker reorders the best items for queries that ask for it."""
        ranker = self.ranker
        if ranker is None:
            return self._by_scorers(queries)
        is_reordered = [self._is_reordered(query) for query in queries]
        least = min(REORDERED, self.n_items)
        asked = [
            query._replace(limit=max(query.limit, least)) if reordered else query
            for query, reordered in zip(queries, is_reordered, strict=True)
        ]
        return [
            ranker.page(query, ranking, self.history) if reordered else ranking
            for query, ranking, reordered in zip(queries, self._by_scorers(asked), is_reordered, strict=True)
        ]

    def _is_reordered(self, query: Query) -> bool:
        """Return whether the ranker reorders the best items. It reads the scores of `scorer`, not of `cold`."""
        return query.reordered and self.scorer_of(query) is self.scorer

    def _by_scorers(self, queries: Sequence[Query]) -> list[Ranking]:
        if self.cold is None:
            return self.scorer.rank(queries, self.history)
        return rank_in_groups(queries, self.scorer_of, lambda part, some: part.rank(some, self.history))

    @cached_property
    def _most_chosen_first(self) -> tuple[NDArray[np.int32], NDArray[Any]]:
        """Return all columns, most chosen first, and the count of each column.

        Counts are `popularity`. If it is None or all zero, they are the numbers of users, because boosts multiply the
        counts and cannot change 0. Ties stand in the order of columns, which trainings sort by number of users.
        """
        counts: NDArray[Any] | None = self.popularity
        if counts is None or not counts.any():
            counts = np.bincount(self.history.columns, minlength=self.n_items)
        return by_count(counts), counts

    def _most_chosen(self, query: Query) -> Ranking:
        order, counts = self._most_chosen_first
        items = first_of(order, query, query.exclude)
        return Ranking(items, counts[items].astype(np.float64), popular=True)

    def _of_user(self, query: Query, user: int, given: Given, against: Given) -> tuple[Query, Profile]:
        """Return the query for a training user, and the kind of its profile.

        `given` are further items of the history, and `against` the dislikes.
        """
        profile: Profile = "user+history" if len(given.columns) else "user"
        query = _with_dislikes(query, self.scorer, against)
        if profile == "user" and not len(query.dislikes) and not (query.explain and self.scorer.explains_by_profile):
            summed = len(self.history.items(user)) if self.scorer.sums_history else 0
            return query._replace(user=user, summed=summed), profile
        query = query.of_profile(joined_profile(self.history, user, given))._replace(of_trained_user=True)
        if self.scorer.feature_dim("user") is not None:
            query = query._replace(trained=Trained(user, joined_profile(self.history, user, NOTHING_GIVEN)))
        return query, profile

    def _hidden_from(
        self, user: int, user_id: str | None = None, *, brings_back: bool = False
    ) -> tuple[NDArray[np.int32], list[str]]:
        """Return the columns and the ids of new items that are hidden from a user.

        `user` is the row of the user, or −1 for a user without a choice, who may have hidden items by the id. With
        `brings_back` return only permanently hidden items.
        """
        if user >= 0:
            columns = _hidden_items(self.hidden, user, brings_back=brings_back)
            new = _hidden_items(self.hidden_new, user, brings_back=brings_back)
        else:
            others = self.other_user_ids
            other = -1 if user_id is None or others is None else others.index(user_id)
            both = NO_ITEMS if other < 0 else _hidden_items(self.hidden_of_others, other, brings_back=brings_back)
            columns, new = both[both < self.n_items], both[both >= self.n_items] - self.n_items
        return columns, [] if self.hidden_new_ids is None else [self.hidden_new_ids.at(row) for row in new.tolist()]

    def known_user(self, user: int, *, limit: int, restriction: Restriction = UNRESTRICTED) -> Query:
        """Return the query for the training user in row `user`, as from a request that has only a user id."""
        query, _ = self._queries.build(limit, (), restriction, include_seen=self.repeats)
        hidden, hidden_new = self._hidden_from(user)
        if restriction.new is not None:
            query = with_candidates(query, restriction, hidden_new)
        return _without(query._replace(user=user, reordered=self.ranker is not None), hidden)

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


def _features_of_new(history: Sequence[Interaction], new: NewItems | None) -> dict[str, Encoded]:
    """Return the features of the new items of a history, by id."""
    return {} if new is None else new.describe([item.item_id for item in history])


def _encode_row(encoder: SideEncoder, ids: Sequence[str], features: Sequence[Features], row: int) -> Encoded:
    """Encode the features in a row of a list. Raises FeatureValueUnusable, which names the row and the item."""
    try:
        return encoder.encode_sparse(features[row])[0]
    except FeatureValueUnusable as error:
        raise FeatureValueUnusable(f"data row {row + 1}, item {ids[row]!r}: {error.message}") from None


def _without(query: Query, items: NDArray[np.int32]) -> Query:
    """Return the query without the columns `items`."""
    return query._replace(exclude=np.union1d(query.exclude, items).astype(np.int32)) if len(items) else query


def _hidden_items(hidden: History | None, user: int, *, brings_back: bool) -> NDArray[np.int32]:
    """Return the columns in a row of `hidden`. With `brings_back` return only permanently hidden columns."""
    if hidden is None:
        return NO_ITEMS
    items, values = hidden.items(user), hidden.values(user)
    return items[values >= 1] if brings_back and values is not None else items


def _with_dislikes(query: Query, scorer: Scorer, against: Given) -> Query:
    """Add the dislikes to the query if `scorer`, which answers the query, reads dislikes."""
    if not len(against.columns) or not scorer.reads_dislikes:
        return query
    weights = np.ones(len(against.columns)) if against.weights is None else against.weights
    return query._replace(dislikes=against.columns, dislike_weights=weights)


def _by_item(item_features: Features | None) -> dict[str | None, Features]:
    """Return the features by item id. The key is None for one item without an id."""
    if item_features is None:
        return {}
    if item_features and all(isinstance(value, Mapping) for value in item_features.values()):
        return {item: features for item, features in item_features.items() if isinstance(features, Mapping)}
    return {None: item_features}
