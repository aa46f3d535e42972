"""Random filters against the whole application, in single requests and in batches."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from svc.model.ranking.filter_fields import FilterFields, LabelField, NumberField
from svc.recipe.filter_tree import MAX_CONDITIONS
from tests.filter_trees import KINDS, fuzzed, widest
from tests.serving.client import N_ITEMS, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
RECOMMEND = "/v1/recipes/movies:recommend"
TREES, BATCH = 200, 100
GENRES = ["Comedy", "Drama|Comedy", "War|g7", None, "d e|é"]


class Counted:
    """A field that counts the compilations of its conditions."""

    compiled = 0

    def __init__(self, field: Any) -> None:
        self._field = field

    def __getattr__(self, name: str) -> Any:
        return getattr(self._field, name)

    def matching(self, name: str, operand: Any) -> Any:
        Counted.compiled += 1
        return self._field.matching(name, operand)


def fields() -> FilterFields:
    genres = [GENRES[item % 5] for item in range(N_ITEMS)]
    made: dict[str, Any] = {
        "genres": LabelField.read("genres", "multi_label", "|", genres, N_ITEMS),
        "country": LabelField.read("country", "categorical", "|", ["é", None, "War"] * (N_ITEMS // 3), N_ITEMS),
        "year": NumberField.read("year", [1950 + item if item % 7 else None for item in range(N_ITEMS)], N_ITEMS),
    }
    assert {name: field.kind for name, field in made.items()} == KINDS
    return FilterFields({name: Counted(field) for name, field in made.items()}, N_ITEMS)


def encoded(body: Any) -> bytes:
    """Encode JSON with escapes for text that UTF-8 cannot hold, such as a lone surrogate."""
    return json.dumps(body).encode()


def bodies() -> Iterator[dict[str, Any]]:
    rng = random.Random(20261122)
    for number in range(TREES):
        who: dict[str, Any] = {"user_id": f"u{number % 20}"} if number % 3 else {"history": ["i3", "i9"]}
        yield {**who, "limit": 5, "filter": fuzzed(rng)}


async def post(client: Client, verb: str, body: Any) -> Any:
    return await client.post(f"/v1/recipes/movies:{verb}", encoded(body))


async def test_any_filter_is_answered_or_refused_with_its_path() -> None:
    """No filter gives 5xx, and a batch gives the same result as a single request.

    A refused filter is never compiled. The number of conditions that a filter compiles is bounded, and so is the work
    of one request.
    """
    async with serving() as (client, state):
        serve(state, replace(served_in(state), filters=fields()))
        alone: list[tuple[Any, Any]] = []
        seen: dict[int, int] = {}
        for body in bodies():
            Counted.compiled = 0
            answer = await post(client, "recommend", body)
            seen[answer.status] = seen.get(answer.status, 0) + 1
            found = answer.json
            if b"\\ud800" in encoded(body):
                assert answer.status == 422
                continue
            if answer.status == 422:
                assert all(error["loc"][:2] == ["body", "filter"] and error["msg"] for error in found["errors"]), (
                    body,
                    found,
                )
                assert Counted.compiled == 0
            else:
                assert answer.status == 200 or (answer.status, found["code"]) == (404, "NO_CANDIDATES"), body
                assert Counted.compiled <= 6 * MAX_CONDITIONS
            alone.append((body, found))
        assert seen.keys() == {200, 404, 422}
        assert min(seen.values()) > TREES // 20, seen
        for start in range(0, len(alone), BATCH):
            some = alone[start : start + BATCH]
            answer = await post(
                client, "batch-recommend", {"requests": [body for body, _ in some], "include_metadata": True}
            )
            assert answer.status == 200
            for result, (_, single) in zip(answer.json["results"], some, strict=True):
                assert result.get("items") == single.get("items")
                assert result.get("code") == single.get("code")


async def test_the_widest_filter_is_compiled_once() -> None:
    """The filter has 32 conditions of 1,000 values. The second request finds it in the cache."""
    async with serving() as (client, state):
        serve(state, replace(served_in(state), filters=fields()))
        tree = widest(random.Random(1))
        Counted.compiled = 0
        for wanted in ({"not": tree}, {"not": tree}):
            assert (await post(client, "recommend", {"user_id": "u3", "filter": wanted})).status == 200
        assert Counted.compiled == MAX_CONDITIONS
        too_many = {"any": [tree, {"year": {"exists": True}}]}
        refused = await post(client, "recommend", {"user_id": "u3", "filter": too_many})
        assert (refused.status, Counted.compiled) == (422, MAX_CONDITIONS)
