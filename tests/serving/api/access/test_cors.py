"""Which web pages of other origins may call from a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest

from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.settings import Settings
from tests.serving.client import RECOMMEND, serving

pytestmark = pytest.mark.anyio


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
