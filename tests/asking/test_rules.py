"""Rules that reorder a page, from the request or the recipe."""

from __future__ import annotations

import json
from typing import Any

import pytest

from svc.asking.policy import Policy
from svc.recipe.filter_tree import parse_filter
from svc.recipe.serving_schema import ServingBoost, ServingLimit, ServingPin
from tests.serving.api.verbs.test_filters import RECOMMEND, RELATED, fields, filtering, genres_of, numbers

pytestmark = pytest.mark.anyio


async def test_rules_reorder_the_page_and_are_given_as_reasons() -> None:
    """Pins, boosts, limits and diversity change the page, and `reason` names the rule of an item.

    A pin of an unknown item is listed as ignored. A pin works with a filter that its item satisfies.
    """
    async with filtering() as (client, _):
        asked = {
            "user_id": "u3",
            "limit": 6,
            "pins": [{"item_id": "i50", "position": 1}, {"item_id": "x", "position": 2}],
        }
        pinned = (await client.post(RECOMMEND, asked)).json
        filtered = (await client.post(RECOMMEND, {**asked, "filter": {"genres": {"any": ["War"]}}, "limit": 3})).json
        limited = (
            await client.post(RECOMMEND, {"user_id": "u3", "limit": 30, "limits": [{"field": "genres", "max": 2}]})
        ).json
        boost = [{"filter": {"genres": {"any": ["War"]}}, "factor": 10}]
        boosted = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 3, "boosts": boost})).json
        diverse = (await client.post(RELATED, {"seed_items": ["i3"], "limit": 9, "diversity": 0.7})).json
    assert numbers(pinned)[1] == 50
    assert pinned["items"][1]["reason"] == ["pinned"]
    assert pinned["ignored_items"] == ["x"]
    assert "reason" not in pinned["items"][0]
    assert 50 in numbers(filtered)
    assert "War" in genres_of(50)
    for genre in ("Comedy", "Drama", "War"):
        assert sum(genre in genres_of(item) for item in numbers(limited)) <= 2
    assert all("War" in genres_of(item) for item in numbers(boosted))
    assert all(item["reason"] == ["boosted"] for item in boosted["items"])
    assert any(item.get("reason") == ["diversified"] for item in diverse["items"])


async def test_shown_items_rank_lower_and_a_seed_shuffles() -> None:
    """A shown item leaves the top, and a seed changes the order. Weights of 0 change nothing.

    Unknown shown items are listed as ignored. A batch gives the same results.
    """
    asked = {"user_id": "u3", "limit": 6}
    async with filtering() as (client, _):
        plain = (await client.post(RECOMMEND, asked)).json
        first = plain["items"][0]["item_id"]
        questions: list[dict[str, Any]] = [
            {**asked, "shown": [{"item_id": first, "times": 100}, "x"], "rotation": 1},
            {**asked, "seed": "monday"},
            {**asked, "shown": [first], "seed": "monday", "rotation": 0, "shuffle": 0, "limit": 7},
            {**asked, "limit": 7},
        ]
        alone = [(await client.post(RECOMMEND, body)).json for body in questions]
        batch = await client.post(RECOMMEND.replace(":", ":batch-"), {"requests": questions, "include_metadata": True})
    for one, other in zip(alone, batch.json["results"], strict=True):
        assert (one["items"], one.get("ignored_items")) == (other["items"], other.get("ignored_items"))
    shown, shuffled, off, without = alone
    assert shown["items"][:5] == [{**item, "reason": ["rotated"]} for item in plain["items"][1:]]
    assert shown["ignored_items"] == ["x"]
    assert numbers(shuffled) != numbers(plain)
    assert off["items"] == without["items"]


RULES: list[tuple[dict[str, Any], list[str | int], str]] = [
    ({"limits": [{"field": "genre", "max": 1}]}, ["body", "limits", 0, "field"], "did you mean 'genres'?"),
    ({"limits": [{"field": "year", "max": 1}]}, ["body", "limits", 0, "field"], "numbers cannot be limited"),
    ({"limits": [{"field": "genres", "max": 1}] * 2}, ["body", "limits", 1, "field"], "keep one"),
    ({"boosts": [{"filter": {"yeah": {}}, "factor": 2}]}, ["body", "boosts", 0, "filter", "yeah"], "'year'"),
    ({"boosts": [{"factor": 2}]}, ["body", "boosts", 0, "filter"], "required"),
    ({"pins": [{"item_id": "a", "position": 1}, {"item_id": "a", "position": 2}]}, ["body", "pins", 1], "same item_id"),
    (
        {"pins": [{"item_id": "a", "position": 1}, {"item_id": "b", "position": 1}]},
        ["body", "pins", 1],
        "same position",
    ),
]


@pytest.mark.parametrize("case", RULES, ids=lambda case: json.dumps(case[0])[:40])
async def test_invalid_rules_are_refused_with_their_path(case: tuple[dict[str, Any], list[str | int], str]) -> None:
    """The answer is 422. Its message has the path of the rule and says how to correct it."""
    more, place, words = case
    async with filtering() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u1", **more})
    assert answer.status == 422
    error = answer.json["errors"][0]
    assert error["loc"][: len(place)] == place
    assert words in error["msg"]


async def test_the_rules_of_a_recipe_apply_unless_a_request_replaces_them() -> None:
    """A request replaces each field separately, and an empty list removes a rule.

    A rule outside its time has no effect.
    """
    later, far = {"year": {"gt": 0}}, {"item_id": "i51", "position": 1, "from": "9999-01-01T00:00Z"}
    past = ServingBoost(filter=later, factor=3.0, until="1970-01-02T00:00Z")
    soon = Policy(
        diversity=0.5,
        limits=(ServingLimit(field="genres", max=1),),
        boosts=((parse_filter(later, fields().kinds), past),),
        pins=(ServingPin(item_id="i50", position=0), ServingPin.model_validate(far)),
    )
    off = {"diversity": 0, "limits": [], "boosts": [], "pins": []}
    async with filtering(soon) as (client, _):
        ruled = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 5})).json
        plain = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 5, **off})).json
        own = (
            await client.post(
                RECOMMEND, {"user_id": "u3", "limit": 5, **off, "pins": [{"item_id": "i52", "position": 0}]}
            )
        ).json
    async with filtering() as (client, _):
        expected = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 5})).json
    assert ruled["items"][0]["item_id"] == "i50"
    assert "i51" not in [item["item_id"] for item in ruled["items"][:2]]
    assert not any("boosted" in item.get("reason", ()) for item in ruled["items"])
    assert plain["items"] == expected["items"]
    assert numbers(own)[0] == 52
