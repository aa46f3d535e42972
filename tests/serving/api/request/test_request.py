"""One request: its id, its key, and a client that leaves while the key is checked."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
import trio

from svc.serving.api.access import authentication
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.request.request import Checks, Request
from svc.settings import Settings
from tests.serving.client import RECOMMEND, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio


async def test_request_ids_are_taken_when_well_formed() -> None:
    """A good X-Request-ID comes back; a bad one is replaced by 12 hex characters."""
    async with serving() as (client, _):
        good = await client.get("/v1/health", headers={"x-request-id": "A_b-9"})
        bad = await client.get("/v1/health", headers={"x-request-id": "a b\t"})
    assert good.headers["x-request-id"] == "A_b-9"
    assert len(bad.headers["x-request-id"]) == 12
    int(bad.headers["x-request-id"], 16)


async def test_a_client_that_leaves_is_not_kept_until_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood whose clients do not wait costs no memory: a refusal that nobody waits for is not waited for."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 0.01)
    monkeypatch.setattr(authentication, "REFUSALS_AT_ONCE", 0.0)
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        headers = [(b"host", b"localhost"), (b"x-api-key", new_api_key().encode())]
        leaving = Sent("POST", RECOMMEND.encode(), headers, leaves_s=1)
        started = trio.current_time()
        assert await client.app(leaving) is None
        assert trio.current_time() - started < 5


async def test_what_came_while_a_key_was_checked_is_not_lost() -> None:
    """The first request with a key may bring its body in parts."""
    key = new_api_key()
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(key)}")) as (client, _):
        parts = [bytes([byte]) for byte in b'{"user_id":"u1"}']
        answer = await client.call("POST", RECOMMEND, parts, headers={"x-api-key": key})
    assert answer.status == 200


async def test_a_compressed_body_is_refused_by_its_header() -> None:
    """Not as invalid JSON: 415 names the header. `identity` says nothing."""
    async with serving() as (client, _):
        packed = await client.post(RECOMMEND, gzip.compress(b'{"user_id":"u1"}'), headers={"content-encoding": "gzip"})
        plain = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"content-encoding": "identity"})
    assert (packed.status, packed.json["code"]) == (415, "ENCODING_NOT_SUPPORTED")
    assert "Content-Encoding" in packed.json["detail"]
    assert plain.status == 200


@pytest.mark.parametrize("has_keys", [False, True])
async def test_a_key_has_turns_of_its_own_only_where_keys_are_checked(has_keys: bool) -> None:
    """Anybody can invent keys for a server that has none."""
    key = new_api_key()
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(key)}") if has_keys else {}) as (_, state):
        sent = Sent("GET", b"/", [(b"host", b"localhost"), (b"x-api-key", key.encode())])
        turns_of = Request(sent, Checks(state)).budget(state.admission).key
    assert turns_of == (key.encode() if has_keys else None)


async def test_browsers_of_allowed_origins_may_call() -> None:
    """CORS headers go to allowed origins only, on errors too; a preflight is answered without a key."""
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    settings = replace(Settings(), allowed_origins=("https://shop.test",))
    async with serving(settings, keys) as (client, _):
        preflight = {"origin": "https://shop.test", "access-control-request-method": "POST"}
        allowed = await client.call("OPTIONS", RECOMMEND, headers=preflight)
        refused = await client.call("OPTIONS", RECOMMEND, headers={**preflight, "origin": "https://evil.test"})
        error = await client.post(RECOMMEND, {}, headers={"origin": "https://shop.test"})
    assert allowed.status == 204
    assert allowed.headers["access-control-allow-origin"] == "https://shop.test"
    asked = set(allowed.headers["access-control-allow-headers"].split(", "))
    assert {"X-API-Key", "traceparent", "X-Request-Timeout-Ms"} <= asked
    assert "Retry-After" in error.headers["access-control-expose-headers"].split(", ")
    assert refused.status == 405
    assert "access-control-allow-origin" not in refused.headers
    assert error.status == 401
    assert error.headers["access-control-allow-origin"] == "https://shop.test"
