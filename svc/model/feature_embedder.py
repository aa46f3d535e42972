"""Embed new items by their features, and place them in the ranking of the model's items.

| symbol | meaning |
|---|---|
| embedder | the factor model that turns item features into item vectors |
| candidate | an item of the model that may be recommended for a query |
| new item | an item that training never saw; see `new_items` |
| rank | of a new item: the number of candidates that the embedder scores at least as high for this user |

Scores of the embedder cannot be compared with the scores of another scorer that ranks the candidates, but ranks can. So
a new item of rank r is placed directly before the candidate at position r of the ranking, and carries the score of that
candidate. A new item behind the last candidate carries the score of the last candidate. If the embedder itself ranks
the candidates, each new item carries its own score, which leads to the same places.

A minimum share of new items (see `rerank.Share`) may need new items that rank behind the end of a page. The ranking
lists these as `spare`.
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
from svc.model.ranking.rerank import CompareItems, Items, Similar
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import IALSScorer
from svc.model.recommenders.similar import cosines

Vectors = NDArray[np.float64]
Scores = NDArray[np.float64]


class FeatureEmbedder:
    """Scores new items by the factor model that learned item features, `scorer`, with histories weighed by `recency`.

    `scorer` is the whole model, its cold-start part, or a part of a blend, which reads the weights `weighing`.
    """

    def __init__(self, scorer: IALSScorer, history: History, recency: float, weighing: int = 0) -> None:
        self._scorer = scorer
        self._history = history
        self._recency = recency
        self._weighing = weighing

    @classmethod
    def of(cls, scorer: Scorer, history: History, recency: float) -> FeatureEmbedder | None:
        """Return the embedder for `scorer` or the factor part of a blend, or None if that reads no item features."""
        part, weighing = (scorer.factors, scorer.weighing(0)) if isinstance(scorer, BlendScorer) else (scorer, 0)
        if not isinstance(part, IALSScorer) or part.feature_dim("item") is None:
            return None
        return cls(part, history, recency, weighing)

    def place(self, rows: Sequence[Encoded]) -> Vectors:
        """Return vectors, (m, K), of items by their encoded features."""
        return self._scorer.least_squares.items_from_features(rows)

    @property
    def of_users(self) -> IALSScorer | None:
        """Return the scorer if it stores vectors of the training users, else None."""
        return self._scorer if len(self._scorer.users) else None

    def answers(self, query: Query, scorer: Scorer) -> bool:
        """Return whether the scores that `scorer` gives for `query` are the scores of this embedder."""
        if isinstance(scorer, BlendScorer):
            return scorer.factors is self._scorer and query.is_described
        return scorer is self._scorer

    def query_for(self, query: Query) -> Query:
        """Translate a query to the model into a query to this embedder.

        If the embedder stores no vectors of training users, a training user is described by the history.
        """
        if query.user >= 0 and not len(self._scorer.users):
            query = query._replace(user=-1).of_profile(joined_profile(self._history, query.user, NOTHING_GIVEN))
        return query.at_weighing(self._weighing).at_recency(self._recency)

    def join(
        self, queries: Sequence[Query], rankings: Sequence[Ranking], scorer_of: Callable[[Query], Scorer]
    ) -> list[Ranking]:
        """Insert the new items of each query into its ranking of the model's items.

        `scorer_of` returns the scorer that made the ranking of a query.
        """
        answers = list(rankings)
        numbers = [number for number, query in enumerate(queries) if query.new is not None]
        asked = [self.query_for(queries[number]) for number in numbers]
        vectors = self._scorer.vectors(asked)
        others = [
            row
            for row, query in enumerate(asked)
            if rankings[numbers[row]].ties is not None or not self.answers(query, scorer_of(queries[numbers[row]]))
        ]
        by_embedder = self._scorer.search([asked[row] for row in others], vectors[others], self._history)
        # Sorted, because an unordered query has its scores in the order of columns.
        by = {row: np.sort(own.scores)[::-1] for row, own in zip(others, by_embedder, strict=True)}
        for row, number in enumerate(numbers):
            query, ranking = queries[number], answers[number]
            candidates, rules = query.new, query.rules
            assert candidates is not None and rules is not None, "a query with new items has both"
            if query.unordered:
                ties = ranking.ties
                # Inserting by rank needs falling scores, and an unordered ranking has any order.
                order = np.lexsort((ranking.items if ties is None else ties, -ranking.scores))
                ties = None if ties is None else ties[order]
                ranking = Ranking(ranking.items[order], ranking.scores[order], ties=ties)
            new = candidates.items.vectors
            new = new if len(candidates.rows) == len(new) else new[candidates.rows]
            # Not `new @ vectors[row]`, whose bits may differ between equal rows.
            scores = np.vecdot(new, vectors[row])
            # A ranking shorter than its limit has everything that may be recommended.
            is_whole = len(ranking.items) < query.limit or query.limit == candidates.items.n_known
            # Limits may skip any number of new items, so all are inserted.
            most = None if query.unordered or rules.limits else query.limit
            spare = rules.share is not None and rules.share.least > 0.0
            own = by.get(row)
            answers[number] = insert_new_items(
                ranking, own, scores, candidates, is_whole=is_whole, most=most, spare=spare
            )
        return answers

    def contributions(self, query: Query, new: NewItems, items: Items) -> tuple[Contributions, Scores]:
        """Return the contributions of seeds and features to the embedder's scores of new items, and these scores."""
        asked, vectors = self.query_for(query), new.vectors[items - new.n_known]
        return self._scorer.contributions_to(asked, vectors), np.vecdot(vectors, self._scorer.vectors([asked])[0])

    def similar(self, items: Items, new: NewItems, similar: CompareItems) -> Steps[Similar]:
        """Return the function that compares the items of a pool for diversity.

        Two items of the model are compared by `similar`, all other pairs by the cosine of their embedder vectors.
        """
        is_known = items < new.n_known
        among = cosines(self._vectors_of(items, new))
        among_known, position_of = (yield from similar(items[is_known])), np.cumsum(is_known) - 1

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
    """Return `of_model`, the ranking of the model's candidates by descending score, with the new items inserted.

    `scores` are the embedder's scores of the new items. `by` are the embedder's scores of the candidates in `of_model`,
    descending. None: `of_model` has the embedder's own scores. Unless `is_whole`, `of_model` is the beginning of a
    longer ranking, and new items that rank behind its last item are left out. With `spare` the result lists these
    items as `spare`. Only the `most` best new items are inserted. None: all.
    """
    falling = of_model.scores if by is None else by
    behind_all = -np.inf if is_whole else float(falling[-1]) if len(falling) else np.inf
    if not spare:
        # `best` never returns −inf, so items behind the end are left out without a second selection.
        scores = np.where(scores > behind_all, scores, -np.inf)
    rows = best(scores, len(scores) if most is None else most)
    before = scores[rows] > behind_all
    behind, rows = candidates.items.n_known + candidates.rows[rows[~before]], rows[before]
    # Of equal scores the known item comes first, so a list of new items never displaces a tie.
    ranks = np.searchsorted(-falling, -scores[rows], side="right")
    items = np.insert(of_model.items, ranks, candidates.items.n_known + candidates.rows[rows])
    if by is None or not len(of_model.items):
        return Ranking(items, np.insert(of_model.scores, ranks, scores[rows]), spare=behind)
    # A new item has the score of its anchor, the candidate at its rank, so `ties` must put it directly before the
    # anchor. Behind the last candidate, the anchor is that candidate, and the new item comes after it.
    anchors = np.minimum(ranks, len(of_model.items) - 1)
    order = np.arange(len(rows)) + np.where(ranks > anchors, len(rows) + 1, 0)
    # Room between two ties of candidates for all new items before and behind them.
    step = 2 * len(rows) + 1
    own = (of_model.items if of_model.ties is None else of_model.ties).astype(np.int64) * step
    ties = np.insert(own + len(rows), ranks, own[anchors] + order)
    return Ranking(items, np.insert(of_model.scores, ranks, of_model.scores[anchors]), ties=ties, spare=behind)
