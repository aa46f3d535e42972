"""Queries to a model and the rankings it returns, in rows and columns of the training matrix.

A history enters a query as a profile, which has distinct item columns and their weights. How it is made depends on
whether the model's histories are ordered, and on recency (see `svc.model.history`):

- If histories are not ordered, `settle_history` sorts the columns of a request's history and adds up the weights of
  repeated items.
- If they are ordered, the history of a request keeps its order until `profile_of` or `joined_profile` weighs it by
  recency, alone or after the history of a training user.
- For a cold-start part with a recency or weights of its own, the profile also has its weights before recency and the
  positions.
- If parts of the model read other weights than the model (see `History.at_weighing`), the profile has these too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.explain import Because
from svc.model.history import History, decay_weights, order_history
from svc.model.ranking.item_sets import ItemSet, added_up
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.rerank import Rules
from svc.names import Order

OtherWeights = tuple[NDArray[np.float64] | None, ...]
Unweighed = tuple[NDArray[np.float64] | None, NDArray[np.intp]]
"""Values of seeds (None: all are 1) and positions of seeds, before they are weighed by recency."""
NO_ITEMS: NDArray[np.int32] = np.empty(0, dtype=np.int32)
NO_POSITIONS: NDArray[np.intp] = np.empty(0, dtype=np.intp)


class NewCandidates(NamedTuple):
    """The new items that may be recommended for a query. `rows`, (c,) int32, are their rows in `items`, ascending."""

    items: NewItems
    rows: NDArray[np.int32]


class Audience(NamedTuple):
    """An item for which training users are ranked, and the users who may be named.

    The item is a `column`, or the `vector`, (K,), of an item that training never saw. Users with fewer than
    `min_history` items and the rows of `exclude` are left out. With `include`, only its rows are ranked. Users who have
    the item are left out unless the query includes seen items. Users from whom the item is hidden are named only with
    `brings_back`, and never if it is hidden permanently.
    """

    column: int = -1
    vector: NDArray[np.float64] | None = None
    order: Order = "score"
    min_history: int = 1
    include: NDArray[np.int32] | None = None
    exclude: NDArray[np.int32] = NO_ITEMS
    brings_back: bool = False


class Query(NamedTuple):
    """One ranking to compute, for a user whom `user`, seeds or `user_features` describe.

    | field | meaning |
    |---|---|
    | `limit` | the most items to return |
    | `user` | a row of the training matrix, with its history as profile |
    | `seeds`, `seed_features` | item columns, (s,) int32, and features of unseen items: the history of an unseen user |
    | `user_features` | an encoded vector, (user dim,) float64: a cold start, or a prior beside seeds |
    | `seed_weights` | values of `seeds`, (s,) float64; None: all are 1 |
    | `seed_values` | values of `seeds` before recency, (s,) float64, for a ranker that reads them; None: all are 1 |
    | `other_weights` | values of `seeds` for parts that read other weights (`at_weighing`); empty: none do |
    | `seeds_beside` | values and positions of `seeds`, if the cold-start part weighs by its own (`at_recency`) |
    | `exclude` | item columns that must not be recommended, (e,) int32 |
    | `not_seen` | the columns of `seeds` that may be recommended, because no event of them hides the item, (n,) int32 |
    | `include_seen` | whether the seeds and the history of `user` may be recommended |
    | `allowed` | the only items to rank |
    | `popular` | rank the most chosen items of the training data, the same for every user |
    | `of_trained_user` | whether the seeds hold the history of a training user |
    | `trained` | this user, if the scorer reads user features, which training kept only in the vector of the user |
    | `rules` | the rules that rerank the items |
    | `explain` | the most reasons for each item from position `offset` on; 0: no reasons |
    | `unordered` | whether the ranking may have any order, because it has all items and the rules select the best |
    | `new` | new items to rank as well; the query then has `rules` |
    | `audience` | rank training users for this item, instead of items |
    | `dislikes`, `dislike_weights` | disliked item columns, (d,) int32, and their weights above 0; not with `user` |
    | `summed` | the length of the history of `user` if scores are sums over that history, for the cost of the query |
    | `reordered` | whether the model's ranker reorders the best items |
    """

    limit: int
    user: int = -1
    seeds: NDArray[np.int32] = NO_ITEMS
    seed_features: tuple[Encoded, ...] = ()
    user_features: NDArray[np.float64] | None = None
    exclude: NDArray[np.int32] = NO_ITEMS
    include_seen: bool = False
    seed_weights: NDArray[np.float64] | None = None
    other_weights: OtherWeights = ()
    allowed: ItemSet | None = None
    popular: bool = False
    of_trained_user: bool = False
    trained: Trained | None = None
    rules: Rules | None = None
    explain: int = 0
    offset: int = 0
    unordered: bool = False
    seeds_beside: Unweighed | None = None
    new: NewCandidates | None = None
    audience: Audience | None = None
    dislikes: NDArray[np.int32] = NO_ITEMS
    dislike_weights: NDArray[np.float64] | None = None
    reordered: bool = False
    summed: int = 0
    not_seen: NDArray[np.int32] = NO_ITEMS
    seed_values: NDArray[np.float64] | None = None

    @property
    def seen_seeds(self) -> NDArray[np.int32]:
        """Return the columns of `seeds` that are left out of the answer, unless seen items are included."""
        return self.seeds[~np.isin(self.seeds, self.not_seen)] if len(self.not_seen) else self.seeds

    @property
    def is_described(self) -> bool:
        """Return whether the query has features of the user or of an item. Only factor models read features."""
        return self.user_features is not None or bool(self.seed_features)

    def concatenate_signed(self) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
        """Return the seeds and their weights, followed by the dislikes with negative weights. None: all are 1."""
        if self.dislike_weights is None:
            return self.seeds, self.seed_weights
        # Dislikes always have weights, so the likes beside them need some, too.
        weights = np.ones(len(self.seeds)) if self.seed_weights is None else self.seed_weights
        return np.concatenate([self.seeds, self.dislikes]), np.concatenate([weights, -self.dislike_weights])

    def at_recency(self, recency: float) -> Query:
        """Return the query with its seeds weighed by `recency`, the recency of the cold-start part.

        Return the query unchanged if this part weighs histories like the model.
        """
        if self.seeds_beside is None:
            return self
        return self._replace(seed_weights=decay_weights(*self.seeds_beside, recency), seeds_beside=None)

    def at_weighing(self, weighing: int) -> Query:
        """Return the query with the weights of its seeds for a part that reads `History.at_weighing(weighing)`."""
        if not weighing or not self.other_weights:
            return self
        query = self._replace(seed_weights=self.other_weights[weighing - 1], other_weights=())
        if self.trained is None:
            return query
        profile = self.trained.profile
        return query._replace(
            trained=self.trained._replace(profile=profile._replace(weights=profile.others[weighing - 1]))
        )

    def of_profile(self, profile: Seeds) -> Query:
        """Return the query with `profile` as its seeds."""
        columns, weights, beside, others, values = profile
        query = self._replace(seeds=columns, seed_weights=weights, seeds_beside=beside, other_weights=others)
        return query._replace(seed_values=values)


class Seeds(NamedTuple):
    """The profile of a history: distinct item columns, (s,), and their weights, (s,). None: all are 1.

    `beside` is set if the cold-start part weighs the items by its own recency or weights. `others` has the weights for
    each of `History.others`. `values`, (s,), are the weights before recency. None: all are 1.
    """

    columns: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    beside: Unweighed | None = None
    others: OtherWeights = ()
    values: NDArray[np.float64] | None = None


class Trained(NamedTuple):
    """The row of a training user, and the profile from which the vector of the user was solved."""

    user: int
    profile: Seeds


class Interaction(NamedTuple):
    """An item that a request names as chosen or disliked, and its weight."""

    item_id: str
    weight: float = 1.0


class EventOfItem(NamedTuple):
    """An item that a request names as chosen by an event, whose weight is multiplied by `weight`."""

    item_id: str
    weight: float
    event: str


class EventKind(NamedTuple):
    """An event of the training data: its weight, and whether it hides its item from the user and was judged."""

    event: str
    weight: float
    seen: bool
    target: bool


class Shown(NamedTuple):
    """An item that a user was shown before, and how often."""

    item_id: str
    times: int = 1


class Given(NamedTuple):
    """The history of a request: columns of its known items, their weights (None: all 1), and its unknown ids.

    Columns are distinct and ascending. If the model's histories are ordered, columns stand oldest first and may repeat.
    `others` has the weights on the scale of each of `History.others`.
    """

    columns: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    unknown: tuple[str, ...]
    others: OtherWeights = ()


NOTHING_GIVEN = Given(NO_ITEMS, None, ())


class Ranking(NamedTuple):
    """Item columns, (k,) int32, by descending score, and their scores, (k,) float64. For an `audience`, rows of users.

    Items of equal scores are ordered by ascending `ties`, (k,). None: by ascending column. Rules may change the order,
    and the ranking of an `unordered` query may have any.

    The scores of a `popular` ranking are counts of choices, not scores of the model. `reasons` name the rules that put
    each item at its position, and are empty if the query has no rules. `because` explains each score, and is empty
    unless requested. `spare` are columns of new items that rank behind the last item, to fill a minimum share.
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float64]
    popular: bool = False
    reasons: tuple[tuple[str, ...], ...] = ()
    because: tuple[Because, ...] = ()
    ties: NDArray[np.int64] | None = None
    spare: NDArray[np.int32] = NO_ITEMS

    def from_place(self, position: int) -> Ranking:
        """Return the ranking from position `position` on, counted from 0."""
        if not position:
            return self
        reasons, because = self.reasons[position:], self.because[position:]
        return Ranking(self.items[position:], self.scores[position:], self.popular, reasons, because)


class Prepared(NamedTuple):
    """A query, and the facts that the answer reports beside the items.

    `ignored_features` are features of the request that were not used. `ignored_items` are unknown ids, and ids of pins
    that may not be shown. `ignored_pins` are these pins, each with the reason. `profile` names the sources of the
    user's profile, or is None for queries that are not about a user.
    """

    query: Query
    ignored_features: tuple[str, ...]
    ignored_items: tuple[str, ...] = ()
    profile: Profile | None = None
    ignored_pins: tuple[tuple[str, PinFault], ...] = ()


NOTHING_RANKED = Ranking(NO_ITEMS, np.empty(0))
NOTHING_MORE = Prepared(Query(limit=0), ())
"""The `Prepared` of an answer that has no fields besides its items."""
PinFault = Literal["unknown", "excluded", "seen", "filtered"]
Profile = Literal["user", "user+history", "history", "features", "features+history", "popular"]


def settle_history(given: Given, history: History) -> Given:
    """Return `given` with distinct, ascending columns, or with its items in order for a model of ordered histories."""
    # An ordered history is not yet joined with that of the user, so repeated items cannot be added up here.
    if history.is_ordered and len(given.columns):
        return given
    columns, weights = added_up(given.columns, given.weights)
    others = tuple(added_up(given.columns, own)[1] for own in given.others)
    return given._replace(columns=columns, weights=weights, others=others)


def profile_of(given: Given, history: History) -> Seeds:
    """Return the profile of a request's history alone. `given` comes from `settle_history`."""
    columns, weights = given.columns, (given.weights, *given.others)
    if not len(columns):
        return Seeds(columns, given.weights)
    if not history.is_ordered:
        return _seeds(columns, weights, NO_POSITIONS, history)
    return _seeds(*order_history(columns, weights, np.arange(len(columns))), history)


def joined_profile(history: History, user: int, given: Given) -> Seeds:
    """Return the profile of a training user's history, followed by a request's history. `given` as in `profile_of`."""
    own_columns = history.items(user)
    values = [history.at_weighing(weighing).values(user) for weighing in range(1 + len(history.others))]
    weights = [
        _joined(own, len(own_columns), more, len(given.columns))
        for own, more in zip_longest(values, (given.weights, *given.others))
    ]
    columns = np.concatenate([own_columns, given.columns])
    if not history.is_ordered:
        settled = settle_history(Given(columns, weights[0], (), tuple(weights[1:])), history)
        return _seeds(settled.columns, (settled.weights, *settled.others), NO_POSITIONS, history)
    # Every item of the request counts as later than the user's own, each at a time of its own.
    times = np.concatenate([history.times(user), len(own_columns) + 1 + np.arange(len(given.columns))])
    return _seeds(*order_history(columns, weights, times), history)


def _joined(
    values: NDArray[np.float32] | None, n_values: int, more: NDArray[np.float64] | None, n_more: int
) -> NDArray[np.float64] | None:
    if values is None and more is None:
        return None
    # One of the two histories has weights. Those of the other are 1.
    own = np.ones(n_values) if values is None else values.astype(np.float64)
    return np.concatenate([own, np.ones(n_more) if more is None else more])


def _seeds(
    columns: NDArray[np.int32],
    weights: Sequence[NDArray[np.float64] | None],
    positions: NDArray[np.intp],
    history: History,
) -> Seeds:
    """Return the profile of distinct `columns`, with the `weights` of each weighing decayed by the `positions`."""
    own, *others = (decay_weights(own_weights, positions, history.recency) for own_weights in weights)
    beside = None
    if history.recency_beside or history.weighing_beside:
        # Before recency, because the cold-start part weighs by a recency of its own.
        beside = weights[history.weighing_beside], positions
    return Seeds(columns, own, beside, tuple(others), weights[0])
