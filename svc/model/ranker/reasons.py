"""Explain the scores of reordered items by groups of the ranker's features, with the winner's reasons as one group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from svc.model.explain import Contributions
from svc.model.history import History
from svc.model.ranker.contributions import GROUPS
from svc.model.ranker.page_ranker import REORDERED, PageRanker, history_of
from svc.model.ranking.query import Query
from svc.model.recommenders.base import Scorer


def with_groups(  # noqa: PLR0917 - all of them are about one page
    contributions: Contributions | None,
    ranker: PageRanker,
    scorer: Scorer,
    query: Query,
    history: History,
    items: NDArray[np.int32],
) -> Contributions:
    """Return the winner's `contributions` to `items`, (m,), plus those of the ranker to the items that it reordered.

    For reordered items, the winner's contributions are multiplied by the ranker's weight of its score. The addends of
    place and means stay unexplained. If the winner's scores are no sums, `contributions` is None, and its score is one
    reason among the groups.
    """
    (page,) = scorer.rank([query._replace(limit=min(REORDERED, scorer.n_items), unordered=False)], history)
    table = ranker.contributions(history_of(query, history), page.items, page.scores)
    with_features = {feature.group for feature in ranker.features} - (
        {"scores"} if contributions is not None else set()
    )
    named_groups = tuple(group for group in GROUPS if group in with_features)
    position_of = np.full(scorer.n_items, -1, dtype=np.intp)
    position_of[page.items] = np.arange(len(page.items))
    positions = position_of[items]
    is_moved = positions >= 0
    of_groups = np.zeros((len(items), len(named_groups)))
    for number, group in enumerate(named_groups):
        of_groups[is_moved, number] = table[GROUPS.index(group), positions[is_moved]]
    if contributions is None:
        nothing = Contributions(np.empty(0, dtype=np.int32), np.zeros((len(items), 0)))
        return nothing._replace(of_groups=of_groups, groups=named_groups)
    shares = np.where(is_moved, ranker.scale_of_score, 1.0)
    of_user, of_item = contributions.of_user_features, contributions.of_item_features
    popularity = contributions.of_popularity
    return contributions._replace(
        of_columns=contributions.of_columns * shares[:, np.newaxis],
        of_user_features=None if of_user is None else of_user * shares[:, np.newaxis],
        of_item_features=None if of_item is None else of_item * shares[:, np.newaxis],
        of_popularity=None if popularity is None else popularity * shares,
        of_groups=of_groups,
        groups=named_groups,
    )
