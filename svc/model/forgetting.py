"""Remove users from a trained model, so that no byte of the payload is theirs and all other answers stay the same."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.recommenders.base import Scorer
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import FactorScorer

Kept = NDArray[np.bool_]


def users_in(model: Model, ids: Collection[str]) -> list[str]:
    """Return the `ids` of which the model knows something: a history, or hidden items alone."""
    others = model.other_user_ids
    return [user for user in ids if model.user_ids.index(user) >= 0 or (others is not None and others.index(user) >= 0)]


def without_users(model: Model, ids: Collection[str]) -> Model:
    """Return a copy of the model without the users `ids`: their ids, histories, hidden items, vectors and moments.

    Arrays that the model learned from all users stay, and so do the counts by which popular items are ordered. The
    copy is for `encode`, and not ready for queries.
    """
    kept = _others(model.user_ids, ids)
    # A shallow copy: arrays that keep their bytes are shared, and a model may take gigabytes.
    remaining = copy.copy(model)
    if model.popularity is None or not model.popularity.any():
        # Counted before the rows go, because popular items must keep their order for everybody else.
        remaining.popularity = np.bincount(model.history.columns, minlength=model.n_items).astype(np.float64)
    remaining.user_ids = _ids(model.user_ids, kept)
    remaining.history = _rows(model.history, kept)
    remaining.hidden = None if model.hidden is None else _rows(model.hidden, kept)
    remaining.hidden_new = None if model.hidden_new is None else _rows(model.hidden_new, kept)
    if model.user_moments is not None:
        remaining.user_moments = model.user_moments[:, kept]
    remaining.scorer = _scorer(model.scorer, kept)
    remaining.cold = None if model.cold is None else _scorer(model.cold, kept)
    if model.other_user_ids is not None and model.hidden_of_others is not None:
        kept_others = _others(model.other_user_ids, ids)
        # An empty table of other users is left out, as in a model that never had any.
        some = bool(kept_others.any())
        remaining.other_user_ids = _ids(model.other_user_ids, kept_others) if some else None
        remaining.hidden_of_others = _rows(model.hidden_of_others, kept_others) if some else None
    return remaining


def _others(table: IdTable, ids: Collection[str]) -> Kept:
    """Return whether each row of the table has none of `ids`, (n,)."""
    kept = np.ones(len(table), dtype=np.bool_)
    rows = table.indices(list(ids))
    kept[rows[rows >= 0]] = False
    return kept


def _ids(table: IdTable, kept: Kept) -> IdTable:
    return IdTable.from_ids([text for text, stays in zip(table.all(), kept.tolist(), strict=True) if stays])


def _rows(history: History, kept: Kept) -> History:
    """Return the history of the users that stay."""
    lengths = np.diff(history.offsets)
    entries = np.repeat(kept, lengths)
    remaining: Any = copy.copy(history)
    remaining.offsets = np.concatenate([[0], np.cumsum(lengths[kept])]).astype(history.offsets.dtype)
    # Over all fields, so that a later array with a value for each interaction cannot be forgotten here.
    for name in (part.name for part in fields(History) if part.name != "offsets"):
        values = getattr(history, name)
        if isinstance(values, np.ndarray):  # a value for each interaction
            setattr(remaining, name, values[entries])
    remaining.others = tuple((None if own is None else own[entries], scale) for own, scale in history.others)
    rows: History = remaining
    return rows


def _scorer(scorer: Scorer, kept: Kept) -> Any:
    """Return the scorer without the numbers of users that leave. Parts for unseen users have none."""
    remaining: Any = copy.copy(scorer)
    if isinstance(scorer, FactorScorer) and len(scorer.users) == len(kept):
        remaining.users = scorer.users[kept]
    elif isinstance(scorer, BlendScorer):
        remaining.deviations = scorer.deviations[:, kept] if scorer.deviations.size else scorer.deviations
        remaining.factors = None if scorer.factors is None else _scorer(scorer.factors, kept)
    return remaining
