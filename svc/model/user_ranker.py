"""Rank the training users of a model for an item, among those who may be named."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from svc.errors import UsersNotServed
from svc.model.columns.feature_values import Encoded
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.history import History
from svc.model.ranking.query import Audience, Query, Ranking
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.users import ByColumn, Moments, UserScorer, UserSummary, best_users


class UserRanker:
    """Ranker of users: by the scorer for a known item, and by the embedder for a new one."""

    def __init__(
        self,
        scorer: Scorer,
        history: History,
        hidden: History | None,
        embedder: FeatureEmbedder | None,
        summaries: tuple[UserSummary, UserSummary] | None,
    ) -> None:
        self._scorer = scorer
        self._history = history
        self._hidden = hidden
        self._embedder = embedder
        self._summaries = summaries
        self._owners = ByColumn.of(history.columns, scorer.n_items)

    @classmethod
    def of(
        cls,
        scorer: Scorer,
        history: History,
        hidden: History | None,
        embedder: FeatureEmbedder | None,
        moments: Moments | None = None,
    ) -> UserRanker:
        """Summarize the users.

        Without `moments` takes as long as scoring all items for each, unless the scorer is a factor model.
        """
        summaries = None
        if isinstance(scorer, UserScorer):
            own = scorer.summary_of_users(history, moments)
            part = None if embedder is None else embedder.of_users
            is_same = part is None or embedder is None or embedder.answers(Query(1, 0), scorer)
            summaries = (own, own if is_same or part is None else part.summary_of_users(history))
        return cls(scorer, history, hidden, embedder, summaries)

    @property
    def can_rank(self) -> bool:
        """Return whether the scores of the model differ between users."""
        return self._summaries is not None

    def vector_of(self, features: Encoded) -> NDArray[np.float64]:
        """Return the vector of an item by its features. Raises UsersNotServed if no users have vectors to match."""
        if self._embedder is None or self._embedder.of_users is None:
            raise UsersNotServed(UsersNotServed.without_vectors)
        vector: NDArray[np.float64] = self._embedder.place([features])[0]
        return vector

    def rank(self, query: Query) -> Ranking:
        """Return the rows of the best users for the audience of the query."""
        audience = query.audience
        assert audience is not None and self._summaries is not None, "the model prepares no other query"
        if audience.vector is None:
            assert isinstance(self._scorer, UserScorer), "others have no summary"
            summary = self._summaries[0]
            scores = self._scorer.scores_of_users(audience.column, summary)
        else:
            assert self._embedder is not None and self._embedder.of_users is not None, "it gave the vector"
            summary = self._summaries[1]
            scores = self._embedder.of_users.scores_towards(audience.vector, summary.longest)
        return best_users(scores, audience.order, summary, self._may_be_named(query, audience), query.limit)

    def _may_be_named(self, query: Query, audience: Audience) -> NDArray[np.bool_]:
        """Return whether each user, (n_users,), may be named."""
        wanted: NDArray[np.bool_] = np.diff(self._history.offsets) >= audience.min_history
        if audience.include is not None:
            is_included = np.zeros(len(wanted), dtype=np.bool_)
            is_included[audience.include] = True
            wanted &= is_included
        wanted[audience.exclude] = False
        if audience.column >= 0:
            if not query.include_seen:
                wanted[self._owners.rows(audience.column, self._history.offsets)[0]] = False
            if self._hidden is not None:
                wanted[owners(self._hidden, audience.column, 1.0 if audience.brings_back else 0.0)] = False
        return wanted


def owners(history: History, column: int, least: float = 0.0) -> NDArray[np.intp]:
    """Return the users who have the item with a value of at least `least`."""
    entries = np.flatnonzero(history.columns == column)
    if history.weights is not None:
        entries = entries[history.weights[entries] >= least]
    return np.searchsorted(history.offsets, entries, side="right") - 1
