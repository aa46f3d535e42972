"""Turn a ranking by score into the answer to a query: rearrange it by the query's rules, then explain it.

The answer to a request is made in these steps. This module does step 4 and adds explanations:

1. history and profile
2. filter, availability, included, excluded and seen items
3. scores
4. boosts, rotation, diversity and limits, pins
5. the cut at the offset
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from svc.model.columns.feature_values import Encoded
from svc.model.explain import POPULAR, Because, Contributions, feature_names, reasons_of
from svc.model.feature_embedder import FeatureEmbedder
from svc.model.features import FeatureState
from svc.model.history import History
from svc.model.ranker.page_ranker import GROUPS, REORDERED, PageRanker, history_of
from svc.model.ranking.item_sets import ItemSet
from svc.model.ranking.query import Query, Ranking
from svc.model.ranking.rerank import Candidates, CompareItems, Rules, rerank_steps
from svc.model.ranking.steps import Steps
from svc.model.recommenders.base import Scorer

Rank = Callable[[Sequence[Query]], list[Ranking]]


def candidate_query(query: Query, n_items: int) -> Query:
    """Return the query for the items from which the rules of `query` choose.

    These may be more items than `query` returns, and are all items if a rule can lift any item to the top.
    """
    if query.rules is None:
        return query
    if query.rules.boosts:  # one may lift any item to the top
        return query._replace(limit=n_items, unordered=True)
    return query._replace(limit=min(n_items, query.rules.pool(query.limit)))


def apply_rules(query: Query, ranking: Ranking, n_items: int, similar: CompareItems, rank: Rank) -> Steps[Ranking]:
    """Rearrange `ranking`, the answer to `candidate_query(query)`, by the rules of `query`.

    `rank` ranks by the model's scores alone. It is called for the scores of pins, and if the rules need more items than
    `ranking` has. `similar` compares items for diversity.
    """
    rules = query.rules
    if rules is None or not len(ranking.items):
        return ranking

    def whole() -> Candidates:
        # Called only if the rules leave too few items, because ranking all items takes longest.
        (every,) = rank([query._replace(limit=n_items, unordered=True)])
        return Candidates(every.items, every.scores, True, whole, every.ties)

    asked = candidate_query(query, n_items).limit
    # The limit is one of the model's items, so new items are not counted.
    is_whole = asked == n_items or int(np.count_nonzero(ranking.items < n_items)) < asked
    candidates = Candidates(ranking.items, ranking.scores, is_whole, whole, ranking.ties, ranking.spare)
    pinned = _scores_of_pins(query, rules, n_items, rank)
    shown = yield from rerank_steps(candidates, rules, query.limit, similar, pinned)
    return Ranking(shown.items, shown.scores, ranking.popular, shown.reasons)


def _scores_of_pins(query: Query, rules: Rules, n_items: int, rank: Rank) -> NDArray[np.float64]:
    """Return the model's scores of the pinned items, in the order of the pins."""
    if not rules.pins:
        return np.empty(0)
    columns = np.array([pin.column for pin in rules.pins], dtype=np.int32)
    # Pins are scored alone, which reads a few items instead of all.
    if columns.max() < n_items and not query.reordered:
        asked = query._replace(allowed=ItemSet.of_columns(columns, n_items), limit=len(columns), new=None)
    else:  # the score of a new or reordered item depends on all candidates
        asked = query._replace(limit=n_items, unordered=True)
    (ranking,) = rank([asked])
    score_of = dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))
    return np.array([score_of[column] for column in columns.tolist()])


def add_reasons(
    query: Query,
    ranking: Ranking,
    scorer: Scorer,
    history: History,
    features: FeatureState | None,
    *,
    ranker: PageRanker | None = None,
    embedder: FeatureEmbedder | None = None,
) -> Ranking:
    """Return the ranking with reasons for its items from the query's offset on. Earlier items are not shown.

    An item that the `ranker` reordered is explained by the scorer's reasons and by groups of ranker features. A new
    item gets the score of the `embedder` instead of the score of a neighbouring candidate, which cannot be explained.
    """
    if not query.explain or not len(ranking.items):
        return ranking
    items, scores = ranking.items[query.offset :], ranking.scores[query.offset :]
    is_new = np.zeros(len(items), dtype=np.bool_) if query.new is None else items >= query.new.items.n_known
    of_model = items[~is_new]
    contributions = None if ranking.popular else scorer.contributions(query, history, of_model)
    if ranker is not None:
        contributions = with_groups(contributions, ranker, scorer, query, history, of_model)
    by_all = ranking.popular or scorer.kind == "popularity"
    because = (POPULAR if by_all else Because((), 1.0),) * len(of_model)
    if contributions is not None:
        because = _reasons(query, contributions, scores[~is_new], features)
    if query.new is not None and embedder is not None and is_new.any():
        contributions, own = embedder.contributions(query, query.new.items, items[is_new])
        of_known, of_new = iter(because), iter(_reasons(query, contributions, own, features))
        because = tuple([next(of_new if new else of_known) for new in is_new.tolist()])
        scores = ranking.scores.copy()
        scores[query.offset :][is_new] = own
        ranking = ranking._replace(scores=scores)
    # Items before the offset are not shown, so explaining them would be wasted.
    before = (Because((), 0.0),) * (len(ranking.items) - len(items))
    return ranking._replace(because=(*before, *because))


def _reasons(
    query: Query, contributions: Contributions, scores: NDArray[np.float64], features: FeatureState | None
) -> tuple[Because, ...]:
    own = () if query.user_features is None else (Encoded.of(query.user_features),)
    users = feature_names(None if features is None else features.user, own)
    unseen = feature_names(None if features is None else features.item, query.seed_features)
    return reasons_of(contributions, scores, query.explain, users, unseen)


def with_reason_new(ranking: Ranking, n_items: int) -> Ranking:
    """Add the reason `new` to each new item, before the reasons that rules give."""
    is_new = (ranking.items >= n_items).tolist()
    if not any(is_new):
        return ranking
    reasons = ranking.reasons or ((),) * len(is_new)
    shown = tuple(("new", *by_rules) if new else by_rules for new, by_rules in zip(is_new, reasons, strict=True))
    return ranking._replace(reasons=shown)


def with_groups(  # noqa: PLR0917 - all of them are about one page
    contributions: Contributions | None,
    ranker: PageRanker,
    scorer: Scorer,
    query: Query,
    history: History,
    items: NDArray[np.int32],
) -> Contributions:
    """Return the scorer's `contributions` for `items`, (m,), extended by the contributions of the ranker.

    For items that the ranker reordered, the scorer's contributions are multiplied by the ranker's weight of the score
    divided by its deviation, and each group of ranker features gets a contribution.

    If the scorer's scores are no sums, `contributions` is None, and the group `scores` is a reason of its own.
    Otherwise this group gets no contribution, and its addends of an item's place and of mean values are not explained.
    """
    # Ranked again, because the ranking has the order of the ranker, and places are features.
    (page,) = scorer.rank([query._replace(limit=min(REORDERED, scorer.n_items), unordered=False)], history)
    table = ranker.contributions(*history_of(query, history), page.items, page.scores)
    with_features = {feature.group for feature in ranker.features}
    with_features -= set() if contributions is None else {"scores"}
    named_groups = tuple(group for group in GROUPS if group in with_features)
    position_of = np.full(scorer.n_items, -1, dtype=np.intp)
    position_of[page.items] = np.arange(len(page.items))
    positions = position_of[items]
    is_moved = positions >= 0
    of_groups = np.zeros((len(items), len(named_groups)))
    of_groups[is_moved] = table[[GROUPS.index(group) for group in named_groups]][:, positions[is_moved]].T
    if contributions is None:
        contributions = Contributions(np.empty(0, dtype=np.int32), np.zeros((len(items), 0)))
    shares = np.where(is_moved, ranker.scale_of_score, 1.0)[:, np.newaxis]
    others = {source: addends * shares for source, addends in contributions.others.items()}
    return contributions._replace(
        of_columns=contributions.of_columns * shares,
        others={**others, "ranker": of_groups},
        groups=named_groups,
    )
