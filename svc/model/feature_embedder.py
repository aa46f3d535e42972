"""Embed new items by their features, and place them in the ranking of the model's items.

| symbol | meaning |
|---|---|
| candidate | an item of the model that may come back for a query |
| new item | one that training never saw; see `new_items` |
| rank | of a new item: how many candidates the embedder scores at least as high for this user |

A new item of rank r stands directly before the candidate at position r of the final ranking and carries its score. A
new item behind the last candidate carries the score of the last candidate. If the embedder itself makes the ranking,
each new item carries its own score, which leads to the same places. If a minimum share of new items is due (see
`rerank.Share`), more new items are needed than those places give: these are the spare ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranking.item_sets import best
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import NOTHING_GIVEN, NewCandidates, Query, Ranking, joined_profile
from svc.model.ranking.rerank import Items, Similar
from svc.model.recommenders.base import Scorer, cosines
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import IALSScorer

Vectors = NDArray[np.float64]
Scores = NDArray[np.float64]


class FeatureEmbedder:
    """The part of a model that learned from features of items, and the recency by which it weighs histories."""

    def __init__(self, scorer: IALSScorer, history: History, recency: float) -> None:
        self._scorer = scorer
        self._history = history
        self._recency = recency

    @classmethod
    def of(cls, scorer: Scorer, history: History, recency: float) -> FeatureEmbedder | None:
        """Return the part for `scorer` or its factor part, or None if neither reads item features."""
        part = scorer
        if isinstance(scorer, BlendScorer) and scorer.factors is not None:
            part, recency = scorer.factors, scorer.recencies[0] if scorer.recencies else recency
        if not isinstance(part, IALSScorer) or part.feature_dim("item") is None:
            return None
        return cls(part, history, recency)

    def place(self, rows: Sequence[Encoded]) -> Vectors:
        """Return vectors, (m, K), of items by their encoded features."""
        if not rows:
            return np.empty((0, self._scorer.index.factors.shape[1]))
        return self._scorer.least_squares.items_from_features(rows)

    @property
    def of_users(self) -> IALSScorer | None:
        """Return the scorer with the vectors of the training users, or None if only item vectors are stored."""
        return self._scorer if len(self._scorer.users) else None

    def answers(self, query: Query, scorer: Scorer) -> bool:
        """Return whether `scorer`, which answers `query`, ranks by the scores of this embedder."""
        if isinstance(scorer, BlendScorer):
            return scorer.factors is self._scorer and query.is_described
        return scorer is self._scorer

    def query_for(self, query: Query) -> Query:
        """Return the query for this embedder, by the history if the vectors of training users are not stored."""
        if query.user >= 0 and not len(self._scorer.users):
            query = query._replace(user=-1).of_profile(joined_profile(self._history, query.user, NOTHING_GIVEN))
        return query.at_recency(self._recency)

    def vectors(self, queries: Sequence[Query]) -> Vectors:
        """Return vectors, (B, K), of the users of queries made by `query_for`."""
        return self._scorer.vectors(queries)

    def known_scores(self, queries: Sequence[Query], vectors: Vectors) -> list[Scores]:
        """Return for each query the scores of the best candidates of the model, descending."""
        if not queries:
            return []
        rankings = self._scorer.search(queries, vectors, self._history)
        return [np.sort(ranking.scores)[::-1] for ranking in rankings]

    def join(
        self, queries: Sequence[Query], rankings: Sequence[Ranking], scorer_of: Callable[[Query], Scorer]
    ) -> list[Ranking]:
        """Return the rankings with the new items of each query. `rankings` hold the model's items alone."""
        answers = list(rankings)
        numbers = [number for number, query in enumerate(queries) if query.new is not None]
        asked = [self.query_for(queries[number]) for number in numbers]
        vectors = self.vectors(asked)
        others = [
            row
            for row, query in enumerate(asked)
            if rankings[numbers[row]].ties is not None or not self.answers(query, scorer_of(queries[numbers[row]]))
        ]
        by = dict(zip(others, self.known_scores([asked[row] for row in others], vectors[others]), strict=True))
        for row, number in enumerate(numbers):
            query, ranking = queries[number], answers[number]
            candidates, rules = query.new, query.rules
            assert candidates is not None and rules is not None, "a query with new items has both"
            if query.unordered:
                ties = ranking.ties
                order = np.lexsort((ranking.items if ties is None else ties, -ranking.scores))
                ties = None if ties is None else ties[order]
                ranking = Ranking(ranking.items[order], ranking.scores[order], ties=ties)
            scores = scores_of_new(candidates, vectors[row])
            is_whole = len(ranking.items) < query.limit or query.limit == candidates.items.n_known
            most = None if query.unordered or rules.limits else query.limit
            spare = rules.share is not None and rules.share.least > 0.0
            own = by.get(row)
            answers[number] = insert_new_items(
                ranking, own, scores, candidates, is_whole=is_whole, most=most, spare=spare
            )
        return answers

    def contributions(self, query: Query, new: NewItems, items: Items) -> tuple[Contributions, Scores]:
        """Return what each seed and feature adds to the embedder's scores of some new items, and these scores."""
        asked, vectors = self.query_for(query), new.vectors[items - new.n_known]
        return self._scorer.contributions_to(asked, vectors), np.vecdot(vectors, self.vectors([asked])[0])

    def similar(self, items: Items, new: NewItems, similar: Callable[[Items], Similar]) -> Similar:
        """Return similarities within a pool: cosines of embedder vectors if either item is new, else by `similar`."""
        is_known = items < new.n_known
        among = cosines(self._vectors_of(items, new))
        among_known, position_of = similar(items[is_known]), np.cumsum(is_known) - 1

        def of(position: int) -> Scores:
            similarities = among(position)
            if is_known[position]:
                similarities[is_known] = among_known(int(position_of[position]))
            return similarities

        return of

    def _vectors_of(self, items: Items, new: NewItems) -> Vectors:
        is_known = items < new.n_known
        vectors = np.empty((len(items), new.vectors.shape[1]))
        vectors[is_known] = self._scorer.index.vectors(items[is_known])
        vectors[~is_known] = new.vectors[items[~is_known] - new.n_known]
        return vectors


def scores_of_new(candidates: NewCandidates, vector: Vectors) -> Scores:
    """Return the embedder's scores of new items for a user, (K,). Equal vectors have equal scores."""
    new = candidates.items
    vectors = new.vectors if len(candidates.rows) == len(new) else new.vectors[candidates.rows]
    scores: Scores = np.vecdot(vectors, vector)
    return scores


def insert_new_items(
    of_model: Ranking,
    by: Scores | None,
    scores: Scores,
    candidates: NewCandidates,
    *,
    is_whole: bool,
    most: int | None,
    spare: bool = False,
) -> Ranking:
    """Return the ranking of the model's candidates, by descending score, with the new items at their places.

    `scores` are the new items' scores by the embedder. `by` are its scores of the model's candidates, descending, one
    for each item of `of_model`. It is None if the embedder made `of_model` itself, in the order of its scores. Unless
    `is_whole`, `of_model` and the result are beginnings of longer rankings and end with the same item. With `spare` the
    result also names the new items behind that item. Only the `most` best new items take part.
    """
    falling = of_model.scores if by is None else by
    behind_all = -np.inf if is_whole else float(falling[-1]) if len(falling) else np.inf
    if not spare:
        scores = np.where(scores > behind_all, scores, -np.inf)
    rows = best(scores, len(scores) if most is None else most)
    before = scores[rows] > behind_all
    behind, rows = candidates.items.n_known + candidates.rows[rows[~before]], rows[before]
    ranks = np.searchsorted(-falling, -scores[rows], side="right")
    items = np.insert(of_model.items, ranks, candidates.items.n_known + candidates.rows[rows])
    if by is None or not len(of_model.items):
        return Ranking(items, np.insert(of_model.scores, ranks, scores[rows]), spare=behind)
    # Items of equal scores are ordered by `ties`. A new item comes directly before its anchor, the candidate at its
    # rank. Behind the last candidate it comes after its anchor.
    anchors = np.minimum(ranks, len(of_model.items) - 1)
    order = np.arange(len(rows)) + np.where(ranks > anchors, len(rows) + 1, 0)
    step = 2 * len(rows) + 1
    own = (of_model.items if of_model.ties is None else of_model.ties).astype(np.int64) * step
    ties = np.insert(own + len(rows), ranks, own[anchors] + order)
    return Ranking(items, np.insert(of_model.scores, ranks, of_model.scores[anchors]), ties=ties, spare=behind)
