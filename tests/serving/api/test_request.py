"""One request: its id, its key, its origin, and a client that disconnects while its key is checked."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.errors import KeyNotAllowed, RateLimited
from svc.serving.api import authentication
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.request import REPORT_S, Refusals, Request
from svc.settings import Settings
from tests.serving.client import RECOMMEND, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio


async def test_valid_request_ids_are_returned() -> None:
    """12 hex characters replace an invalid X-Request-ID."""
    async with serving() as (client, _):
        good = await client.get("/v1/health", headers={"x-request-id": "A_b-9"})
        bad = await client.get("/v1/health", headers={"x-request-id": "a b\t"})
    assert good.headers["x-request-id"] == "A_b-9"
    assert len(bad.headers["x-request-id"]) == 12
    int(bad.headers["x-request-id"], 16)


async def test_a_client_that_disconnects_ends_the_delay_of_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of clients that disconnect costs no memory."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 0.01)
    monkeypatch.setattr(authentication, "REFUSALS_AT_ONCE", 0.0)
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        headers = [(b"host", b"localhost"), (b"x-api-key", new_api_key().encode())]
        leaving = Sent("POST", RECOMMEND.encode(), headers, leaves_s=1)
        started = trio.current_time()
        assert await client.app(leaving) is None
        assert trio.current_time() - started < 5


async def test_bytes_that_arrive_while_a_key_is_checked_are_kept() -> None:
    """A client may send its body in parts while the server checks its key."""
    key = new_api_key()
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(key)}")) as (client, _):
        parts = [bytes([byte]) for byte in b'{"user_id":"u1"}']
        answer = await client.call("POST", RECOMMEND, parts, headers={"x-api-key": key})
    assert answer.status == 200


async def test_a_compressed_body_is_refused_by_its_header() -> None:
    """The answer is 415. The encoding `identity` is accepted."""
    async with serving() as (client, _):
        packed = await client.post(RECOMMEND, gzip.compress(b'{"user_id":"u1"}'), headers={"content-encoding": "gzip"})
        plain = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"content-encoding": "identity"})
    assert (packed.status, packed.json["code"]) == (415, "ENCODING_NOT_SUPPORTED")
    assert "Content-Encoding" in packed.json["detail"]
    assert plain.status == 200


@pytest.mark.parametrize("has_keys", [False, True])
async def test_requests_take_turns_by_key_only_if_keys_are_checked(has_keys: bool) -> None:
    """On a server without keys, a client could invent keys to get more turns."""
    key = new_api_key()
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(key)}") if has_keys else {}) as (_, state):
        sent = Sent("GET", b"/", [(b"host", b"localhost"), (b"x-api-key", key.encode())])
        turns_of = Request(sent, state).budget().key
    assert turns_of == (key.encode() if has_keys else None)


async def test_browsers_of_allowed_origins_may_call() -> None:
    """Only allowed origins get CORS headers, also on errors. A preflight needs no key."""
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    settings = replace(Settings(), allowed_origins=("https://shop.test", "not UTF-8: \udcff"))
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


async def test_refusals_are_logged_as_one_line_for_each_code_and_key() -> None:
    """The line has the number of refusals since the last line. The end of the server writes a last line."""
    refusals = Refusals()
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refusals.run)
            for _ in range(1000):
                refusals.note(RateLimited(fields={"kid": "shop"}))
            refusals.note(KeyNotAllowed(fields={"kid": "feed"}))
            await trio.sleep(2 * REPORT_S)
            assert len(logs) == 2
            refusals.note(RateLimited(fields={"kid": "shop"}))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(line["code"], line["kid"], line["count"], line["seconds"]) for line in logs] == [
        ("RATE_LIMITED", "shop", 1000, REPORT_S),
        ("KEY_NOT_ALLOWED", "feed", 1, REPORT_S),
        ("RATE_LIMITED", "shop", 1, 0.0),
    ]
