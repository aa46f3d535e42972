"""From the scorer of the winner to the model that is served, with its ids, histories and features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.model.features import FeatureState
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranker.page_ranker import PageRanker
from svc.model.recommenders.base import Scorer
from svc.training.search.served import to_history, to_scorer


def export(
    recommender: Any,
    class_name: str,
    *,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    X: Any,  # noqa: N803
    features: FeatureState | None,
) -> Model:
    """The model of a trained `recommender` alone: see `to_scorer` and `assemble`."""
    scorer = to_scorer(recommender, class_name)
    return assemble(scorer, user_ids=user_ids, item_ids=item_ids, X=X, features=features)


def assemble(
    scorer: Scorer,
    *,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    X: Any,  # noqa: N803
    features: FeatureState | None,
    cold: Scorer | None = None,
    cold_recency: float | None = None,
    hidden: Any = None,
    hidden_new: Any = None,
    hidden_new_ids: Sequence[str] = (),
    keep_values: bool = False,
    positions: Any = None,
    recency: float | None = 0.0,
    repeats: bool = False,
    popularity: NDArray[np.float64] | None = None,
    ranker: PageRanker | None = None,
) -> Model:
    """The model of a `scorer`, ready to answer and to be encoded.

    `X` is the training matrix, (n_users, n_items) CSR, with its items as in `scorer`; with `keep_values` its
    values are kept also for scorers that do not read them, for requests that add to a history. `hidden`, of the same
    shape, has 1 for what users are never shown, and less for what comes back where seen items may, and
    `hidden_new`, (n_users, ids of `hidden_new_ids`), says so of items that the model does not know: kept only where
    features can make new items of them. `cold` answers for
    features and seeds instead of `scorer`. `features` are kept only where one of them can use them. Histories keep
    their order where there are `positions` of the entries of `X`, weighed by `recency`; None: each part of `scorer` has
    its own. `cold` weighs them by `cold_recency`. A `ranker` reorders the best items. With `repeats` users are
    recommended what they have too, unless they ask otherwise.
    `popularity` is how much each item was chosen lately, (n_items,), where that is not the number of its users.
    """
    asked = cold or scorer
    placed = asked.feature_dim("user") or asked.feature_dim("item")
    hides_new = hidden_new is not None and asked.feature_dim("item")
    is_beside = cold_recency not in (None, recency)
    model = Model(
        user_ids=IdTable.from_ids(user_ids),
        item_ids=IdTable.from_ids(item_ids),
        history=to_history(
            X,
            with_values=scorer.reads_values or keep_values,
            positions=positions,
            recency=recency,
            beside=is_beside and recency is not None,
        ),
        scorer=scorer,
        features=features if placed else None,
        cold=cold,
        cold_recency=(cold_recency or 0.0) if is_beside else 0.0,
        hidden=None if hidden is None else to_history(hidden, with_values=True),
        repeats=repeats,
        popularity=popularity,
        hidden_new=to_history(hidden_new, with_values=True) if hides_new else None,
        hidden_new_ids=IdTable.from_ids(hidden_new_ids) if hides_new else None,
        ranker=ranker,
    )
    model.ready()
    return model
