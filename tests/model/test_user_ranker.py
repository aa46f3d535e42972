"""Rankings of users for an item, compared with a matrix of all scores from the scorers' own rankings."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.errors import UnknownSeedItems, UsersNotServed
from svc.model.history import History
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.blend import BlendScorer
from svc.names import Order
from tests import planned
from tests.families import EVERY_FAMILY, N_ITEMS, N_USERS, family
from tests.model.test_feature_embedder import model_of, model_of_recencies

RANKABLE = [name for name in EVERY_FAMILY if name != "popularity"]
NAMES = (*RANKABLE, *(f"weighted {name}" for name in RANKABLE), "aware blend", "blend of recencies", "second part")
ORDERS: tuple[Order, ...] = ("score", "lift", "balanced")


def with_weights(model: Model) -> Model:
    """Return the model with values of interactions, recency, and shared times."""
    plain = model.history
    values: Any = np.random.default_rng(5).integers(1, 9, len(plain.columns)).astype(np.float32) / 4
    ties = np.random.default_rng(6).random(len(plain.columns)) < 0.3
    ties[plain.offsets[:-1]] = False
    history = History(plain.offsets, plain.columns, values, recency=0.25, ties=ties)
    if isinstance(model.scorer, BlendScorer):
        model.scorer.measure(history)
    model.history = history
    return model


@cache
def served_model(name: str) -> Model:
    if name == "aware blend":
        model = model_of(name)
    elif name == "blend of recencies":
        model = model_of_recencies("aware blend")
    elif name == "second part":
        model = model_of("neighbours")
    else:
        model = family(name.removeprefix("weighted "))
        model = with_weights(model) if name.startswith("weighted ") else model
    model.ready()
    model.serve_users()
    return model


@cache
def all_scores(name: str) -> NDArray[np.float64]:
    """Return scores, (n_users, n_items), as the scorer ranks all items for each user."""
    model = served_model(name)
    scores = np.empty((N_USERS, N_ITEMS))
    for user in range(N_USERS):
        (ranking,) = model.scorer.rank([Query(N_ITEMS, user, include_seen=True)], model.history)
        scores[user, ranking.items] = ranking.scores
    return scores


def ordered_by(order: Order, scores: NDArray[np.float64], item: int) -> NDArray[np.float64]:
    towards, deviations = scores[:, item], scores.std(axis=1)
    lift: NDArray[np.float64] = np.divide(
        towards - scores.mean(axis=1), deviations, out=np.zeros(N_USERS), where=deviations > 1e-9
    )
    if order == "balanced":
        return np.asarray(lift / 2 + (towards - towards.mean()) / towards.std() / 2 if towards.std() else lift / 2)
    return lift if order == "lift" else towards


def ranking_of(model: Model, **controls: object) -> Ranking:
    prepared = planned.users(model, **{"item_id": None, "item_features": None, "limit": N_USERS, **controls})  # type: ignore[arg-type]
    (ranking,) = model.rank([prepared.query])
    return ranking.from_place(prepared.query.offset)


def check(ranking: Ranking, keys: NDArray[np.float64], wanted: NDArray[np.bool_], limit: int) -> None:
    """Check that the best of the wanted users come back, up to rounding. Equal users are ordered by row."""
    best = np.sort(keys[wanted])[::-1][:limit]
    np.testing.assert_allclose(ranking.scores, best, atol=2e-6)
    np.testing.assert_allclose(keys[ranking.items], best, atol=2e-6)
    assert wanted[ranking.items].all()
    assert len(set(ranking.items.tolist())) == len(ranking.items)
    order = np.lexsort((ranking.items, -ranking.scores))
    assert order.tolist() == list(range(len(order)))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NAMES)
def test_ranked_users_equal_those_of_a_matrix_of_all_scores(name: str, order: Order) -> None:
    model, scores = served_model(name), all_scores(name)
    lengths = np.diff(model.history.offsets)
    for item in range(N_ITEMS):
        has = np.array([item in model.history.items(user) for user in range(N_USERS)])
        keys = ordered_by(order, scores, item)
        wanted = ~has & (lengths >= (5 if order == "lift" else 1))
        check(ranking_of(model, item_id=f"i{item}", order=order), keys, wanted, N_USERS)
        ranking = ranking_of(model, item_id=f"i{item}", order=order, limit=3, min_history=3, include_seen=True)
        check(ranking, keys, lengths >= 3, 3)


@pytest.mark.parametrize("name", ["neighbours", "weighted neighbours"])
def test_scores_of_neighbour_models_have_the_bits_of_rankings(name: str) -> None:
    for item in range(N_ITEMS):
        ranking = ranking_of(served_model(name), item_id=f"i{item}", include_seen=True)
        assert ranking.scores.tolist() == all_scores(name)[ranking.items, item].tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["IALS", "aware blend"])
def test_an_item_by_its_features_is_ranked_by_the_feature_aware_part(name: str, order: Order) -> None:
    model = served_model(name)
    part = model.scorer.factors if isinstance(model.scorer, BlendScorer) else model.scorer
    encoded, _ = model.encode("item", {"tag": "a", "age": 48.0})
    vector = part.least_squares.items_from_features([encoded])[0]  # type: ignore[union-attr]
    users = part.users.astype(np.float64)  # type: ignore[union-attr]
    known = users @ part.index.factors.astype(np.float64).T  # type: ignore[union-attr]
    towards = users @ vector
    lift = np.divide(towards - known.mean(axis=1), known.std(axis=1), out=np.zeros(N_USERS), where=known.any(axis=1))
    keys = {"score": towards, "lift": lift, "balanced": lift / 2 + (towards - towards.mean()) / towards.std() / 2}
    ranking = ranking_of(model, item_features={"tag": "a", "age": 48.0}, order=order, min_history=0)
    check(ranking, keys[order], np.ones(N_USERS, dtype=np.bool_), N_USERS)


@pytest.mark.parametrize("name", RANKABLE)
def test_offset_include_users_and_exclude_users_select_from_the_ranking(name: str) -> None:
    model = served_model(name)
    whole = ranking_of(model, item_id="i3", include_seen=True)
    assert (
        ranking_of(model, item_id="i3", include_seen=True, limit=4, offset=2).items.tolist()
        == whole.items[2:6].tolist()
    )
    named = ranking_of(model, item_id="i3", include_seen=True, include_users=["u1", "u7", "nobody", "u4"])
    assert named.items.tolist() == [user for user in whole.items.tolist() if user in (1, 4, 7)]
    others = ranking_of(model, item_id="i3", include_seen=True, exclude_users=["u1", "nobody"])
    assert others.items.tolist() == [user for user in whole.items.tolist() if user != 1]
    assert not len(ranking_of(model, item_id="i3", include_users=[]).items)


def test_users_from_whom_the_item_is_hidden_come_back_only_on_request() -> None:
    """`include_seen` brings back these users except those with the hidden value 1, as in `:recommend`."""
    model = family("SVD")
    offsets = np.array([0, 1, 2, *([2] * (N_USERS - 2))])
    model.hidden = History(offsets, np.array([3, 3], dtype=np.int32), np.array([0.5, 1.0], dtype=np.float32))
    model.serve_users()
    has = {user for user in range(N_USERS) if 3 in model.history.items(user)}
    assert set(ranking_of(model, item_id="i3").items.tolist()) == set(range(2, N_USERS)) - has
    assert set(ranking_of(model, item_id="i3", include_seen=True).items.tolist()) == {0, *range(2, N_USERS)}


def test_models_trained_with_repeats_include_users_who_have_the_item() -> None:
    model = family("SVD")
    model.repeats = True
    model.serve_users()
    assert len(ranking_of(model, item_id="i3").items) == N_USERS
    assert len(ranking_of(model, item_id="i3", include_seen=False).items) < N_USERS


def test_users_and_items_are_ranked_in_one_batch() -> None:
    model = served_model("SVD")
    users = planned.users(model, item_id="i3", item_features=None, limit=2).query
    first, second = model.rank([users, Query(3, 1)])
    assert first.items.tolist() == ranking_of(model, item_id="i3", limit=2).items.tolist()
    assert second.items.tolist() == model.rank([Query(3, 1)])[0].items.tolist()


def test_a_model_without_scores_by_user_refuses_to_rank_users() -> None:
    with pytest.raises(UsersNotServed, match=r"serving\.users"):
        ranking_of(family("SVD"), item_id="i3")
    popular = family("popularity")
    popular.serve_users()
    with pytest.raises(UsersNotServed, match="popularity has the same scores"):
        ranking_of(popular, item_id="i3")
    with pytest.raises(UsersNotServed, match="keeps no users"):
        ranking_of(served_model("second part"), item_features={"tag": "a"})
    with pytest.raises(UnknownSeedItems):
        ranking_of(served_model("SVD"), item_id="nothing")
