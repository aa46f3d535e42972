"""A model without some users: no byte of theirs is left, and other users get the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from svc.model.codec import decode, encode
from svc.model.forgetting import users_in, without_users
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Ranking
from svc.model.recommenders.blend import BlendScorer
from svc.model.recommenders.factors import FactorScorer
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family


def named(name: str) -> Model:
    """Return a model whose users have ids that occur nowhere else in a payload."""
    model = family(name)
    model.user_ids = IdTable.from_ids([f"person-{user}-x" for user in range(N_USERS)])
    rows = History(np.arange(N_USERS + 1), np.full(N_USERS, 39, np.int32), np.full(N_USERS, 0.5, np.float32))
    model.hidden = rows
    model.other_user_ids = IdTable.from_ids(["hidden-1-x", "hidden-2-x"])
    model.hidden_of_others = History(np.arange(3), np.array([5, 6], np.int32), np.full(2, 1.0, np.float32))
    model.ready()
    return model


def stored(model: Model) -> bytes:
    return b"".join(bytes(piece) for piece in encode(model))


def loaded(model: Model) -> Model:
    opened: Any = decode(memoryview(stored(model)))
    opened.ready()
    return cast(Model, opened)


def answers(model: Model, users: list[str]) -> list[Ranking]:
    asked: list[Any] = [{"user_id": user, "limit": N_ITEMS, "explain": 0} for user in users]
    asked += [{"user_id": user, "limit": N_ITEMS, "history": None, "include_seen": True} for user in users]
    for body in asked:
        body.pop("explain", None)
    queries = [planned.recommend(model, **body).query for body in asked]
    queries.append(planned.recommend(model, user_id="stranger", limit=N_ITEMS, fallback=True).query)
    queries.append(planned.related(model, seed_items=["i3"], limit=N_ITEMS).query)
    queries.append(planned.popular(model, limit=N_ITEMS).query)
    return model.rank(queries)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_other_users_get_the_same_bits_and_no_byte_of_the_user_is_left(name: str) -> None:
    """Popular items keep their order, although their counts lose users."""
    before = loaded(named(name))
    gone = ["person-3-x", "person-7-x", "hidden-1-x"]
    assert users_in(before, [*gone, "nobody"]) == gone
    after = loaded(without_users(before, gone))
    others = [user for user in before.user_ids.all() if user not in gone]
    assert after.user_ids.all() == others
    for own, expected in zip(answers(after, others), answers(before, others), strict=True):
        assert own.items.tolist() == expected.items.tolist()
        assert own.scores.tobytes() == expected.scores.tobytes()
    payload = stored(without_users(before, gone))
    assert not [user for user in gone if user.encode() in payload]
    assert users_in(after, gone) == []
    assert b"hidden-2-x" in payload
    assert stored(without_users(before, gone)) == payload


@pytest.mark.parametrize("name", ["IALS", "SVD", "BPR", "blend"])
def test_the_numbers_of_the_user_are_gone(name: str) -> None:
    """Vectors, deviations and moments of the others stay in their order."""
    before = named(name)
    before.measure_users()
    after = without_users(before, ["person-3-x"])
    kept = np.arange(N_USERS) != 3
    if before.user_moments is not None:
        assert after.user_moments is not None
        assert after.user_moments.tolist() == before.user_moments[:, kept].tolist()
    for own, expected in ((after.scorer, before.scorer),):
        if isinstance(own, FactorScorer) and isinstance(expected, FactorScorer):
            assert own.users.tolist() == expected.users[kept].tolist()
        if isinstance(own, BlendScorer) and isinstance(expected, BlendScorer):
            assert own.deviations.tolist() == expected.deviations[:, kept].tolist()
            assert own.factors is not None
            assert expected.factors is not None
            assert own.factors.users.tolist() == expected.factors.users[kept].tolist()


def test_ordered_and_weighted_histories_lose_the_rows_of_the_user() -> None:
    model = family("neighbours")
    lengths = np.diff(model.history.offsets)
    n = int(lengths.sum())
    model.history = replace(
        model.history,
        weights=np.arange(n, dtype=np.float32),
        ties=np.arange(n) % 2 == 0,
        is_seen=np.arange(n) % 3 == 0,
        recency=0.5,
    )
    model.ready()
    after = without_users(model, ["u3"]).history
    assert after.recency == 0.5
    for row, user in enumerate(user for user in range(N_USERS) if user != 3):
        assert after.items(row).tolist() == model.history.items(user).tolist()
        own, expected = after.values(row), model.history.values(user)
        assert own is not None
        assert expected is not None
        assert own.tolist() == expected.tolist()
        assert after.times(row).tolist() == model.history.times(user).tolist()
        flags = [(some.is_seen, some.offsets[place]) for some, place in ((after, row), (model.history, user))]
        own_seen, expected_seen = (flag[start : start + user + 1].tolist() for flag, start in flags)  # type: ignore[index]
        assert own_seen == expected_seen
