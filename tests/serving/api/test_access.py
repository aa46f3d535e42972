"""No spelling of a request bypasses the API key, the pages hidden by the environment, or the host check.

Requests go over real sockets, so that every part between a client and the decision is tested. `SVC_TEST_SPELLINGS` sets
how many spellings each test tries.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import trio

from svc.metrics import Metrics
from svc.serving.api import authentication
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.settings import Settings
from tests.serving.client import serving
from tests.serving.sockets import exchange, listening

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

SPELLINGS = int(os.environ.get("SVC_TEST_SPELLINGS", "600"))
AT_ONCE = 16
BARE = Settings(console=False)  # no public page at "/", which many spellings of a bare host reach
REFUSED = {400, 401, 404, 405}
GUARDED = (
    "/v1/recipes",
    "/v1/recipes/movies",
    "/v1/recipes/movies/items",
    "/v1/recipes/movies/items?q=i1",
    "/v1/health/details",
    "/v1/metrics",
    "/v1/recipes/movies:recommend",
)
CLOSED = ("/", "/v1/openapi.json", "/v1/docs", "/console/server.json", "/console/main.js", "/console/style.css")
INSIDE = (b"model_version", b"best_class", b"svc_v1", b'"recipes"', b'"loaded"', b"item_id", b"openapi", b"<html")
METHODS = (
    *("GET",) * 8,
    *("HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"),
    *("get", "head", "post", "Get", "gET", "G-T"),
)
NAMED = (
    *("//v1/recipes", "/%2fv1/recipes", "%2fv1/recipes", "http://any/v1/recipes", "HTTP://ANY//v1/recipes"),
    *("http://any:80/v1/health/details?x=1", "https://any/v1/metrics", "http:/v1/recipes", "http:///v1/recipes"),
    *("http://[/v1/recipes", "http://x%E2%84%80/v1/recipes", "v1/recipes", "a:/v1/recipes", "?a=b", "/v1//recipes"),
    *("/v1/./recipes", "/x/../v1/recipes", "/v1/health/../recipes", "/v1/health/%2e%2e/recipes", "/v1/recipes/"),
    *("/v1/recipes;x=1", "/v1/recipes%00", "/v1/recipes%3f", "/v1/recipes%23", "/v1/recipes#"),
    *("/v1/recipes#/../health", "/%76%31/%72ecipes", "/%2576%2531/recipes", "/V1/Recipes", "/v1\\recipes"),
    *("/v1/%c0%af/recipes", "/v1/recipes/%6d%6f%76%69%65%73", "*", ""),
)


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because virtual time would jump ahead while a thread compares a key."""
    return "trio"


def _insert(pick: random.Random, text: str, *pieces: str) -> str:
    place = pick.randrange(len(text) + 1)
    return text[:place] + pick.choice(pieces) + text[place:]


def _percent_coded(pick: random.Random, text: str) -> str:
    """Encode some or all characters as percent codes, some of them twice."""
    share = pick.choice((0.05, 0.3, 1.0))
    form = pick.choice(("%{:02x}", "%{:02X}", "%25{:02x}", "%2525{:02x}"))
    return "".join(form.format(ord(c)) if pick.random() < share else c for c in text)


CHANGES: tuple[Callable[[random.Random, str], str], ...] = (
    _percent_coded,
    lambda pick, text: text.replace("/", pick.choice(("//", "/./", "/x/../", "%2f", "/%2e/", "\\", "///"))),
    lambda pick, text: _insert(pick, text, "/", "//", ".", "..", "/..", "/./", ";", ";a=b", "\\"),
    lambda pick, text: _insert(pick, text, "%00", "%0a", "%20", "%09", "%c3%a9", "%ff", "%e2%82", "%zz", "%", "%u002f"),
    lambda pick, text: _insert(pick, text, "\u00e9", "\u00ff", "\x7f", "\x00", "\x0b"),
    lambda pick, text: pick.choice(("http://any", "HTTP://h:80", "https://h", "ws://h", "//h", "http:", "a:")) + text,
    lambda pick, text: pick.choice(("http://u:p@h", "http://[::1]", "http://[", "http://", "http://\u2100")) + text,
    lambda pick, text: pick.choice(("/", "//", ".", "/.", "/v1/..", "/v1/health/..", "%2f", "/%2e%2e")) + text,
    lambda pick, text: text.removeprefix("/"),
    lambda pick, text: text + pick.choice(("/", "//", "/.", "/..", "?", "?a=b", "#", "#f", "%2f", "?/v1/health", ";")),
    lambda pick, text: pick.choice((str.upper, str.title, str.swapcase))(text),
)


def spellings(count: int, paths: tuple[str, ...]) -> list[tuple[str, str]]:
    """Generate methods and targets: a fixed list, and paths with one to three random changes."""
    pick = random.Random(8)
    found = [(method, target) for target in (*NAMED, *paths) for method in ("GET", "HEAD", "get")]
    while len(found) < count:
        target = pick.choice(paths)
        for _ in range(pick.randrange(4)):
            target = pick.choice(CHANGES)(pick, target)
        found.append((pick.choice(METHODS), target))
    return found


def written(method: str, target: str, *headers: str, host: str = "localhost") -> bytes:
    lines = (f"{method} {target} HTTP/1.1", f"Host: {host}", *headers, "Connection: close", "", "")
    return "\r\n".join(lines).encode("latin-1", "replace")


async def ways_in(port: int, requests: list[bytes], allowed: set[int], inside: tuple[bytes, ...]) -> list[str]:
    """Return the requests that were not refused or whose answer contains one of `inside`, with these answers."""
    found: list[str] = []
    waiting = iter(requests)

    async def client() -> None:
        for request in waiting:
            answer = await exchange(port, request)
            status = answer[9:12]
            if not status.isdigit() or int(status) not in allowed or any(word in answer for word in inside):
                found.append(f"{request[:120]!r} -> {answer[:200]!r}")

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(client)
    return found


@pytest.mark.parametrize("key", [None, "A" * 43, "short"], ids=["no key", "wrong key", "no such form"])
async def test_no_spelling_of_a_request_bypasses_the_key(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a valid key, protected endpoints answer 400, 401, 404 or 405, and show no data."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 1e6)
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    headers = [] if key is None else [f"X-API-Key: {key}"]
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(serving(BARE, keys, Metrics.create()))
        port = await stack.enter_async_context(listening(client.app))
        requests = [written(*spelling, *headers) for spelling in spellings(SPELLINGS, GUARDED)]
        assert await ways_in(port, requests, REFUSED, INSIDE) == []


async def test_no_spelling_of_a_path_reaches_pages_that_production_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """No spelling of a path gets the console, the API reference or the OpenAPI document."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 1e6)
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    async with serving(Settings(env="production"), keys) as (client, _), listening(client.app) as port:
        requests = [written(*spelling) for spelling in spellings(SPELLINGS // 2, CLOSED)]
        assert await ways_in(port, requests, REFUSED, INSIDE) == []


async def test_no_spelling_of_a_request_bypasses_the_host_check() -> None:
    """Without keys, a request for another host is refused, whether the target or the Host header names it."""
    hosts = ("evil.test", "localhost.evil.test", "[::1].evil.test", "localhost:80@evil.test", "a..b", ".", "x" * 70)
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(serving(BARE, metrics=Metrics.create()))
        port = await stack.enter_async_context(listening(client.app))
        requests = [
            written(method, target, host=hosts[place % len(hosts)])
            for place, (method, target) in enumerate(spellings(SPELLINGS, GUARDED))
            if "localhost" not in target and "[::1]" not in target
        ]
        assert await ways_in(port, requests, {400, 405}, INSIDE) == []
