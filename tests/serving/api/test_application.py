"""The HTTP side as clients see it: answers, statuses, codes and headers."""

from __future__ import annotations

import itertools
import json
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.metrics import Metrics
from svc.serving.api import authentication, failures
from svc.serving.api.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.settings import Settings
from tests.serving.client import N_ITEMS, Client, Sent, answer_of, serving

pytestmark = pytest.mark.anyio
RECOMMEND = "/v1/recipes/movies:recommend"
RELATED = "/v1/recipes/movies:recommend-related"
BATCH = "/v1/recipes/movies:batch-recommend"
BATCH_RELATED = "/v1/recipes/movies:batch-recommend-related"


async def test_recommend_answers_items_with_scores_and_metadata() -> None:
    """A known user gets `limit` items that it has not seen, by falling score, with the recipe's metadata."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u3", "limit": 5})
    assert answer.status == 200
    document = answer.json
    assert list(document) == ["request_id", "recipe", "model_version", "items"]
    assert document["recipe"] == "movies"
    assert answer.headers["x-svc-model-version"] == document["model_version"]
    assert answer.headers["x-request-id"] == document["request_id"]
    scores = [item["score"] for item in document["items"]]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    for item in document["items"]:
        number = int(item["item_id"][1:])
        assert number > 3
        assert (item["title"], item["year"]) == (f"Title {number}", 1990 + number)


async def test_items_without_metadata_answer_null() -> None:
    """An item that the metadata table lacks has its fields as null."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, {"user_id": "u3", "limit": N_ITEMS, "include_seen": True})
    bare = next(item for item in answer.json["items"] if item["item_id"] == "i0")
    assert (bare["title"], bare["year"]) == (None, None)


async def test_a_batch_answers_each_element_like_a_single_request() -> None:
    """The same request has the same bytes in `items`, alone or in a batch with metadata."""
    bodies: list[dict[str, Any]] = [
        {"user_id": "u1"},
        {"user_id": "nobody", "user_features": {"tag": "a", "colour": "red"}},
        {"user_id": "u5", "exclude_items": ["i50", "unknown"], "limit": 60},
    ]
    async with serving() as (client, _):
        batch = (await client.post(BATCH, {"requests": bodies, "include_metadata": True})).json
        for index, body in enumerate(bodies):
            single = (await client.post(RECOMMEND, body)).json
            element = batch["results"][index]
            assert (element["index"], element["status"]) == (index, "ok")
            assert json.dumps(element["items"]) == json.dumps(single["items"])
            assert element.get("ignored_features") == single.get("ignored_features")
    assert batch["results"][1]["ignored_features"] == ["colour"]


async def test_each_element_of_a_batch_fails_alone() -> None:
    """Invalid, unknown and unusable elements carry their code; the others are answered; metadata is off by default."""
    requests: list[Any] = [
        {"user_id": "u1"},
        {"user_id": "nobody"},
        {"limit": 0},
        "text",
        {},
        {"user_features": {"age": "old"}},
    ]
    async with serving() as (client, _):
        answer = await client.post(BATCH, {"requests": requests})
    results = answer.json["results"]
    assert answer.status == 200
    assert [result["index"] for result in results] == list(range(6))
    assert [result.get("code") for result in results] == [
        None, "UNKNOWN_USER", "VALIDATION_ERROR", "VALIDATION_ERROR", "VALIDATION_ERROR", "FEATURE_VALUE_UNUSABLE",
    ]  # fmt: skip
    assert all(list(result) == ["index", "status", "code", "detail"] for result in results[1:])
    assert list(results[0]["items"][0]) == ["item_id", "score"]


async def test_a_batch_of_failures_is_still_200() -> None:
    """HTTP 200 even when every element failed."""
    async with serving() as (client, _):
        answer = await client.post(BATCH_RELATED, {"requests": [{"seed_items": ["x"]}, {"seed_items": []}]})
    assert answer.status == 200
    assert [result["code"] for result in answer.json["results"]] == ["UNKNOWN_SEED_ITEMS", "VALIDATION_ERROR"]


CASES: list[tuple[str, str, Any, int, str]] = [
    ("unknown user", RECOMMEND, {"user_id": "nobody"}, 404, "UNKNOWN_USER"),
    ("unknown seeds", RELATED, {"seed_items": ["x"]}, 404, "UNKNOWN_SEED_ITEMS"),
    (
        "nothing left",
        RELATED,
        {"seed_items": ["i0"], "exclude_items": [f"i{i}" for i in range(60)]},
        404,
        "NO_CANDIDATES",
    ),
    (
        "nothing left, cold",
        RECOMMEND,
        {"user_features": {}, "exclude_items": [f"i{i}" for i in range(60)]},
        404,
        "NO_CANDIDATES",
    ),
    ("unknown recipe", "/v1/recipes/none:recommend", {"user_id": "u1"}, 404, "RECIPE_NOT_FOUND"),
    ("stub", "/v1/recipes/stub:recommend", {"user_id": "u1"}, 503, "RECIPE_UNAVAILABLE"),
    ("stub, batch", "/v1/recipes/stub:batch-recommend", {"requests": [{"user_id": "u1"}]}, 503, "RECIPE_UNAVAILABLE"),
    ("no features", "/v1/recipes/plain:recommend", {"user_features": {"age": 3}}, 400, "FEATURES_NOT_SUPPORTED"),
    ("bad feature", RECOMMEND, {"user_features": {"age": 1e9}}, 400, "FEATURE_VALUE_UNUSABLE"),
    ("broken scorer", "/v1/recipes/broken:recommend", {"user_id": "u1"}, 500, "INTERNAL_ERROR"),
    ("bad path", "/v1/recipes/movies:explode", {}, 404, "NOT_FOUND"),
    ("bad name", "/v1/recipes/a.b:recommend", {}, 404, "NOT_FOUND"),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "code"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_failures_have_their_status_and_code(path: str, body: Any, status: int, code: str) -> None:
    """Every error body has request_id, detail and code, and nothing of the server's inside."""
    async with serving() as (client, _):
        answer = await client.post(path, body, headers={"x-request-id": "abc-1"})
    assert (answer.status, answer.json["code"]) == (status, code)
    assert list(answer.json) == ["request_id", "detail", "code"]
    assert answer.json["request_id"] == answer.headers["x-request-id"] == "abc-1"
    assert "secret" not in answer.body.decode()


BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "not json": b"user_id=u1",
    "not utf-8": b'{"user_id":"\xff\xfe"}',
    "utf-16": '{"user_id":"u1"}'.encode("utf-16"),
    "lone surrogate": b'{"user_id":"\\ud800"}',
    "bom": b'\xef\xbb\xbf{"user_id":"u1"}',
    "array": b"[]",
    "null": b"null",
    "nan": b'{"user_id":"u1","limit":NaN}',
    "nan feature": b'{"user_features":{"age":NaN}}',
    "infinity": b'{"user_features":{"age":-Infinity}}',
    "huge number": b'{"user_features":{"age":1e400}}',
    "huge integer": b'{"user_id":"u1","limit":' + b"9" * 5000 + b"}",
    "deep": b'{"user_features":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}}",
    "twice": b'{"user_id":"u1","user_id":"u2"}',
    "twice inside": b'{"user_features":{"age":1,"age":2}}',
    "unknown key": b'{"user_id":"u1","Limit":3}',
    "number as id": b'{"user_id":3}',
    "limit 0": b'{"user_id":"u1","limit":0}',
    "limit 1001": b'{"user_id":"u1","limit":1001}',
    "limit true": b'{"user_id":"u1","limit":true}',
    "empty id": b'{"user_id":""}',
    "long id": b'{"user_id":"' + b"x" * 257 + b'"}',
    "nobody": b"{}",
    "null user": b'{"user_id":null}',
    "many excluded": json.dumps({"user_id": "u1", "exclude_items": ["x"] * 1001}).encode(),
    "many features": json.dumps({"user_features": {str(i): 1 for i in range(65)}}).encode(),
    "long key": json.dumps({"user_features": {"k" * 257: 1}}).encode(),
    "long text": json.dumps({"user_features": {"k": "x" * 8193}}).encode(),
    "object value": b'{"user_features":{"k":{}}}',
    "many values": b'{"user_id":[' + b"[]," * 200_000 + b"[]]}",
    "trailing": b'{"user_id":"u1"} {}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_bad_bodies_are_refused_with_422(body: bytes) -> None:
    """Whatever bytes come: 422 with a list of errors, none of which repeats a value."""
    async with serving() as (client, _):
        answer = await client.post(RECOMMEND, body)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    assert list(answer.json) == ["request_id", "detail", "code", "errors"]
    assert answer.json["errors"]
    assert all(sorted(error) == ["loc", "msg", "type"] for error in answer.json["errors"])
    assert len(answer.body) < 40_000


async def test_values_are_never_echoed() -> None:
    """A refused value appears nowhere in the error body."""
    secret = "hunter2-" * 5
    async with serving() as (client, _):
        for body in (
            {"user_id": [secret]},
            {"user_id": secret * 10},
            {"user_features": {"age": secret}},
            {"limit": secret},
        ):
            answer = await client.post(RECOMMEND, body)
            assert answer.status >= 400
            assert secret not in answer.body.decode()


async def test_the_declared_type_of_a_body_does_not_matter() -> None:
    """JSON is read as JSON, as when curl's -d is used without a Content-Type of one's own."""
    async with serving() as (client, _):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"):
            answer = await client.post(RECOMMEND, {"user_id": "u1"}, headers={"content-type": kind})
            assert answer.status == 200


async def test_colons_in_ids_are_not_taken_for_repeated_keys() -> None:
    """Keys are counted exactly where strings hold colons."""
    async with serving() as (client, _):
        assert (await client.post(RECOMMEND, {"user_id": "u1", "exclude_items": ["a:b", "::"]})).status == 200


async def test_a_body_too_large_is_refused_by_length_and_by_count() -> None:
    """413 before reading when Content-Length says so, and while reading a body without one."""
    async with serving(Settings(max_body_bytes=1000)) as (client, _):
        by_length = await client.call("POST", RECOMMEND, b"", headers={"content-length": "1001"})
        chunks = [b"x" * 600] * 3
        by_count = await client.call("POST", RECOMMEND, chunks, headers={"transfer-encoding": "chunked"})
    for answer in (by_length, by_count):
        assert (answer.status, answer.json["code"]) == (413, "PAYLOAD_TOO_LARGE")


async def test_a_body_that_trickles_is_cut_off() -> None:
    """408 when the body is not whole after the client timeout, and the connection ends."""
    async with serving(Settings(client_timeout_s=5)) as (client, _):
        dripping = Sent("POST", RECOMMEND, {"host": "localhost"}, itertools.repeat(b" "), pause_s=1)
        started = trio.current_time()
        response = await client.app(dripping)
        assert 5 <= trio.current_time() - started < 10
    assert response is not None
    assert (response.status, answer_of(response).json["code"]) == (408, "REQUEST_TIMEOUT")


async def test_unknown_paths_and_methods() -> None:
    """404 NOT_FOUND and 405 METHOD_NOT_ALLOWED, with the Allow header, in the same form as every error."""
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


async def test_request_ids_are_taken_when_well_formed() -> None:
    """A good X-Request-ID comes back; a bad one is replaced by 12 hex characters."""
    async with serving() as (client, _):
        good = await client.get("/v1/health", headers={"x-request-id": "A_b-9"})
        bad = await client.get("/v1/health", headers={"x-request-id": "a b\t"})
    assert good.headers["x-request-id"] == "A_b-9"
    assert len(bad.headers["x-request-id"]) == 12
    int(bad.headers["x-request-id"], 16)


async def test_health_documents() -> None:
    """Health is count-based, live always ok, ready follows loading and draining."""
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


async def test_recipes_are_listed_and_described() -> None:
    """The list names all recipes; a description reports what the artifact was built from, and keeps its kid inside."""
    async with serving() as (client, _):
        listed = (await client.get("/v1/recipes")).json["recipes"]
        assert [(item["name"], item["loaded"]) for item in listed] == [
            ("broken", True), ("movies", True), ("plain", True), ("stub", False),
        ]  # fmt: skip
        described = (await client.get("/v1/recipes/movies")).json
        assert (described["algorithms"], described["metric"], described["cutoff"]) == (["IALSRecommender"], "ndcg", 20)
        assert "kid" not in described
        assert (await client.get("/v1/recipes/none")).json["code"] == "RECIPE_NOT_FOUND"
        assert (await client.get("/v1/recipes/stub")).json["code"] == "RECIPE_UNAVAILABLE"


async def test_keys_guard_everything_but_health() -> None:
    """With keys configured: 401 with its code on guarded endpoints, none on public ones, and the right key passes."""
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


async def test_a_client_that_leaves_is_not_kept_until_its_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood whose clients do not wait costs no memory: a refusal that nobody waits for is not waited for."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_S", 0.01)
    monkeypatch.setattr(authentication, "REFUSAL_BURST_S", 0.0)
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        leaving = Sent("POST", RECOMMEND, {"host": "localhost", "x-api-key": new_api_key()}, leaves_s=1)
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


async def test_hosts_are_limited_without_keys() -> None:
    """Without keys only loopback names are served; the setting replaces them, with wildcards."""
    async with serving() as (client, _):
        for host, status in [
            ("localhost", 200),
            ("127.0.0.1:99", 200),
            ("[::1]:8080", 200),
            ("evil.example", 400),
            ("", 400),
        ]:
            answer = await client.get("/v1/recipes", headers={"host": host})
            assert answer.status == status
        assert (await client.get("/v1/recipes", headers={"host": "evil.example"})).json["code"] == "HOST_NOT_ALLOWED"
    async with serving(Settings(allowed_hosts=("api.test", "*.shop.test"))) as (client, _):
        for host, status in [("API.test:1", 200), ("a.shop.test", 200), ("shop.test", 400), ("localhost", 400)]:
            assert (await client.get("/v1/recipes", headers={"host": host})).status == status


async def test_probes_may_name_any_host() -> None:
    """An orchestrator asks by the address of the process; the public health documents answer it."""
    async with serving() as (client, _):
        for path, status in (("/v1/health", 503), ("/v1/health/live", 200), ("/v1/health/ready", 200)):
            assert (await client.get(path, headers={"host": "10.1.2.3:8080"})).status == status
        assert (await client.get("/v1/health/details", headers={"host": "10.1.2.3:8080"})).status == 400


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
    assert "X-API-Key" in allowed.headers["access-control-allow-headers"]
    assert refused.status == 405
    assert "access-control-allow-origin" not in refused.headers
    assert error.status == 401
    assert error.headers["access-control-allow-origin"] == "https://shop.test"


async def test_metrics_count_by_recipe_and_code() -> None:
    """Request metrics carry registered names only, and the code in lower case as status."""
    async with serving(metrics=Metrics.create()) as (client, _):
        await client.post(RECOMMEND, {"user_id": "u1"})
        await client.post(RECOMMEND, {"user_id": "nobody"})
        await client.post("/v1/recipes/broken:recommend", {"user_id": "u1"})
        await client.post("/v1/recipes/stub:recommend", {"user_id": "u1"})
        await client.post("/v1/recipes/plain:recommend", {"user_features": {}})
        await client.post(BATCH, {"requests": [{"user_id": "nobody"}, {"user_id": "u1"}]})
        for number in range(50):
            await client.post(f"/v1/recipes/x{number}:recommend", {})
        text = (await client.get("/v1/metrics")).body.decode()
    for line in (
        'svc_v1_requests_total{recipe="movies",status="ok"} 2.0',
        'svc_v1_requests_total{recipe="movies",status="unknown_user"} 1.0',
        'svc_v1_requests_total{recipe="broken",status="error"} 1.0',
        'svc_v1_requests_total{recipe="stub",status="unavailable"} 1.0',
        'svc_v1_requests_total{recipe="plain",status="features_not_supported"} 1.0',
        'svc_v1_requests_total{recipe="<unknown>",status="recipe_not_found"} 50.0',
        'svc_v1_batch_element_errors_total{code="UNKNOWN_USER"} 1.0',
    ):
        assert line in text
    assert 'recipe="x1"' not in text


async def test_metrics_and_openapi_can_be_off() -> None:
    """Without metrics there is no /v1/metrics; a closed environment has no OpenAPI document."""
    async with serving(Settings(env="production")) as (client, _):
        assert (await client.get("/v1/metrics")).status == 404
        assert (await client.get("/v1/openapi.json")).status == 404


async def test_a_failed_scorer_leaves_other_recipes_alone() -> None:
    """A scorer that runs out of memory answers 500, is logged with the request's id, and the lane goes on."""
    async with serving() as (client, _):
        with capture_logs() as logs:
            for _ in range(3):
                assert (
                    await client.post("/v1/recipes/broken:batch-recommend", {"requests": [{"user_id": "u1"}]})
                ).status == 500
        assert (await client.post(RECOMMEND, {"user_id": "u1"})).status == 200
    assert [record["event"] for record in logs].count("request_failed") == 3


async def test_anonymous_clients_are_announced_once() -> None:
    """Without keys each client host is logged at its first request only, within a bounded memory."""
    async with serving() as (client, _):
        with capture_logs() as logs:
            for number in range(3000):
                await client.get("/v1/recipes", client=f"10.0.{number // 256}.{number % 256}")
                await client.get("/v1/recipes", client="10.1.1.1")
    seen = [record["client"] for record in logs if record["event"] == "auth_anonymous_bypass_first_seen"]
    assert len(seen) == 3001


async def test_many_clients_at_once_get_their_own_answers() -> None:
    """Answers of concurrent requests are those of the same requests made one by one."""
    async with serving() as (client, _):
        alone = {user: (await client.post(RECOMMEND, {"user_id": f"u{user}"})).json["items"] for user in range(20)}

        async def ask(client: Client, user: int) -> None:
            answer = await client.post(RECOMMEND, {"user_id": f"u{user}"}, headers={"x-request-id": f"r{user}"})
            assert answer.json["request_id"] == f"r{user}"
            assert answer.json["items"] == alone[user]

        async with trio.open_nursery() as nursery:
            for number in range(400):
                nursery.start_soon(ask, client, number % 20)


async def test_tracebacks_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every failure is logged; of many within a minute only the first ones with their traceback."""
    monkeypatch.setattr(failures, "_last_tracebacks", deque(maxlen=failures.TRACEBACKS_A_MINUTE))
    async with serving() as (client, _):
        with capture_logs() as logs:
            for _ in range(3 * failures.TRACEBACKS_A_MINUTE):
                assert (await client.post("/v1/recipes/broken:recommend", {"user_id": "u1"})).status == 500
    failed = [record for record in logs if record["event"] == "request_failed"]
    assert len(failed) == 3 * failures.TRACEBACKS_A_MINUTE
    assert sum(record.get("exc_info") is not None for record in failed) == failures.TRACEBACKS_A_MINUTE


async def test_somebody_is_told_only_with_the_console() -> None:
    """Histories are data: where people do not try recipes, they leave the server in no answer."""
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        assert (await client.get("/v1/recipes/movies/somebody")).status == 401
    async with serving() as (client, _):
        found = (await client.get("/v1/recipes/movies/somebody", query="user_id=u3")).json
        assert (found["user_id"], found["n_history"]) == ("u3", 4)
        assert [item["item_id"] for item in found["history"]] == ["i0", "i1", "i2", "i3"]
        assert found["history"][1]["title"] == "Title 1"
        anybody = (await client.get("/v1/recipes/plain/somebody")).json
        assert anybody["n_history"] == int(anybody["user_id"][1:]) + 1
        unknown = await client.get("/v1/recipes/movies/somebody", query="user_id=nobody")
        assert (unknown.status, unknown.json["code"]) == (404, "UNKNOWN_USER")
    async with serving(Settings(console=False)) as (client, _):
        assert (await client.get("/v1/recipes/movies/somebody")).status == 404
