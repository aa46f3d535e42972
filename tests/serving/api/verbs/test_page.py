"""`:page` and `:rerank` over HTTP: the same answers as in Python, their shape, their keys and their charge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import svc
from svc.asking.costs import Cost
from svc.asking.page import PageRequest
from svc.asking.parsing import parse
from svc.asking.requests import RecommendRequest
from svc.export.run import OpenedArtifact
from svc.library.answers import FramedOffer
from svc.metrics import Metrics
from svc.serving.api.authentication import hash_api_key, parse_api_keys
from svc.serving.api.counts import cost_of_request, costs_of_rows
from svc.serving.api.key_policies import KeyPolicies, parse_policies
from tests.serving.api.verbs.test_filters import fields, filtering
from tests.serving.client import HEADER, RECOMMEND, serve, served_in, serving

pytestmark = pytest.mark.anyio
PAGE, RERANK = RECOMMEND.replace(":recommend", ":page"), RECOMMEND.replace(":recommend", ":rerank")
ROWS: list[dict[str, Any]] = [
    {"id": "for you", "recommend": {"limit": 4, "diversity": 0.2}},
    {"id": "because", "related": {"to": "latest", "limit": 3}},
    {"id": "genre", "label": {"field": "genres", "rows": 2, "limit": 3}},
    {"id": "hot", "popular": {"limit": 5, "filter": {"year": {"gte": 1995}}}},
]
SHOP, MAIL = "k" * 43, "m" * 43


def items(row: dict[str, Any]) -> list[str]:
    return [item["item_id"] for item in row["items"]]


async def test_a_page_has_its_rows_in_order_without_an_item_twice() -> None:
    """Items have their metadata, scores and reasons. A label may give several rows."""
    async with filtering() as (client, state):
        answer = await client.post(PAGE, {"user_id": "u3", "history": ["i40"], "rows": ROWS})
        again = await client.post(PAGE, {"user_id": "u3", "history": ["i40"], "rows": ROWS})
        offer = FramedOffer(model=served_in(state).model, filters=fields())
    assert answer.status == 200
    assert list(answer.json) == ["request_id", "recipe", "model_version", "rows", "profile"]
    rows = answer.json["rows"]
    assert [row["id"] for row in rows] == ["for you", "because", "genre", "genre", "hot"]
    assert [len(row["items"]) for row in rows] == [4, 3, 3, 3, 5]
    assert rows[1]["seed_item"] == "i40"
    assert rows[2]["label"] != rows[3]["label"]
    shown = [item for row in rows for item in items(row)]
    assert len(shown) == len({*shown})
    assert "title" in rows[0]["items"][0]
    assert rows[4]["items"][0]["reason"] == ["popular"]
    assert answer.json["profile"] == "user+history"
    assert again.json["rows"] == rows
    shop = svc.Recommender(OpenedArtifact(offer.model, HEADER, "sha256:0", ""), offer)
    frame = shop.page("u3", history=["i40"], rows=ROWS)
    assert frame["item_id"].tolist() == shown
    assert frame["row"].tolist() == [row["id"] for row in rows for _ in row["items"]]
    assert frame.attrs["profile"] == "user+history"


async def test_a_page_of_nobody_tells_why_its_rows_are_empty() -> None:
    async with filtering() as (client, _):
        answer = (await client.post(PAGE, {"user_id": "nobody", "rows": ROWS[:1] + ROWS[3:]})).json
        invalid = await client.post(PAGE, {"user_id": "u1", "rows": [{"id": "a", "label": {"field": "genre"}}]})
    assert answer["profile"] == "none"
    assert answer["rows"][0]["items"] == []
    assert "training data" in answer["rows"][0]["why"]
    assert len(answer["rows"][1]["items"]) == 5
    assert invalid.status == 422
    assert invalid.json["detail"].startswith("rows.0.label.field: ")


async def test_a_list_comes_back_whole_in_another_order() -> None:
    """Each item tells its place in the list. Python gives the same order."""
    asked = ["i50", "nothing", "i7", "i30", "i2"]
    async with serving() as (client, state):
        answer = await client.post(RERANK, {"user_id": "u3", "items": asked, "weight": 1, "explain": 2})
        listed = await client.post(RERANK, {"user_id": "nobody", "items": asked})
        offer = FramedOffer(model=served_in(state).model)
    assert answer.status == 200
    assert list(answer.json) == ["request_id", "recipe", "model_version", "items", "ignored_items", "profile"]
    reordered = answer.json["items"]
    assert sorted(item["from"] for item in reordered) == [0, 1, 2, 3, 4]
    assert [asked[item["from"]] for item in reordered] == [item["item_id"] for item in reordered]
    assert reordered[1] == {"item_id": "nothing", "from": 1}
    scores = [item["score"] for item in reordered if "score" in item]
    assert scores == sorted(scores, reverse=True)
    assert all("because" in item for item in reordered if "score" in item)
    assert {item["item_id"] for item in reordered if item.get("seen")} == {"i2"}  # u3 has i0 to i3
    assert [item["item_id"] for item in listed.json["items"]] == asked
    assert listed.json["profile"] == "none"
    shop = svc.Recommender(OpenedArtifact(offer.model, HEADER, "sha256:0", ""), offer)
    frame = shop.rerank(asked, "u3", weight=1, explain=2)
    assert frame["item_id"].tolist() == [item["item_id"] for item in reordered]
    assert frame["seen"].tolist() == [item.get("seen", False) for item in reordered]


async def test_both_are_verbs_of_their_own_and_a_page_costs_as_its_rows() -> None:
    """A key that may only recommend gets 403, and a page takes the tokens of its rows."""
    keys = parse_api_keys(f"shop:{hash_api_key(SHOP)},mail:{hash_api_key(MAIL)}")
    policies = KeyPolicies(Metrics.disabled())
    policies.replace(
        parse_policies(b"shop: {verbs: [recommend]}\nmail: {verbs: [page], rate: 1/min, burst: 100}", "p.yaml")
    )
    async with serving(keys=keys, policies=policies) as (client, state):
        serve(state, replace(served_in(state), filters=fields()))
        for path, body in ((PAGE, {"user_id": "u1", "rows": ROWS[:1]}), (RERANK, {"user_id": "u1", "items": ["i1"]})):
            assert (await client.post(path, body, headers={"X-API-Key": SHOP})).status == 403
        page = {"user_id": "u1", "rows": [{"id": f"{number}", "recommend": {}} for number in range(16)]}
        statuses = [(await client.post(PAGE, page, headers={"X-API-Key": MAIL})).status for _ in range(10)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert statuses.index(429) == 100 // 16
    asked = parse(PageRequest, {"user_id": "u1", "rows": ROWS})
    single = parse(RecommendRequest, {"user_id": "u1", "limit": 4, "diversity": 0.2})
    assert costs_of_rows(asked)[0] is cost_of_request(single)
    assert cost_of_request(asked) is max(costs_of_rows(asked))


def test_conditions_of_a_page_count_once() -> None:
    """Those of boosts count in the row that has them, and those of filters beside the rows."""
    conditions = {"all": [{"year": {"gte": year}} for year in range(20)]}
    row: dict[str, Any] = {"boosts": [{"filter": conditions, "factor": 2}]}
    page: dict[str, Any] = {"user_id": "u1", "rows": [{"id": "boosted", "recommend": row}]}
    assert costs_of_rows(parse(PageRequest, page)) == [Cost.RULED]
    page["rows"].append({"id": "hot", "popular": {"filter": conditions}})
    assert costs_of_rows(parse(PageRequest, page)) == [Cost.RULED, Cost.PLAIN, Cost.RULED]
