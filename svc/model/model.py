"""The trained model: it answers queries with rankings."""

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
    UsersNotServed,
)
from svc.model.codec import Stored
from svc.model.columns.feature_values import Encoded
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.features import FeatureState, SideEncoder
from svc.model.final_ranking import add_reasons, apply_rules, candidate_query, with_reason_new
from svc.model.history import History
from svc.model.ids import IdFinder, IdTable
from svc.model.ranker.page_ranker import REORDERED, PageRanker
from svc.model.ranking.new_items import Descriptions, NewItems
from svc.model.ranking.query import (
    NO_ITEMS,
    EventKind,
    Query,
    Ranking,
)
from svc.model.ranking.rerank import CompareItems
from svc.model.ranking.steps import Steps, result_of
from svc.model.recommenders.base import Scorer, Side, rank_in_groups
from svc.model.recommenders.popularity import by_count, first_of
from svc.model.recommenders.users import UserScorer
from svc.model.user_ranker import UserRanker

Features = Mapping[str, object]
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
    _events: tuple[EventKind, ...] = field(init=False, default=())
    _users: UserRanker | None = field(init=False, default=None)

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def events(self) -> tuple[EventKind, ...]:
        """Return the events of the training data that have a weight. They are known if `describe_events` was called."""
        return self._events

    def describe_events(self, described: Sequence[Mapping[str, Any]]) -> None:
        """Set `events` to those of an artifact's header."""
        self._events = tuple(EventKind(**{name: row[name] for name in EventKind._fields}) for row in described)

    @property
    def kind(self) -> str:
        """Return the family of the scorer, such as "factors"."""
        return self.scorer.kind

    def ready(self) -> None:
        """Compute the derived data of all parts. Takes up to about a second for a large model."""
        self.finder = IdFinder(self.item_ids)
        encoders = [encoder for encoder in (self.encoder("user"), self.encoder("item")) if encoder is not None]
        # Encoding the features of a request may then take milliseconds.
        self.reads_characters = any(encoder.reads_characters for encoder in encoders)
        for part in (self.scorer, self.ranker, *encoders, self.cold):
            if part is not None:
                part.ready()

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

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """Return one ranking per query, in order. A ranking is empty if no item may be recommended, or no user named.

        A ranking has the same bits in any batch. Long array operations release the GIL.
        """
        # Plain queries skip all steps below.
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
        encoder = self.encoder("item")
        if encoder is None or self._embedder is None:
            raise FeaturesNotSupported(FeaturesNotSupported.template.format(side="item"))
        unknown = self.unknown(ids).tolist()
        # Begins with no vectors, so that a list without new items can be concatenated.
        vectors, described = [self._embedder.place(())], list[Encoded]()
        for start in range(0, len(unknown), PLACED_AT_ONCE):
            some = unknown[start : start + PLACED_AT_ONCE]
            encoded = []
            for row in some:
                encoded.append(_encode_row(encoder, ids, features, row))
                yield_gil()  # encoding long texts would otherwise stop the event loop
            vectors.append(self._embedder.place(encoded))
            described += encoded
        table = IdTable.from_ids([ids[row] for row in unknown])
        descriptions = Descriptions.of(described)
        return NewItems(table, np.concatenate(vectors), self.n_items, max_share, min_share, descriptions)

    def unknown(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Return the positions in `ids` of ids that are not items of the model."""
        return np.flatnonzero(self.finder.indices(ids) < 0)

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
        # The ranker reorders the same items whatever the limit, so that pages of different lengths agree.
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

    def hidden_from(
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

    def encoder(self, side: Side) -> SideEncoder | None:
        """Return the encoder of the features of users or items, or None without such features."""
        if self.features is None:
            return None
        return self.features.user if side == "user" else self.features.item

    def encode(self, side: Side, features: Features) -> tuple[Encoded, tuple[str, ...]]:
        """Return the encoded features, and the names of the unused ones.

        Raises FeaturesNotSupported for a model without such features, and FeatureValueUnusable.
        """
        encoder = self.encoder(side)
        if encoder is None:
            raise FeaturesNotSupported(FeaturesNotSupported.template.format(side=side))
        return encoder.encode_sparse(features)


def _encode_row(encoder: SideEncoder, ids: Sequence[str], features: Sequence[Features], row: int) -> Encoded:
    """Encode the features in a row of a list. Raises FeatureValueUnusable, which names the row and the item."""
    try:
        return encoder.encode_sparse(features[row])[0]
    except FeatureValueUnusable as error:
        raise FeatureValueUnusable(f"data row {row + 1}, item {ids[row]!r}: {error.message}") from None


def _hidden_items(hidden: History | None, user: int, *, brings_back: bool) -> NDArray[np.int32]:
    """Return the columns in a row of `hidden`. With `brings_back` return only permanently hidden columns."""
    if hidden is None:
        return NO_ITEMS
    items, values = hidden.items(user), hidden.values(user)
    return items[values >= 1] if brings_back and values is not None else items
