"""Queries to a model and the rankings it returns, in rows and columns of the training matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.explain import Because
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.rerank import Rules
from svc.model.recency import decayed

Unweighed = tuple[NDArray[np.float64] | None, NDArray[np.intp]]
"""Values of seeds, None where all are 1, and their positions, before the order counts."""
NO_ITEMS: NDArray[np.int32] = np.empty(0, dtype=np.int32)


class NewCandidates(NamedTuple):
    """New items that may come back for a query: their `rows`, (c,) int32, rising."""

    items: NewItems
    rows: NDArray[np.int32]


Order = Literal["score", "lift", "balanced"]


class Audience(NamedTuple):
    """The training users to rank for an item: a column, or the vector, (K,), of an item that training never saw.

    Users with fewer than `min_history` items are left out, and so are those of `exclude`, rows. With `include` only its
    rows are ranked. Users who have the item are left out unless the query includes seen items; those from whom it is
    hidden come back with `brings_back` alone, and never where it is hidden for good.
    """

    column: int = -1
    vector: NDArray[np.float64] | None = None
    order: Order = "score"
    min_history: int = 1
    include: NDArray[np.int32] | None = None
    exclude: NDArray[np.int32] = NO_ITEMS
    brings_back: bool = False


class Query(NamedTuple):
    """One ranking to compute. Exactly one of `user`, `seeds`/`seed_features` or `user_features` says for whom.

    `user` is a row of the training matrix: its history is the profile. `seeds` are item columns, (s,) int32, and
    `seed_features` describe items never seen: together they are the history of an unseen user. `user_features` is an
    encoded vector, (user dim,) float64: alone a cold start, beside seeds a prior. `seed_weights` are the values of
    `seeds`, (s,) float64, where they are not all 1. With `seed_positions`, (s,), these are the values before the order
    of the seeds counts: each part of a blend weighs them by its own recency (see `at_recency`). With
    `seeds_beside`, such values and positions, so does the part beside the scorer. `exclude` are item
    columns that must not come back, (e,) int32; unless `include_seen`, the seeds and the history of `user` must not
    either. With `allowed` only its items are ranked. `limit` is the most items to return. A `popular` query asks for
    the most chosen items of the training data, the same for every user. `of_trained_user` marks seeds that hold the
    history of a training user. `rules` rerank the items. With `explain`, each item from position `offset` on gets at
    most that many reasons. `dislikes`, (d,) int32, are item columns that count `dislike_weights`, (d,), above 0,
    against others; a query with them has no `user`. The ranking of an `unordered` query may come in any order: it is
    asked for all items, of which its rules select the best. With `new`, new items are ranked too; the query then has
    `rules`. With an `audience` training users are ranked, not items: the ranking holds their rows.
    The best items of a `reordered` query stand in the order of the model's ranker.
    """

    limit: int
    user: int = -1
    seeds: NDArray[np.int32] = NO_ITEMS
    seed_features: tuple[Encoded, ...] = ()
    user_features: NDArray[np.float64] | None = None
    exclude: NDArray[np.int32] = NO_ITEMS
    include_seen: bool = False
    seed_weights: NDArray[np.float64] | None = None
    allowed: ItemSet | None = None
    popular: bool = False
    of_trained_user: bool = False
    rules: Rules | None = None
    explain: int = 0
    offset: int = 0
    unordered: bool = False
    seed_positions: NDArray[np.intp] | None = None
    seeds_beside: Unweighed | None = None
    new: NewCandidates | None = None
    audience: Audience | None = None
    dislikes: NDArray[np.int32] = NO_ITEMS
    dislike_weights: NDArray[np.float64] | None = None
    reordered: bool = False

    def signed(self) -> tuple[NDArray[np.int32], NDArray[np.float64] | None]:
        """The seeds with their weights, and behind them the dislikes with theirs below 0; None: all are 1."""
        if self.dislike_weights is None:
            return self.seeds, self.seed_weights
        weights = np.ones(len(self.seeds)) if self.seed_weights is None else self.seed_weights
        return np.concatenate([self.seeds, self.dislikes]), np.concatenate([weights, -self.dislike_weights])

    def at_recency(self, recency: float) -> Query:
        """The query with its seeds weighed by the recency of the part that answers it."""
        values, positions = self.seeds_beside or (self.seed_weights, self.seed_positions)
        if positions is None:
            return self
        return self._replace(seed_weights=decayed(values, positions, recency), seed_positions=None, seeds_beside=None)

    def of_profile(self, profile: Seeds) -> Query:
        """The query with the seeds of a history."""
        columns, weights, positions, beside = profile
        return self._replace(seeds=columns, seed_weights=weights, seed_positions=positions, seeds_beside=beside)


class Seeds(NamedTuple):
    """Columns, (s,), and their weights, (s,); None: all are 1. `positions`, (s,), are there where parts weigh.

    `beside` is there for the part beside the scorer where it weighs by another recency.
    """

    columns: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    positions: NDArray[np.intp] | None = None
    beside: Unweighed | None = None


class Interaction(NamedTuple):
    """An item that a request names as chosen or disliked, and how much that counts."""

    item_id: str
    weight: float = 1.0


class Shown(NamedTuple):
    """An item that a user was shown before, and how often."""

    item_id: str
    times: int = 1


class Variation(NamedTuple):
    """What makes a page differ from earlier ones: the items `shown` before, and a `seed`.

    Their weights, `rotation` and `shuffle`, are those of a `Rotation`.
    """

    shown: Sequence[Shown]
    rotation: float
    seed: str | None
    shuffle: float


class Given(NamedTuple):
    """The history of a request: columns of its known items, their weights (None: all 1), and ids that are unknown.

    Columns are distinct and rise; for a model that weighs by order, they stand oldest first and may repeat.
    """

    columns: NDArray[np.int32]
    weights: NDArray[np.float64] | None
    unknown: tuple[str, ...]


NOTHING_GIVEN = Given(NO_ITEMS, None, ())


class Restriction(NamedTuple):
    """The items that may answer a request: those of `allowed` that are also in `include_items`; None means all.

    The answer leaves the first `offset` items of the ranking out. `rules` and `pins`, ids with their places, arrange
    it, as `variation` does, and `explain` is the number of reasons for each item. With `new` items the sets of
    `allowed` and of the rules have columns for these too.
    """

    offset: int = 0
    include_items: Sequence[str] | None = None
    allowed: ItemSet | None = None
    rules: Rules | None = None
    pins: Sequence[tuple[str, int]] = ()
    explain: int = 0
    new: NewItems | None = None
    variation: Variation | None = None


UNRESTRICTED = Restriction()


class Ranking(NamedTuple):
    """Item columns, (k,) int32, by descending score, and their scores, (k,) float64. Ties: lower column first.

    The scores of a `popular` ranking are what choices count, not scores of the model. `reasons` name the rules that put
    each item at its position; `because` explains each score. Both are empty unless asked for. `ties`, (k,), rise among
    items of equal scores; None: columns do.
    """

    items: NDArray[np.int32]
    scores: NDArray[np.float64]
    popular: bool = False
    reasons: tuple[tuple[str, ...], ...] = ()
    because: tuple[Because, ...] = ()
    ties: NDArray[np.int64] | None = None
    spare: NDArray[np.int32] = NO_ITEMS

    def from_place(self, position: int) -> Ranking:
        """The ranking from position `position` on."""
        if not position:
            return self
        reasons, because = self.reasons[position:], self.because[position:]
        return Ranking(self.items[position:], self.scores[position:], self.popular, reasons, because)


class Prepared(NamedTuple):
    """A query, and what its answer says in addition to the items.

    `ignored_features` are keys of the request that named no declared column, `ignored_items` ids that the model does
    not know, and those of pins that may not be shown; `ignored_pins` says why of each of these. `profile` says what the
    ranking goes by. The answer begins at the place `offset` of the ranking.
    """

    query: Query
    ignored_features: tuple[str, ...]
    ignored_items: tuple[str, ...] = ()
    profile: Profile | None = None
    offset: int = 0
    ignored_pins: tuple[tuple[str, PinFault], ...] = ()


PinFault = Literal["unknown", "excluded", "seen", "filtered"]
Profile = Literal["user", "user+history", "history", "features", "features+history", "popular"]
