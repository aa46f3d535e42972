"""`:recommend-users` ranks users for an item. Ids of users are sent only if the recipe and the key permit it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from svc.asking.policy import Policy
from svc.metrics import Metrics
from svc.model.ranking.query import Query
from svc.serving.api.authentication import hash_api_key, parse_api_keys
from svc.serving.api.endpoints import VERBS
from svc.serving.api.key_policies import KeyPolicies, parse_policies
from svc.serving.api.request import ServerState
from svc.serving.models.fragments import encode_users
from tests.serving.client import N_USERS, RECOMMEND, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
USERS = RECOMMEND.replace(":recommend", ":recommend-users")
SHOP, MAIL = "k" * 43, "m" * 43


@asynccontextmanager
async def serving_users(**more: Any) -> AsyncIterator[tuple[Client, ServerState]]:
    """Serve the recipe `movies` with permission to rank users."""
    async with serving(**more) as (client, state):
        served = served_in(state)
        served.model.serve_users()
        serve(state, replace(served, policy=Policy(users=True)))
        yield client, state


async def test_users_are_ranked_by_the_scores_of_recommend() -> None:
    """Users who have the item are left out: u0 to u19 have i0, and u5 to u19 have i5."""
    async with serving_users() as (client, state):
        answer = await client.post(USERS, {"item_id": "i5", "limit": 20})
        model = served_in(state).model
        scores = {}
        for user in range(5):
            (ranking,) = model.rank([Query(60, user)])
            scores[f"u{user}"] = dict(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True))[5]
        nobody = await client.post(USERS, {"item_id": "i0"})
        about = (await client.get("/v1/recipes/movies")).json
    assert answer.status == 200
    assert about["supported_verbs"] == [row.verb for row in VERBS]
    assert list(answer.json) == ["request_id", "recipe", "model_version", "users"]
    users = answer.json["users"]
    assert users == [
        {"user_id": user, "score": scores[user]} for user in sorted(scores, key=lambda user: -scores[user])
    ]
    assert answer.headers["x-svc-model-version"] == answer.json["model_version"]
    assert (nobody.status, nobody.json["users"]) == (200, [])


async def test_limit_offset_orders_and_lists_select_users() -> None:
    async with serving_users() as (client, _):

        async def named(**body: Any) -> list[str]:
            answer = await client.post(USERS, {"item_id": "i30", "limit": N_USERS, **body})
            assert answer.status == 200, answer.body
            return [user["user_id"] for user in answer.json["users"]]

        whole = await named()
        assert await named(limit=3, offset=2) == whole[2:5]
        assert await named(exclude_users=[whole[0], "nobody"]) == whole[1:]
        assert await named(include_users=["u3", "nobody", "u9"]) == [user for user in whole if user in ("u3", "u9")]
        assert set(await named(order="lift")) == {f"u{user}" for user in range(4, N_USERS)}
        assert set(await named(order="lift", min_history=0)) == set(whole)
        assert await named(order="balanced") != whole
        assert len(await named(item_id="i0", include_seen=True)) == N_USERS


async def test_an_item_that_training_never_saw_is_ranked_by_its_features() -> None:
    async with serving_users() as (client, _):
        answer = await client.post(USERS, {"item_id": "new", "item_features": {"tag": "a", "colour": "red"}})
        unknown = await client.post(USERS, {"item_id": "new"})
    assert len(answer.json["users"]) == 10
    assert answer.json["ignored_features"] == ["colour"]
    assert (unknown.status, unknown.json["code"]) == (404, "UNKNOWN_SEED_ITEMS")


async def test_many_users_are_encoded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer with a few users is encoded on the event loop."""
    threads: list[int] = []

    def encode(*arguments: Any) -> bytes:
        threads.append(threading.get_ident())
        return encode_users(*arguments)

    monkeypatch.setattr("svc.serving.api.verbs.INLINE_ITEMS", 2)
    monkeypatch.setattr("svc.serving.api.verbs.encode_users", encode)
    async with serving_users() as (client, _):
        for limit in (2, 3):
            answer = await client.post(USERS, {"item_id": "i30", "limit": limit})
            assert len(answer.json["users"]) == limit
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


async def test_a_recipe_without_permission_refuses_users() -> None:
    """A removed permission applies at once, before the model is loaded again."""
    async with serving_users() as (client, state):
        serve(state, served_in(state).beside(None, None, Policy()))
        taken_out = await client.post(USERS, {"item_id": "i5"})
        plain = await client.post(USERS.replace("movies", "plain"), {"item_id": "i5"})
        about = (await client.get("/v1/recipes/movies")).json
    assert "recommend-users" not in about["supported_verbs"]
    for answer in (taken_out, plain):
        assert (answer.status, answer.json["code"]) == (400, "USERS_NOT_SERVED")
        assert "serving.users" in answer.json["detail"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "item_id"),
        ({"item_id": "i1", "limit": 1000, "offset": 1}, "offset"),
        ({"item_id": "i1", "order": "best"}, "order"),
        ({"item_id": 7}, "item_id"),
        ({"user_id": "u1"}, "user_id"),
    ],
)
async def test_an_invalid_field_is_named_in_the_error(body: dict[str, Any], named: str) -> None:
    async with serving_users() as (client, _):
        answer = await client.post(USERS, body)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert answer.json["errors"][0]["loc"][1] == named


async def test_a_key_needs_the_verb_recommend_users() -> None:
    """A key with other verbs gets 403, and so does a key with this verb for other verbs."""
    policies = parse_policies(
        b"shop: {verbs: [recommend, recommend-related]}\nmail: {verbs: [recommend-users]}", "p.yaml"
    )
    keys = parse_api_keys(f"shop:{hash_api_key(SHOP)},mail:{hash_api_key(MAIL)}")
    book = KeyPolicies(Metrics.disabled(), policies)
    async with serving_users(keys=keys, policies=book) as (client, _):
        refused = await client.post(USERS, {"item_id": "i5"}, headers={"X-API-Key": SHOP})
        allowed = await client.post(USERS, {"item_id": "i5"}, headers={"X-API-Key": MAIL})
        other = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"X-API-Key": MAIL})
    assert (refused.status, refused.json["code"]) == (403, "KEY_NOT_ALLOWED")
    assert allowed.status == 200
    assert other.status == 403
