"""The HTTP API as clients see it: statuses, codes, headers, the access log and the health documents."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from svc import logs
from svc.errors import HeadersTooLarge, TargetTooLong
from svc.metrics import Metrics
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.settings import Settings
from tests.serving.client import BATCH, RECOMMEND, RELATED, answer_of, serving
from tests.serving.sent import Sent

pytestmark = pytest.mark.anyio


async def test_a_body_too_large_is_refused_by_length_and_by_count() -> None:
    """A too large Content-Length gives 413 before reading. A body without one gives 413 while it is read."""
    async with serving(Settings(max_body_bytes=1000)) as (client, _):
        by_length = await client.call("POST", RECOMMEND, b"", headers={"content-length": "1001"})
        chunks = [b"x" * 600] * 3
        by_count = await client.call("POST", RECOMMEND, chunks, headers={"transfer-encoding": "chunked"})
    for answer in (by_length, by_count):
        assert (answer.status, answer.json["code"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_a_slow_body_is_refused() -> None:
    """The answer is 408 if the body is incomplete after the client timeout. The connection then ends."""
    async with serving(Settings(client_timeout_s=5)) as (client, _):
        dripping = Sent("POST", RECOMMEND.encode(), [(b"host", b"localhost")], itertools.repeat(b" "), pause_s=1)
        started = trio.current_time()
        response = await client.app(dripping)
        assert 5 <= trio.current_time() - started < 10
    assert response is not None
    assert (response.status, answer_of(response).json["code"]) == (408, "REQUEST_TIMEOUT")


async def test_unknown_paths_give_404_and_unknown_methods_405() -> None:
    """The error codes are NOT_FOUND and METHOD_NOT_ALLOWED. A 405 has the Allow header."""
    async with serving() as (client, _):
        missing = await client.get("/v1/nothing")
        wrong = await client.call("DELETE", "/v1/health")
        verb = await client.get(RECOMMEND)
        options = await client.call("OPTIONS", "/v1/health")
    assert (missing.status, missing.json["code"]) == (404, "NOT_FOUND")
    for answer in (wrong, verb, options):
        assert (answer.status, answer.json["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert verb.headers["allow"] == "POST"
    assert "GET" in wrong.headers["allow"]


async def test_all_endpoints_but_health_need_a_key() -> None:
    """Without a valid key, an endpoint answers 401 with the code of the error."""
    key, other = new_api_key(), new_api_key()
    keys = parse_api_keys(f"old:{hash_api_key(other)},new:{hash_api_key(key)}")
    async with serving(keys=keys) as (client, _):
        guarded = ["/v1/recipes", "/v1/recipes/movies", "/v1/recipes/none", "/v1/health/details", "/v1/metrics"]
        guarded.append("/v1/recipes/movies/items")
        for path in guarded:
            assert (await client.get(path)).json["code"] == "MISSING_API_KEY"
            assert (await client.get(path, headers={"x-api-key": new_api_key()})).json["code"] == "INVALID_API_KEY"
        for path in ("/v1/health", "/v1/health/live", "/v1/health/ready", "/v1/openapi.json"):
            assert (await client.get(path)).status in (200, 503)
        assert (await client.post(RECOMMEND, {"user_id": "u1"})).status == 401
        for good in (key, other, key):
            answer = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"x-api-key": good})
            assert answer.status == 200
        for bad in (f" {key}", f"{key} ", key[:-1], key + "A", "", "x" * 100_000):
            assert (await client.get("/v1/recipes", headers={"x-api-key": bad})).status == 401


@pytest.mark.parametrize(
    ("settings", "allowed", "refused"),
    [
        (Settings(), "127.0.0.1:99", "evil.example"),
        (Settings(), "[::1]:8080", ""),
        (Settings(allowed_hosts=("*.shop.test",)), "a.shop.test", "localhost"),
    ],
)
async def test_hosts_are_limited_without_keys(settings: Settings, allowed: str, refused: str) -> None:
    """Without keys, only loopback names are allowed. SVC_ALLOWED_HOSTS replaces this list."""
    async with serving(settings) as (client, _):
        assert (await client.get("/v1/recipes", headers={"host": allowed})).status == 200
        answer = await client.get("/v1/recipes", headers={"host": refused})
    assert (answer.status, answer.json["code"]) == (400, "HOST_NOT_ALLOWED")


async def test_metrics_count_by_recipe_and_code() -> None:
    """The label `status` is the error code in lower case. All unregistered recipes share one label."""
    async with serving(metrics=Metrics.create()) as (client, _):
        await client.post(RECOMMEND, {"user_id": "u1"})
        await client.post(RECOMMEND, {"user_id": "nobody"})
        await client.post(RECOMMEND, {"user_id": "u1", "history": ["i2"], "history_mode": "replace"})
        await client.post("/v1/recipes/broken:recommend", {"user_id": "u1"})
        await client.post("/v1/recipes/stub:recommend", {"user_id": "u1"})
        await client.post("/v1/recipes/plain:recommend", {"user_features": {}})
        for _ in range(2):  # the second answer comes from the cache
            await client.post(RECOMMEND, {"user_features": {"tag": "none such", "who": 1}})
            await client.post(RECOMMEND, {"user_features": {"tag": "a"}, "history": [{"item_id": "i1"}]})
        await client.post(
            BATCH, {"requests": [{"history": [{"item_id": "i1"}]}, {"user_id": "u1", "history_mode": "?"}]}
        )
        await client.post(RELATED, {"seed_items": ["i1"], "user_features": {"tag": "a"}})
        await client.post(RELATED, {"item_features": {"tag": "b"}, "seed_items": ["i1"]})
        await client.post(BATCH, {"requests": [{"user_id": "nobody"}, {"user_id": "u1"}]})
        for number in range(50):
            await client.post(f"/v1/recipes/x{number}:recommend", {})
        head = [(b"host", b"localhost:8080"), (b"content-length", b"20")]
        await client.app(Sent("POST", BATCH.encode(), head, breaks_off=True))
        with trio.move_on_after(1):  # the server ends the connection
            await client.app(Sent("POST", BATCH.encode(), head, pause_s=2))
        scraped = await client.get("/v1/metrics")
    assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = scraped.body.decode()
    for line in (
        'svc_v1_requests_total{recipe="movies",status="ok"} 10.0',
        'svc_v1_requests_total{recipe="movies",status="unknown_user"} 1.0',
        'svc_v1_requests_total{recipe="movies",status="client_gone"} 2.0',
        'svc_v1_requests_total{recipe="broken",status="error"} 1.0',
        'svc_v1_requests_total{recipe="stub",status="unavailable"} 1.0',
        'svc_v1_requests_total{recipe="plain",status="features_not_supported"} 1.0',
        'svc_v1_requests_total{recipe="<unknown>",status="recipe_not_found"} 50.0',
        'svc_v1_batch_element_errors_total{code="UNKNOWN_USER"} 1.0',
        'svc_v1_verb_requests_total{recipe="movies",status="ok",verb="recommend"} 6.0',
        'svc_v1_verb_requests_total{recipe="movies",status="unknown_user",verb="recommend"} 1.0',
        'svc_v1_verb_requests_total{recipe="movies",status="ok",verb="recommend-related"} 2.0',
        'svc_v1_verb_requests_total{recipe="<unknown>",status="recipe_not_found",verb="recommend"} 50.0',
        'svc_v1_verb_latency_seconds_count{recipe="movies",verb="recommend"} 7.0',
        'svc_v1_batch_size_bucket{le="2.0",recipe="movies",verb="batch-recommend"} 2.0',
        'svc_v1_batch_size_sum{recipe="movies",verb="batch-recommend"} 4.0',
        'svc_v1_cold_starts_total{kind="features",recipe="movies"} 2.0',
        'svc_v1_cold_starts_total{kind="features+history",recipe="movies"} 2.0',
        'svc_v1_cold_starts_total{kind="history",recipe="movies"} 2.0',
        'svc_v1_cold_starts_total{kind="item_features",recipe="movies"} 1.0',
        'svc_v1_unknown_feature_values_total{recipe="movies"} 4.0',
    ):
        assert line in text
    assert 'recipe="x1"' not in text
    spent = re.findall(r"^svc_v1_(?:request|verb)_latency_seconds_sum\{.*\} (\S+)$", text, re.MULTILINE)
    assert spent
    assert all(0 < float(seconds) < 60 for seconds in spent)


async def test_refusals_of_heads_are_counted_by_code() -> None:
    """The metric counts refusals by the connection, by the parser of targets and by the checks of headers."""
    async with serving(metrics=Metrics.create()) as (client, _):
        both = {"transfer-encoding": "chunked", "content-length": "2"}
        for _ in range(3):
            assert (await client.call("POST", RECOMMEND, [b"{}"], headers=both)).json["code"] == "AMBIGUOUS_LENGTH"
        await client.get("/v1/recipes", headers={"host": "evil.example"})
        await client.get("/%zz")
        client.app.refuse(TargetTooLong(), "192.0.2.7")
        client.app.refuse(HeadersTooLarge(), "192.0.2.7")
        text = (await client.get("/v1/metrics")).body.decode()
    counted = re.findall(r'svc_head_refusals_total{code="(\w+)"} (.+)', text)
    assert dict(counted) == {
        "AMBIGUOUS_LENGTH": "3.0",
        "HOST_NOT_ALLOWED": "1.0",
        "MALFORMED_REQUEST": "1.0",
        "TARGET_TOO_LONG": "1.0",
        "HEADERS_TOO_LARGE": "1.0",
    }


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_anonymous_clients_are_logged_once(level: str) -> None:
    """Without keys, each client address is logged at its first request.

    At the log level debug, all requests are logged, too.
    """
    structlog.reset_defaults()  # an earlier test may have configured a level that drops events
    async with serving(Settings(log_level=level)) as (client, _):
        with capture_logs() as logs:
            for number in range(300):
                await client.get("/v1/recipes", client=f"10.0.{number // 256}.{number % 256}")
                await client.get("/v1/recipes", client="10.1.1.1")
    seen = [record["client"] for record in logs if record["event"] == "auth_anonymous_bypass_first_seen"]
    assert len(seen) == len(set(seen)) == 301
    again = [record["client"] for record in logs if record["event"] == "auth_anonymous_bypass"]
    assert (len(again), again.count("10.1.1.1")) == ((600, 300) if level == "debug" else (0, 0))


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
async def test_the_mode_of_the_access_log_selects_answers(lines: list[str], mode: str, statuses: list[int]) -> None:
    """Each mode logs its documented answers, and no line has a query string."""
    async with serving(Settings(access_log=mode)) as (client, _):
        await client.post("/v1/recipes/movies:recommend", KNOWN)
        await client.post("/v1/recipes/movies:recommend", UNKNOWN)
        await client.get("/nowhere?secret=1")
        await client.get("/v1/recipes/movies")
        await client.get("/v1/health")
    assert [record["status"] for record in answered(lines)] == statuses
    assert "secret" not in "".join(lines)


async def test_an_access_log_line_has_kid_recipe_verb_and_status(lines: list[str]) -> None:
    """The line never has the key or parts of the body."""
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


async def test_bytes_that_are_not_a_request_are_logged(lines: list[str]) -> None:
    """The line has the status, the client and the request id of the answer, but no method."""
    async with serving(Settings(access_log="errors")) as (client, _):
        response = client.app.refuse(HeadersTooLarge(), "192.0.2.7")
    (line,) = answered(lines)
    assert (line["status"], line["client"], line["method"]) == (431, "192.0.2.7", "")
    assert line["request_id"].encode() == dict(response.headers)[b"x-request-id"]


async def test_health_documents_follow_loading_and_draining() -> None:
    """`/v1/health` counts loaded models. `/live` is always ok, and `/ready` is 503 while the server loads or drains."""
    async with serving() as (client, state):
        health = await client.get("/v1/health")
        assert (health.status, health.json) == (503, {"status": "degraded", "total": 4, "loaded": 3})
        assert (await client.get("/v1/health/live")).status == 200
        assert (await client.get("/v1/health/ready")).status == 200
        details = await client.get("/v1/health/details")
        assert details.status == 503
        assert details.json["recipes"]["stub"] == {"loaded": False, "error": "signature mismatch"}
        state.draining = True
        assert (await client.get("/v1/health/ready")).status == 503


@pytest.mark.parametrize(
    ("keys", "detail"),
    [
        ({}, "stub: signature mismatch"),
        ({"shop": b""}, "1 of 1 recipes have no model yet: GET /v1/health/details, with a key, says why"),
    ],
)
async def test_a_server_that_is_not_ready_says_why(keys: dict[str, bytes], detail: str) -> None:
    """The probe is public, so a server with keys names no recipe."""
    async with serving(keys=keys) as (client, state):
        for name in ("movies", "plain", "broken"):
            state.registry.remove(name)
        ready = await client.get("/v1/health/ready")
    assert (ready.status, ready.json) == (503, {"status": "loading", "detail": detail})


async def test_probes_may_name_any_host() -> None:
    """An orchestrator sends the address of the process as host."""
    async with serving() as (client, _):
        for path, status in (("/v1/health", 503), ("/v1/health/live", 200), ("/v1/health/ready", 200)):
            assert (await client.get(path, headers={"host": "10.1.2.3:8080"})).status == status
        assert (await client.get("/v1/health/details", headers={"host": "10.1.2.3:8080"})).status == 400
