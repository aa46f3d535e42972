"""Rehearse a model before it goes live: queries for 32 of its users, and one query of every other kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from svc.errors import RehearsalFailed
from svc.model.ids import IdTable
from svc.model.ranking.query import Query, Ranking

if TYPE_CHECKING:
    from svc.model.model import Model

N_USERS = 32
LIMIT = 10

RehearsalQuery = tuple[Query, str]
"""A query, and the name of its user or kind for messages."""


def rehearse(model: Model) -> list[Ranking]:
    """Return the answers of a ready model to queries for known users and for strangers, alone and in batches.

    The users are those with the lowest hashes: successive models rehearse the same users if they still have them. One
    user ranks every item, which finds an item without a finite score at any rank. A batch of 32 takes 0.2 s for 41,000
    items and 2 s for a million. Raises RehearsalFailed.
    """
    with np.errstate(all="ignore"):
        users = _choose_users(model.user_ids)
        of_users = [(_of_user(model, user), f"the user in row {user}") for user in users]
        rankings = _answer(model, of_users) + _answer(model, of_users[:1])
        (whole,) = _answer(model, [(query._replace(limit=model.n_items), who) for query, who in of_users[:1]])
        if len(whole.items) != model.n_items:
            raise RehearsalFailed(
                f"rehearsal: {model.n_items - len(whole.items)} of {model.n_items} items have no finite score"
            )
        of_strangers = list(_unknown(model))
        for asked in ([question] for question in of_strangers):
            rankings += _answer(model, asked)
        return rankings + _answer(model, of_strangers)


def require_known_users(user_ids: IdTable, live_user_ids: IdTable, share: float) -> None:
    """Raise RehearsalFailed if fewer than `share` of the live model's users are among `user_ids`."""
    n_shared, total = user_ids.n_shared(live_user_ids), len(live_user_ids)
    if n_shared < share * total:
        raise RehearsalFailed(
            f"rehearsal: {n_shared} of the live model's {total} users are known to the new model, "
            f"less than the share {share:g} of serving.rehearsal.min_known_users; "
            "compare the ids of both trainings, such as 1 and 1.0"
        )


def _choose_users(ids: IdTable) -> list[int]:
    """Return the rows of the ids with the lowest hashes."""
    return [int(row) for row in ids.rows[:N_USERS]]


def _of_user(model: Model, user: int) -> Query:
    user_id = model.user_ids.at(user)
    if model.user_ids.index(user_id) != user:
        raise RehearsalFailed(f"rehearsal: the id in row {user} is not found in the table of ids")
    return Query(limit=LIMIT, user=user, include_seen=True, reordered=model.ranker is not None)


def _unknown(model: Model) -> Iterator[RehearsalQuery]:
    """Yield queries for users outside the training data, each with the name of its kind for messages."""
    yield Query(limit=LIMIT, seeds=model.item_ids.rows[:1].astype(np.int32), include_seen=True), "a seed item"
    features = model.features
    if features is not None and features.user is not None:
        yield Query(limit=LIMIT, user_features=features.user.encode({})[0]), "user_features"
    if features is not None and features.item is not None:
        yield Query(limit=LIMIT, seed_features=(features.item.encode_sparse({})[0],)), "item_features"


def _answer(model: Model, asked: list[RehearsalQuery]) -> list[Ranking]:
    """Return one ranking per query. Raise RehearsalFailed if one is empty or has a score that is not finite."""
    try:
        rankings = model.rank([query for query, _ in asked])
    except MemoryError:
        raise
    except Exception as error:
        for question in asked if len(asked) > 1 else ():
            _answer(model, [question])  # one query at a time, to name the one that fails
        who = asked[0][1] if len(asked) == 1 else f"a batch of {len(asked)}"
        raise RehearsalFailed(f"rehearsal: {who} got no answer: {type(error).__name__}: {error!s:.100}") from error
    for ranking, (_, who) in zip(rankings, asked, strict=True):
        if not len(ranking.scores) or not np.isfinite(ranking.scores).all():
            raise RehearsalFailed(f"rehearsal: {who} got scores that are not finite numbers, or no items")
    return rankings
