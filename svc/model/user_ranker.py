"""Rank the training users of a model for an item, without the users whom the query leaves out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from svc.errors import UsersNotServed
from svc.model.columns.feature_values import Encoded
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.history import History
from svc.model.ranking.query import Audience, Query, Ranking
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.users import ByColumn, Moments, UserScorer, UserScores, best_users


class UserRanker:
    """Ranks the training users for an item, by the scorer for a known item and by the embedder for a new item."""

    def __init__(
        self,
        scorer: Scorer,
        history: History,
        hidden: History | None,
        embedder: FeatureEmbedder | None,
        moments: Moments | None = None,
    ) -> None:
        """Prepare the scores of users, and compute the `moments` of these scores unless they are given.

        `hidden` are the items that must not be shown to a user, if the model has such items.
        """
        self._history = history
        self._hidden = hidden
        self._embedder = embedder
        # An index, because otherwise all histories are read for each item.
        self._owners = ByColumn.of(history.columns, scorer.n_items)
        self._of_columns: tuple[Callable[[int], UserScores], Moments] | None = None
        self._of_vectors: tuple[Callable[[NDArray[np.float64]], UserScores], Moments] | None = None
        if isinstance(scorer, UserScorer):
            moments = scorer.moments_of_users(history) if moments is None else moments
            self._of_columns = scorer.scores_of_users(history), moments
            part = None if embedder is None else embedder.of_users
            if part is not None and embedder is not None:
                # New items are scored by the embedder. Its scores have other moments, unless it is the scorer itself.
                is_scorer = embedder.answers(Query(1, 0), scorer)
                self._of_vectors = part.scores_towards(), moments if is_scorer else part.moments_of_users(history)

    @property
    def can_rank(self) -> bool:
        """Return whether the scores of the model differ between users."""
        return self._of_columns is not None

    def vector_of(self, features: Encoded) -> NDArray[np.float64]:
        """Return the vector of an item by its features, (K,). Raises UsersNotServed if there are no user vectors."""
        if self._embedder is None or self._of_vectors is None:
            raise UsersNotServed(UsersNotServed.without_vectors)
        vector: NDArray[np.float64] = self._embedder.place([features])[0]
        return vector

    def rank(self, query: Query) -> Ranking:
        """Return the best users for the audience of the query. The `items` of the ranking are rows of users."""
        audience = query.audience
        assert audience is not None and self._of_columns is not None, "the model prepares no other query"
        if audience.vector is None:
            scores_of_users, moments = self._of_columns
            scores = scores_of_users(audience.column)
        else:
            assert self._of_vectors is not None, "the embedder gave the vector"
            scores_towards, moments = self._of_vectors
            scores = scores_towards(audience.vector)
        return best_users(scores, audience.order, moments, self._may_be_named(query, audience), query.limit)

    def _may_be_named(self, query: Query, audience: Audience) -> NDArray[np.bool_]:
        """Return whether each user may be in the ranking, (n_users,)."""
        wanted: NDArray[np.bool_] = np.diff(self._history.offsets) >= audience.min_history
        if audience.include is not None:
            is_included = np.zeros(len(wanted), dtype=np.bool_)
            is_included[audience.include] = True
            wanted &= is_included
        # After `include`, so that a user in both lists is left out.
        wanted[audience.exclude] = False
        if audience.column >= 0:
            if not query.include_seen:
                rows, entries = self._owners.rows(audience.column, self._history.offsets)
                is_seen = self._history.is_seen
                wanted[rows if is_seen is None else rows[is_seen[entries]]] = False
            if self._hidden is not None:
                wanted[owners(self._hidden, audience.column, 1.0 if audience.brings_back else 0.0)] = False
        return wanted


def owners(history: History, column: int, least: float = 0.0) -> NDArray[np.intp]:
    """Return the rows of the users who have the item with a value of at least `least`."""
    entries = np.flatnonzero(history.columns == column)
    if history.weights is not None:
        entries = entries[history.weights[entries] >= least]
    return np.searchsorted(history.offsets, entries, side="right") - 1
