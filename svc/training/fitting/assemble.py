"""Build the served model from the scorer of the winner, with its ids, histories and features."""

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
from svc.training.fitting.export import to_history, to_scorer


def export(
    recommender: Any,
    class_name: str,
    *,
    user_ids: Sequence[str],
    item_ids: Sequence[str],
    X: Any,  # noqa: N803
    features: FeatureState | None,
) -> Model:
    """Return the model of a trained `recommender` alone (see `to_scorer` and `assemble`)."""
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
    """Return the model of a `scorer`, ready to answer and to be encoded.

    `X` is the training matrix, (n_users, n_items) CSR, with its items in the order of `scorer`. `keep_values` keeps its
    values for requests that add to a history, even if the scorer does not read them. Histories keep their order if
    `positions` of the entries of `X` are given. They are weighted by `recency`, or by the recency of each part if it is
    None.

    `hidden`, of the same shape as `X`, has 1 for items that a user is never shown. It has less for items that are shown
    again when a request includes seen items. `hidden_new`, (n_users, ids of `hidden_new_ids`), has the same for items
    that the model does not know. It is kept only if the model can score new items from features.

    `cold` answers queries with features and seeds instead of `scorer`, and weights histories by `cold_recency`.
    `features` are kept only if the scorer that answers such queries reads them. A `ranker` reorders the best items.
    With `repeats`, users are recommended seen items too, unless a request excludes them. `popularity` is the recent
    popularity of each item, (n_items,), or None for the number of its users.
    """
    reader = cold or scorer
    reads_features = reader.feature_dim("user") or reader.feature_dim("item")
    hides_new = hidden_new is not None and reader.feature_dim("item")
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
        features=features if reads_features else None,
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
