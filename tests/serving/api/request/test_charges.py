"""A question counts against the rate of its key as many plain questions as it takes the time of."""

from __future__ import annotations

from typing import Any

import pytest

from svc.metrics import Metrics
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.access.key_policies import KeyPolicies, parse_policies
from svc.serving.api.request.state import ServerState
from svc.serving.models.costs import PLAIN, Kind
from svc.serving.models.policy import Policy
from tests.serving.client import RECOMMEND, Answer, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
KEY = new_api_key()
BATCH = RECOMMEND.replace(":", ":batch-")
DIVERSE = {"user_id": "u3", "diversity": 0.5}


def bounded(rate: str) -> Any:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)}")
    policies = parse_policies(f"shop: {{{rate}}}".encode(), "policies.yaml")
    return serving(keys=keys, policies=KeyPolicies(Metrics.disabled(), policies))


def measured(state: ServerState, weight: float) -> None:
    """Let a diverse question weigh as many plain ones."""
    costs = served_in(state).lane._costs
    for _ in range(50):
        costs.learn(PLAIN, 1, 1e-3)
        costs.learn(Kind(is_diverse=True), 1, weight * 1e-3)


async def ask(client: Client, body: object, path: str = RECOMMEND) -> Answer:
    return await client.post(path, body, headers={"X-API-Key": KEY})


async def statuses(client: Client, body: object, times: int, path: str = RECOMMEND) -> list[int]:
    return [(await ask(client, body, path)).status for _ in range(times)]


async def test_a_diverse_question_counts_what_it_weighs() -> None:
    """The nearest power of two; plain ones count 1, and what was asked before and is kept counts 1 too."""
    async with bounded("rate: 1/h, burst: 20") as (client, state):
        measured(state, 7.0)
        assert await statuses(client, DIVERSE, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 9}, 1) == [200]
        assert await statuses(client, {**DIVERSE, "limit": 8}, 1) == [429]
        assert await statuses(client, DIVERSE, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


async def test_what_counts_more_than_the_burst_is_refused_at_once_and_told_so() -> None:
    """However long the key waits; there is no Retry-After, as waiting changes nothing. Nothing of it is counted."""
    async with bounded("rate: 1/h, burst: 5") as (client, state):
        measured(state, 8.0)
        for path, body in ((RECOMMEND, DIVERSE), (BATCH, {"requests": [DIVERSE]}), (BATCH, {"requests": [{}] * 6})):
            refused = await ask(client, body, path)
            assert (refused.status, refused.json["code"]) == (429, "RATE_LIMITED")
            assert "more than the burst of 5" in refused.json["detail"]
            assert "retry-after" not in refused.headers
        assert await statuses(client, {"user_id": "u4"}, 6) == [200] * 5 + [429]


async def test_a_batch_counts_the_sum_of_its_elements() -> None:
    """One that is not valid counts 1."""
    async with bounded("rate: 1/h, burst: 20") as (client, state):
        measured(state, 8.0)
        body = {"requests": [DIVERSE, DIVERSE, {"user_id": "u4"}, {"limit": 0}]}
        assert await statuses(client, body, 1, BATCH) == [200]
        assert await statuses(client, {"user_id": "u4"}, 3) == [200, 200, 429]


async def test_a_guess_refuses_nobody_for_good() -> None:
    """A kind that was never measured is asked once, for the whole burst; from then on it counts what it weighs."""
    async with bounded("rate: 1/h, burst: 5") as (client, state):
        asked = {"user_id": "u3", "explain": 3, "limit": 500}
        assert served_in(state).lane._costs.plain_s(1) > 1
        assert await statuses(client, asked, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 1) == [429]


async def test_rules_of_the_recipe_cost_the_key_nothing() -> None:
    """The client did not ask for them."""
    async with bounded("rate: 1/h, burst: 3") as (client, state):
        measured(state, 100.0)
        serve(state, served_in(state).under(Policy(diversity=0.5)))
        assert await statuses(client, {"user_id": "u3"}, 1) == [200]
        assert await statuses(client, {"user_id": "u4"}, 2) == [200, 200]
        assert (await ask(client, DIVERSE)).status == 429
