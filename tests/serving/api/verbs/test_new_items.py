"""New items as clients see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from svc.asking.item_lists import available_items
from svc.asking.item_tables import MetadataTable
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import FilterFields, LabelField
from svc.model.ranking.new_items import Descriptions, NewItems
from svc.serving.models.fragments import ItemFragments
from svc.serving.models.placed_items import PlacedItems
from tests.serving.artifacts import availability
from tests.serving.client import BATCH, COMPONENTS, N_ITEMS, RECOMMEND, RELATED, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio
DESCRIBED = {"n0": {"tag": "a"}, "n1": {"tag": "b"}, "n2": {}}
NEW = IdTable.from_ids(list(DESCRIBED))


def genres(count: int) -> FilterFields:
    """Return a field in which every other item is a Comedy, and the others have no genre."""
    values = ["Comedy" if item % 2 else None for item in range(count)]
    return FilterFields({"genres": LabelField.read("genres", "categorical", "|", values, count)}, count)


@asynccontextmanager
async def with_new(
    share: float | None = 0.2, listed: tuple[str, ...] | None = None, *, ordered: bool = False
) -> AsyncIterator[Client]:
    """Add three new items, of which n1 is a Comedy and the best for user u3. Add a list of available items if given."""
    async with serving() as (client, state):
        served = replace(served_in(state), filters=genres(N_ITEMS))
        served.model.history.keeps_order = ordered
        towards = np.asarray(served.model.scorer.users[3], dtype=np.float64)  # type: ignore[attr-defined]
        vectors = np.array([50.0, 60.0, 40.0])[:, np.newaxis] * towards
        assert vectors.shape == (3, COMPONENTS)
        features = served.model.features
        assert features is not None and features.item is not None
        descriptions = Descriptions.of([features.item.encode_sparse(one)[0] for one in DESCRIBED.values()])
        items = NewItems(NEW, vectors, N_ITEMS, share, descriptions=descriptions)
        titles = MetadataTable(("title",), [("Zero",), ("One",), ("Two",)])
        placed = PlacedItems(items, ItemFragments.build(NEW, titles), genres(3))
        available = None
        if listed is not None:
            available = available_items(availability(), listed, served.model.item_ids, items)
        serve(state, served.beside(available, placed, served.policy))
        yield client


def ids(answer: Any) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


async def test_a_new_item_has_its_reason_and_metadata() -> None:
    """One of five items is new, in a single answer, in a batch, and on each page."""
    body = {"user_id": "u3", "limit": 10}
    async with with_new() as client:
        answer = (await client.post(RECOMMEND, body)).json
        second = (await client.post(RECOMMEND, {"user_id": "u3", "limit": 5, "offset": 5})).json
        batch = (await client.post(BATCH, {"requests": [body, {"user_id": "u1"}], "include_metadata": True})).json
        related = (await client.post(RELATED, {"seed_items": ["i1"], "limit": 60})).json
    assert [item for item in ids(answer) if item.startswith("n")] == ["n1", "n0"]
    assert ids(answer).index("n1") == 4
    item = answer["items"][4]
    assert (item["reason"], item["title"], item["score"] > 0) == (["new"], "One", True)
    assert [one.get("reason") for one in answer["items"]].count(None) == 8
    assert second["items"] == answer["items"][5:]
    assert json.dumps(batch["results"][0]["items"]) == json.dumps(answer["items"])
    assert not [item for item in ids(related) if item.startswith("n")]


async def test_filters_lists_and_exclusions_apply_to_new_items() -> None:
    """Limits, boosts and pins apply to new items, too."""
    async with with_new(None, listed=("n1", "n2", "i40", "i41", "i43", "gone")) as client:
        shown = [
            ids((await client.post(RECOMMEND, {"user_id": "u3", **more})).json)
            for more in (
                {},
                {"filter": {"genres": {"any": ["Comedy"]}}},
                {"exclude_items": ["n1"]},
                {"include_items": ["n2", "i40", "n0"]},
                {"history": ["n2"]},
                {"limits": [{"field": "genres", "max": 1}]},
                {"pins": [{"item_id": "n2", "position": 0}]},
            )
        ]
        pinned = (await client.post(RECOMMEND, {"user_id": "u3", "pins": [{"item_id": "n0", "position": 0}]})).json
        boosted = await client.post(
            RECOMMEND, {"user_id": "u3", "boosts": [{"filter": {"genres": {"any": ["Comedy"]}}, "factor": 0.1}]}
        )
    assert shown[0][:2] == ["n1", "n2"]
    assert sorted(shown[0][2:]) == ["i40", "i41", "i43"]
    assert [item for item in shown[0] if item in ("n1", "i41", "i43")] == shown[1]
    assert shown[2][0] == "n2"
    assert set(shown[3]) == {"n2", "i40"}
    assert "n2" not in shown[4]
    assert shown[5] == ["n1", "n2", "i40"]
    assert shown[6][:2] == ["n2", "n1"]
    assert pinned["ignored_pins"] == [{"item_id": "n0", "why": "filtered"}]
    assert ids(boosted.json)[0] == "n2"
    assert next(item for item in boosted.json["items"] if item["item_id"] == "n1")["reason"] == ["new", "boosted"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_new_items_can_be_history_and_seeds(ordered: bool) -> None:
    """A new item counts by its features, in single requests and batches. A history with known items ignores it.

    Its weight is not used.
    """
    async with with_new(0.0, ordered=ordered) as client:
        for chosen in (["n0"], ["n1", "n0"], ["n0", "gone"]):
            features = {item: DESCRIBED[item] for item in chosen if item in DESCRIBED}
            expected = (await client.post(RELATED, {"item_features": features, "limit": 5})).json
            related = (await client.post(RELATED, {"seed_items": chosen, "limit": 5})).json
            body = {"history": chosen, "limit": 5, "include_seen": True}
            alone = (await client.post(RECOMMEND, body)).json
            both = {"requests": [{"user_id": "u1"}, body], "include_metadata": True}
            batch = (await client.post(BATCH, both)).json["results"][1]
            weighed = {**body, "history": [{"item_id": item, "weight": 2.0} for item in chosen]}
            assert related["items"] == alone["items"] == batch["items"] == expected["items"] != []
            assert (await client.post(RECOMMEND, weighed)).json["items"] == alone["items"]
            assert alone["profile"] == "history"
            assert alone.get("ignored_items", []) == [item for item in chosen if item not in DESCRIBED]
        mixed = (await client.post(RELATED, {"seed_items": ["i3", "n0"], "limit": 5})).json
        described = {"seed_items": ["i3"], "item_features": {"n0": DESCRIBED["n0"]}, "limit": 5}
        assert mixed["items"] == (await client.post(RELATED, described)).json["items"]
        answer = (await client.post(RECOMMEND, {"history": ["i3", "n0"], "limit": 5})).json
        assert (answer["ignored_items"], answer["profile"]) == (["n0"], "history")


async def test_a_page_left_empty_by_the_share_of_new_items_names_the_share() -> None:
    """Single requests and batches give the same message. Without new candidates, the message is another one."""
    some, none = ({"user_id": "u3", "include_items": items} for items in (["n0", "n2"], ["unknown"]))
    by_label = {"user_id": "u3", "include_items": ["n0", "n1"], "filter": {"genres": {"any": ["Comedy"]}}}
    async with with_new() as client:
        alone = [await client.post(RECOMMEND, body) for body in (some, by_label, none)]
        batch = (await client.post(BATCH, {"requests": [some, by_label, none]})).json
    async with with_new(share=None) as client:
        assert ids((await client.post(RECOMMEND, some)).json) == ["n0", "n2"]
    details = [answer.json["detail"] for answer in alone]
    assert [answer.json["code"] for answer in alone] == ["NO_CANDIDATES"] * 3
    assert details == [result["detail"] for result in batch["results"]]
    for detail, count in zip(details, (2, 1), strict=False):
        assert f"only new items are left to recommend ({count})" in detail
        assert "a share of 0.2 of the first n items may be new (serving.new_items.max_share)" in detail
    assert details[2] == "no item is left to recommend after exclusions"
