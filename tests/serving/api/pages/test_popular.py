"""The most chosen items under a filter: listing, refusals and charges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from svc.metrics import Metrics
from svc.recipe.filter_tree import parse_filter
from svc.recipe.serving_schema import Availability
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.access.key_policies import KeyPolicies, parse_policies
from svc.serving.api.pages.popular import INLINE_FILTER_CHARACTERS
from svc.serving.api.request.state import ServerState
from svc.serving.models.lists.availability import Available, ItemList
from svc.serving.models.policy import Policy
from tests.serving.api.verbs.test_filters import BATCH, POPULAR, RECOMMEND, SOURCE, fields, genres_of, numbers
from tests.serving.client import N_ITEMS, Answer, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
KEY = new_api_key()
COMEDY = {"genres": {"any": ["Comedy"]}}
LATELY = np.random.default_rng(8).integers(0, 9, N_ITEMS).astype(np.float64)
"""Number of recent choices of each item, with many ties."""
BY_COUNT = sorted(range(N_ITEMS), key=lambda item: -LATELY[item])


@asynccontextmanager
async def listing(policy: Policy | None = None, **more: Any) -> AsyncIterator[tuple[Client, ServerState]]:
    """Return a model with counts of recent choices and with filter fields."""
    async with serving(**more) as (client, state):
        served = served_in(state)
        served.model.popularity = LATELY
        serve(state, replace(served, filters=fields()).beside(None, None, policy or Policy()))
        yield client, state


async def ask(client: Client, tree: object, more: str = "&limit=60", **options: Any) -> Answer:
    text = tree if isinstance(tree, str) else json.dumps(tree)
    return await client.get(POPULAR, query=f"filter={quote(text)}{more}", **options)


@pytest.mark.parametrize("tree", [COMEDY, {"all": [COMEDY, {"not": {"year": {"gte": 2020}}}]}, None])
async def test_items_that_satisfy_the_filter_are_listed_most_chosen_first(tree: Any) -> None:
    """The list equals brute force, and the fallback of the verbs under the same filter."""
    wanted = [item for item in BY_COUNT if tree is None or "Comedy" in genres_of(item)]
    if tree is not None and "all" in tree:
        wanted = [item for item in wanted if item < 30 or item % 5 == 0]
    fallback = {"user_id": "nobody", "fallback": "popular", "filter": tree, "limit": 60}
    async with listing() as (client, _):
        answers = [(await ask(client, tree)).json for _ in range(2)]
        page = (await ask(client, tree, "&limit=3&offset=2")).json
        single = (await client.post(RECOMMEND, fallback)).json
        batch = (await client.post(BATCH, {"requests": [fallback]})).json
    for answer in (*answers, single, batch["results"][0]):
        assert numbers(answer) == wanted
    assert numbers(page) == wanted[2:5]
    assert list(page) == ["request_id", "recipe", "model_version", "items"]
    assert answers[0]["items"] == answers[1]["items"]


async def test_the_recipes_filter_and_its_list_hold_beside_the_requests_filter() -> None:
    declared = Availability(source=SOURCE, id_column="id", mode="deny")
    policy = Policy(parse_filter({"year": {"exists": True}}, fields().kinds))
    gone = tuple(f"i{item}" for item in BY_COUNT[:20])
    async with listing(policy) as (client, state):
        served = served_in(state)
        serve(state, replace(served, available=Available.of(declared, ItemList(gone, 0.0), served.model.item_ids)))
        answer = (await ask(client, COMEDY)).json
    assert numbers(answer) == [item for item in BY_COUNT[20:] if "Comedy" in genres_of(item) and item % 5]


REFUSED = [
    ("{", ["query", "filter"], "a filter in a query string is JSON"),
    ("", ["query", "filter"], "a filter in a query string is JSON"),
    ('{"year": {"gte": NaN}}', ["query", "filter"], "a filter in a query string is JSON"),
    ('{"year": {"gte": 1}, "year": {"gte": 2}}', ["query", "filter"], "an object names one key twice"),
    ("[" * 5000, ["query", "filter"], "recursion limit"),
    ("[]", ["query", "filter"], "an object with exactly one key"),
    ('{"genre": {"any": ["x"]}}', ["query", "filter", "genre"], "did you mean 'genres'?"),
    ('{"secret": {"any": ["x"]}}', ["query", "filter", "secret"], "there are genres, year"),
    (
        json.dumps({"any": [{"year": {"gte": n}} for n in range(33)]}),
        ["query", "filter", "any"],
        "at most 32 conditions",
    ),
]


@pytest.mark.parametrize(("text", "place", "words"), REFUSED, ids=lambda value: str(value)[:30])
async def test_an_invalid_filter_is_refused_with_its_place(text: str, place: list[str], words: str) -> None:
    """The bounds are those of the verbs."""
    async with listing() as (client, _):
        answer = await ask(client, text)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    (error,) = answer.json["errors"]
    assert (error["loc"], words in error["msg"]) == (place, True)


async def test_a_filter_that_no_item_satisfies_gives_the_error_of_a_verb() -> None:
    async with listing() as (client, _):
        answer = await ask(client, {"genres": {"any": ["Comdy"]}})
        verb = await client.post(RECOMMEND, {"user_id": "u1", "filter": {"genres": {"any": ["Comdy"]}}})
    assert (answer.status, answer.json["code"]) == (verb.status, verb.json["code"]) == (404, "NO_CANDIDATES")
    assert answer.json["detail"] == verb.json["detail"]
    assert "did you mean 'Comedy'?" in answer.json["detail"]


async def test_a_filter_is_compiled_once() -> None:
    """A long filter is too. A verb uses the items that the list has compiled."""
    tree = {"any": [COMEDY, {"genres": {"any": ["x" * 60 + str(n) for n in range(80)]}}]}
    assert len(json.dumps(tree)) > INLINE_FILTER_CHARACTERS
    async with listing() as (client, state):
        compiled = served_in(state).filters
        assert compiled is not None
        kept: list[object] = []
        compiled._keep = lambda key, items, keep=compiled._keep: (kept.append(key), keep(key, items))[1]  # type: ignore[method-assign]
        for _ in range(3):
            assert (await ask(client, tree)).status == 200
        assert (await client.post(RECOMMEND, {"user_id": "u1", "filter": tree})).status == 200
    assert len(kept) == 2  # as the client wrote it, and in its canonical form


async def test_a_filtered_list_is_charged_its_cost_and_a_plain_one_1() -> None:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)}")
    policies = KeyPolicies(Metrics.disabled(), parse_policies(b"shop: {rate: 1/h, burst: 10}", "policies.yaml"))
    async with listing(keys=keys, policies=policies) as (client, _):
        own = {"headers": {"X-API-Key": KEY}}
        plain = [(await client.get(POPULAR, query="limit=60", **own)).status for _ in range(2)]
        filtered = [(await ask(client, COMEDY, **own)).status for _ in range(3)]
    assert (plain, filtered) == ([200, 200], [200, 200, 429])


async def test_rules_apply_if_the_window_has_no_choices() -> None:
    """All choices count then. Boosts lift items, and diversity moves them."""
    async with listing() as (client, state):
        model = served_in(state).model
        model.popularity = np.zeros(N_ITEMS)
        counts = np.bincount(model.history.columns, minlength=N_ITEMS)
        plain = (await ask(client, None)).json["items"]
        body = {"user_id": "nobody", "fallback": "popular", "limit": 60}
        rules: list[dict[str, Any]] = [{"boosts": [{"filter": COMEDY, "factor": 10}]}, {"diversity": 0.5}]
        boosted, diverse = [(await client.post(RECOMMEND, body | rule)).json["items"] for rule in rules]
    chosen = [item["item_id"] for item in plain if counts[int(item["item_id"][1:])] > 0]
    lifted = [item for item in chosen if "Comedy" in genres_of(int(item[1:]))]
    assert 0 < len(lifted) < len(chosen)
    assert [item["item_id"] for item in boosted[: len(lifted)]] == lifted
    assert diverse[0]["item_id"] == plain[0]["item_id"]
    assert [item["item_id"] for item in diverse] != [item["item_id"] for item in plain]
