"""The error of a filter that no item satisfies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving.api.verbs.test_filters import filtering
from tests.serving.client import BATCH, RECOMMEND

pytestmark = pytest.mark.anyio
EMPTY = "no item is left to recommend after exclusions"
DRAMA = "genres has no value 'drama'; did you mean 'Drama'?"
YEARS = "no item has year in this range; there are numbers from 1991 to 2049"
MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"genres": {"any": ["drama"]}}, f"{EMPTY}: {DRAMA}"),
    ({"genres": {"all": ["Comedy", "drama"]}}, f"{EMPTY}: {DRAMA}"),
    ({"all": [{"year": {"gt": 1990}}, {"genres": {"any": ["drama"]}}]}, f"{EMPTY}: {DRAMA}"),
    ({"genres": {"any": ["zzz"]}}, f"{EMPTY}: genres has no value 'zzz'"),
    ({"year": {"gt": 3000}}, f"{EMPTY}: {YEARS}"),
    ({"year": {"gt": 2000, "lt": 1995}}, f"{EMPTY}: {YEARS}"),
    ({"all": [{"genres": {"any": ["War"]}}, {"not": {"genres": {"any": ["War"]}}}]}, EMPTY),
]


@pytest.mark.parametrize(("tree", "message"), MESSAGES, ids=map(str, range(len(MESSAGES))))
async def test_a_condition_that_no_item_satisfies_is_named(tree: dict[str, Any], message: str) -> None:
    """The error suggests the most similar value, or gives the range of numbers."""
    async with filtering() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u3", "filter": tree})
    assert (answer.status, answer.json["code"], answer.json["detail"]) == (404, "NO_CANDIDATES", message)


async def test_elements_of_a_batch_get_the_error_of_a_single_request() -> None:
    """Each element gets its own error."""
    async with filtering() as (client, _):
        body = {"requests": [{"user_id": "u3", "filter": tree} for tree, _ in MESSAGES]}
        answer = (await client.post(BATCH, body)).json
    assert [element["detail"] for element in answer["results"]] == [message for _, message in MESSAGES]
