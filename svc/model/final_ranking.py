"""Turns a ranking by score into the one that is shown: `rerank` with the query's rules, then explanations.

The order of all steps: history and profile; then filter, availability, include, exclude and seen; then scores; then
boosts, diversity and limits, pins; and finally the cut at the offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.model.explain import POPULAR, Because, feature_names, reasons_of
from svc.model.features import FeatureState
from svc.model.history import History
from svc.model.item_sets import ItemSet
from svc.model.query import Query, Ranking
from svc.model.recommenders.base import Scorer
from svc.model.rerank import Candidates, Items, Rules, Similar, rerank

Rank = Callable[[Sequence[Query]], list[Ranking]]


def candidate_query(query: Query, n_items: int) -> Query:
    """The query to rank so that the rules of `query` have enough items to choose from: its best items, or all."""
    if query.rules is None:
        return query
    if query.rules.needs_all:
        return query._replace(limit=n_items, unordered=True)
    return query._replace(limit=min(n_items, query.rules.pool(query.limit)))


def reranked(query: Query, ranking: Ranking, n_items: int, similar: Callable[[Items], Similar], rank: Rank) -> Ranking:
    """`ranking`, the answer to `candidate_query(query)`, under the rules of `query`. `rank` ranks by score alone."""
    rules = query.rules
    if rules is None or not len(ranking.items):
        return ranking

    def whole() -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        (every,) = rank([query._replace(limit=n_items, unordered=True)])
        return every.items, every.scores

    asked = candidate_query(query, n_items).limit
    found = Candidates(ranking.items, ranking.scores, asked == n_items or len(ranking.items) < asked, whole)
    shown = rerank(found, rules, query.limit, similar, _scores_of_pins(query, rules, n_items, rank))
    return Ranking(shown.items, shown.scores, ranking.popular, shown.reasons)


def _scores_of_pins(query: Query, rules: Rules, n_items: int, rank: Rank) -> NDArray[np.float64]:
    """The model's scores of the pinned items, in the order of the pins."""
    columns = np.array([pin.column for pin in rules.pins], dtype=np.int32)
    if not len(columns):
        return np.empty(0)
    (ranking,) = rank([query._replace(allowed=ItemSet.of_columns(columns, n_items), limit=len(columns))])
    score_of = dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))
    return np.array([score_of[column] for column in columns.tolist()])


def explained(
    query: Query, ranking: Ranking, scorer: Scorer, history: History, features: FeatureState | None
) -> Ranking:
    """The ranking with reasons for its items from the offset on; those before are not shown."""
    if not query.explain or not len(ranking.items):
        return ranking
    items = ranking.items[query.offset :]
    found = None if ranking.popular else scorer.contributions(query, history, items)
    if found is not None:
        # Several unseen items share feature columns but not their numbers, which are shown for a single item only.
        described = query.seed_features[0].dense() if len(query.seed_features) == 1 else None
        users = feature_names(None if features is None else features.user, query.user_features)
        unseen = feature_names(None if features is None else features.item, described)
        because = reasons_of(found, ranking.scores[query.offset :], query.explain, users, unseen)
    else:
        by_all = ranking.popular or scorer.kind == "popularity"
        because = (POPULAR if by_all else Because((), 1.0),) * len(items)
    before = (Because((), 0.0),) * (len(ranking.items) - len(items))
    return ranking._replace(because=(*before, *because))
