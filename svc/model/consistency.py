"""Check that the parts of a model, and its artifact's header, belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureStateMismatch, PayloadInvalid
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.history import History
from svc.model.ranker.page_ranker import PageRanker
from svc.model.recommenders.base import Scorer, Side
from svc.model.recommenders.blend import BlendScorer


def check_sizes(
    n_users: int,
    n_items: int,
    history: History,
    scorer: Scorer,
    *,
    cold: Scorer | None,
    hidden: History | None,
    hidden_new: History | None,
    popularity: NDArray[np.float64] | None,
    ranker: PageRanker | None,
    user_moments: NDArray[np.float64] | None,
) -> None:
    """Raise PayloadInvalid if the parts do not fit `n_users` and `n_items`, or each other."""
    for rows in (hidden, hidden_new):
        if rows is not None and len(rows) != n_users:
            raise PayloadInvalid(f"payload: {n_users} users do not match {len(rows)} rows of hidden items")
    if (n_users, n_items) != (len(history), scorer.n_items):
        parts = f"{len(history)} histories and {scorer.n_items} scored items"
        raise PayloadInvalid(f"payload: {n_users} users and {n_items} items do not match {parts}")
    recencies = scorer.recencies if isinstance(scorer, BlendScorer) else ()
    if bool(recencies) != history.recency_by_part:
        raise PayloadInvalid("payload: the histories and the blend disagree on whether each part has its own recency")
    if history.recency_beside and (cold is None or recencies):
        raise PayloadInvalid("payload: the order of the histories does not match the recency of the second part")
    part = scorer.popularity if isinstance(scorer, BlendScorer) else None
    for of_items in (popularity, None if part is None else part.addends):
        if of_items is not None and of_items.shape != (n_items,):
            raise PayloadInvalid(f"payload: {n_items} items do not match the popularity of {of_items.size}")
    if user_moments is not None and user_moments.shape != (2, n_users):
        raise PayloadInvalid(f"payload: {n_users} users do not match {user_moments.size} means and deviations")
    if ranker is not None:
        ranker.check(n_items)
    if cold is not None and cold.n_items != n_items:
        raise PayloadInvalid(f"payload: {n_items} items do not match {cold.n_items} of the second part")


def check_features(declared: Mapping[str, Any], features: FeatureState | None, scorer: Scorer) -> None:
    """Compare the artifact header's `features` with the payload's encoders and with the scorer that reads them.

    Raises FeatureStateMismatch if they disagree.
    """
    active = bool(declared.get("active"))
    if active != (features is not None):
        held = "holds no" if features is None else "holds an"
        raise FeatureStateMismatch(f"feature state check failed: active is {active}, the payload {held} encoder")
    if features is None:
        return
    if features.version != FEATURE_VERSION:
        raise FeatureStateMismatch(
            f"feature state check failed: the payload is of version {features.version},"
            f" this build reads {FEATURE_VERSION}"
        )
    _check_side("user", declared.get("user"), features.user, scorer)
    _check_side("item", declared.get("item"), features.item, scorer)


def _check_side(side: Side, declared: Mapping[str, Any] | None, encoder: SideEncoder | None, scorer: Scorer) -> None:
    held = None if encoder is None else (encoder.dim, list(encoder.columns))
    stated = None if declared is None else (declared.get("dimension"), declared.get("columns"))
    if held != stated:
        raise FeatureStateMismatch(f"feature state check failed: {side} is {stated}, the payload holds {held}")
    scorer_dim = scorer.feature_dim(side)
    if encoder is not None and encoder.dim != scorer_dim:
        raise FeatureStateMismatch(
            f"feature state check failed: the {side} encoder has {encoder.dim} places, the scorer {scorer_dim}"
        )
