"""The access log: which answers have a line, and what stands in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from svc import logs
from svc.errors import HeadersTooLarge
from svc.serving.api.access.api_keys import hash_api_key, parse_api_keys
from svc.settings import Settings
from tests.serving.client import serving

pytestmark = pytest.mark.anyio
KEY = "k" * 43
KNOWN, UNKNOWN = {"user_id": "u1"}, {"user_id": "nobody"}


@pytest.fixture
def lines() -> Iterator[list[str]]:
    written: list[str] = []
    logs.configure(Settings(log_format="json"), write=written.append)
    yield written
    logs.configure(Settings())


def answered(lines: list[str]) -> list[dict[str, Any]]:
    return [record for record in map(json.loads, lines) if record["event"] == "request_answered"]


@pytest.mark.parametrize(
    ("mode", "statuses"), [("off", []), ("errors", [404, 404]), ("all", [200, 404, 404, 200, 503])]
)
async def test_a_mode_decides_which_answers_have_a_line(lines: list[str], mode: str, statuses: list[int]) -> None:
    """A probe that fails every second is no news; with `all`, it has its line too."""
    async with serving(Settings(access_log=mode)) as (client, _):
        await client.post("/v1/recipes/movies:recommend", KNOWN)
        await client.post("/v1/recipes/movies:recommend", UNKNOWN)
        await client.get("/nowhere?secret=1")
        await client.get("/v1/recipes/movies")
        await client.get("/v1/health")
    assert [record["status"] for record in answered(lines)] == statuses
    assert "secret" not in "".join(lines)


async def test_a_line_says_who_asked_for_what_and_how_it_ended(lines: list[str]) -> None:
    """The kid of the key, never the key; nothing of the body."""
    async with serving(Settings(access_log="all"), parse_api_keys(f"shop:{hash_api_key(KEY)}")) as (client, _):
        headers = {"X-API-Key": KEY, "X-Request-ID": "r1"}
        await client.post("/v1/recipes/movies:recommend", KNOWN, headers=headers)
        await client.call("PUT", "/v1/recipes/movies:recommend", headers={"X-API-Key": KEY})
        await client.get("/v1/recipes", headers={"Authorization": f"Bearer {KEY}"})
    first, second, third = answered(lines)
    assert first.pop("ms") >= 0
    first.pop("timestamp")
    assert first == {
        "event": "request_answered",
        "level": "info",
        "request_id": "r1",
        "method": "POST",
        "recipe": "movies",
        "verb": "recommend",
        "status": 200,
        "client": "127.0.0.1",
        "kid": "shop",
    }
    assert (second["status"], second["verb"]) == (405, "recommend")
    assert (third["status"], third["verb"], third["recipe"], third["kid"]) == (200, "list_recipes", None, "shop")
    assert KEY not in "".join(lines)


async def test_what_is_no_request_has_a_line(lines: list[str]) -> None:
    """Its status, the client and the request id of the answer; a method was never read."""
    async with serving(Settings(access_log="errors")) as (client, _):
        response = client.app.refused(HeadersTooLarge(), "192.0.2.7")
    (line,) = answered(lines)
    assert (line["status"], line["client"], line["method"]) == (431, "192.0.2.7", "")
    assert line["request_id"].encode() == dict(response.headers)[b"x-request-id"]
