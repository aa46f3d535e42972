"""A question counts against the rate of its key as many plain questions as its class."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from svc.errors import ValidationFailed
from svc.metrics import Metrics
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.access.key_policies import KeyPolicies, parse_policies
from svc.serving.api.bodies.parsing import Rejected
from svc.serving.api.bodies.requests import AnyQuestion, RecommendRequest, RelatedRequest, UsersRequest
from svc.serving.api.request.charges import cost_of_request
from svc.serving.models.costs import Cost
from svc.serving.models.policy import Policy
from tests.serving.client import RECOMMEND, Answer, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
KEY = new_api_key()
BATCH = RECOMMEND.replace(":", ":batch-")
DIVERSE = {"user_id": "u3", "diversity": 0.5}
FEATURES = {"tag": "a"}


def bounded(rate: str) -> Any:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)}")
    policies = parse_policies(f"shop: {{{rate}}}".encode(), "policies.yaml")
    return serving(keys=keys, policies=KeyPolicies(Metrics.disabled(), policies))


async def ask(client: Client, body: object, path: str = RECOMMEND) -> Answer:
    return await client.post(path, body, headers={"X-API-Key": KEY})


async def statuses(client: Client, body: object, times: int, path: str = RECOMMEND) -> list[int]:
    return [(await ask(client, body, path)).status for _ in range(times)]


@pytest.mark.parametrize(
    ("schema", "body", "cost"),
    [
        (RecommendRequest, {"user_id": "u3"}, Cost.PLAIN),
        (RecommendRequest, {"history": ["i1"], "filter": {"genre": {"any": ["a"]}}}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "dislikes": ["i1"] * 64}, Cost.PLAIN),
        (RecommendRequest, {"user_id": "u3", "dislikes": ["i1"] * 65}, Cost.LONG),
        (RecommendRequest, {"dislikes": ["i1"]}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "offset": 30}, Cost.LONG),
        (RecommendRequest, {"user_features": FEATURES}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "pins": [{"item_id": "i1", "position": 1}]}, Cost.LONG),
        (RecommendRequest, {"user_id": "u3", "explain": 1}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "limits": [{"field": "genre", "max": 1}]}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "shown": ["i1"]}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "seed": "monday"}, Cost.RULED),
        (RecommendRequest, {"user_id": "u3", "shown": ["i1"], "rotation": 0, "seed": "a", "shuffle": 0}, Cost.PLAIN),
        (RecommendRequest, {**DIVERSE, "limit": 900}, Cost.HEAVY),
        (UsersRequest, {"item_id": "i1"}, Cost.RULED),
        (UsersRequest, {"item_id": "i1", "limit": 100, "offset": 1}, Cost.HEAVY),
        (RelatedRequest, {"seed_items": ["i1"]}, Cost.PLAIN),
        (RelatedRequest, {"item_features": FEATURES}, Cost.LONG),
        (RelatedRequest, {"item_features": {f"n{item}": FEATURES for item in range(33)}}, Cost.RULED),
    ],
)
def test_the_class_follows_from_the_body_alone(schema: type[AnyQuestion], body: dict[str, Any], cost: Cost) -> None:
    asked: AnyQuestion = TypeAdapter(schema).validate_python(body)
    assert cost_of_request(asked) is cost


def test_an_element_that_is_not_valid_counts_one() -> None:
    assert cost_of_request(Rejected(ValidationFailed("no", errors=[]))) is Cost.PLAIN


async def test_a_diverse_question_counts_sixteen() -> None:
    """Plain ones count 1, and what was asked before and is kept counts 1 too."""
    async with bounded("rate: 1/h, burst: 36") as (client, _):
        assert await statuses(client, DIVERSE, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 9}, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 8}, 1) == [429]
        assert await statuses(client, DIVERSE, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


@pytest.mark.parametrize(("path", "body"), [(RECOMMEND, DIVERSE), (BATCH, {"requests": [DIVERSE]})])
async def test_what_is_refused_for_its_cost_is_not_prepared(
    path: str, body: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared: list[object] = []
    async with bounded("rate: 1/h, burst: 16") as (client, _):
        assert await statuses(client, {"user_id": "u4"}, 1) == [200]
        monkeypatch.setattr(RecommendRequest, "prepare", lambda *asked: prepared.append(asked))
        assert await statuses(client, body, 1, path) == [429]
    assert not prepared


async def test_more_elements_than_the_burst_are_refused_at_once_and_told_so() -> None:
    """However long the key waits; there is no Retry-After, as waiting changes nothing. Nothing of it is counted."""
    async with bounded("rate: 1/h, burst: 5") as (client, _):
        refused = await ask(client, {"requests": [{}] * 6}, BATCH)
        assert (refused.status, refused.json["code"]) == (429, "RATE_LIMITED")
        assert "more than the burst of 5" in refused.json["detail"]
        assert "retry-after" not in refused.headers
        assert await statuses(client, {"user_id": "u4"}, 6) == [200] * 5 + [429]


async def test_a_batch_counts_the_sum_of_its_elements() -> None:
    """One that is not valid counts 1."""
    async with bounded("rate: 1/h, burst: 36") as (client, _):
        body = {"requests": [DIVERSE, DIVERSE, {"user_id": "u4"}, {"limit": 0}]}
        assert await statuses(client, body, 1, BATCH) == [200]
        assert await statuses(client, {"user_id": "u4"}, 3) == [200, 200, 429]


async def test_a_class_beyond_the_burst_takes_all_of_it() -> None:
    """Nobody is refused for good by the class of one question."""
    async with bounded("rate: 1/h, burst: 5") as (client, _):
        assert await statuses(client, {"user_id": "u3", "explain": 3, "limit": 500}, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


async def test_rules_of_the_recipe_cost_the_key_nothing() -> None:
    """The client did not ask for them."""
    async with bounded("rate: 1/h, burst: 3") as (client, state):
        serve(state, served_in(state).under(Policy(diversity=0.5)))
        assert await statuses(client, {"user_id": "u3"}, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert (await ask(client, DIVERSE)).status == 429
