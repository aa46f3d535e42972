"""The endpoints behind quart: recipes, metrics, the OpenAPI document, and sample users."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.routing.endpoint import Endpoint
from svc.serving.api.routing.endpoints import ENDPOINTS, VERBS
from svc.settings import Settings
from tests.serving.client import serving

pytestmark = pytest.mark.anyio

READ = [row for row in ENDPOINTS if row.method == "GET"]
BODIES: dict[str, object] = {
    "recommend": {"user_id": "u3"},
    "recommend-related": {"seed_items": ["i1"]},
    "recommend-users": {"item_id": "i1"},
    "batch-recommend": {"requests": [{"user_id": "u3"}]},
    "batch-recommend-related": {"requests": [{"seed_items": ["i1"]}]},
}
ABOUT_RECIPES = [row for row in READ if row.path.split("/")[:3] == ["", "v1", "recipes"]]


async def test_recipes_are_listed_and_described() -> None:
    """The list has all recipes. A description has the facts of the artifact, but not its kid."""
    async with serving() as (client, _):
        listed = (await client.get("/v1/recipes")).json["recipes"]
        assert [(item["name"], item["loaded"]) for item in listed] == [
            ("broken", True), ("movies", True), ("plain", True), ("stub", False),
        ]  # fmt: skip
        answering = {}
        for item in listed[:-1]:
            assert item["kind"] == "user-item"
            assert item["loaded_at"] == "1970-01-01T00:00:00+00:00"
            answers = {verb: await client.post(f"/v1/recipes/{item['name']}:{verb}", BODIES[verb]) for verb in BODIES}
            answering[item["name"]] = [verb for verb, answer in answers.items() if answer.status in (200, 500)]
            assert item["supported_verbs"] == answering[item["name"]]
        assert set(listed[-1]) == {"name", "loaded"}
        described = (await client.get("/v1/recipes/movies")).json
        assert described.items() >= listed[1].items()
        assert (described["algorithms"], described["metric"], described["cutoff"]) == (["IALSRecommender"], "ndcg", 20)
        assert "kid" not in described
        assert (await client.get("/v1/recipes/none")).json["code"] == "RECIPE_NOT_FOUND"
        assert (await client.get("/v1/recipes/stub")).json["code"] == "RECIPE_UNAVAILABLE"


@pytest.mark.parametrize("row", [row for row in ENDPOINTS if "{name}" in row.path], ids=lambda row: row.path)
async def test_every_endpoint_logs_an_unknown_recipe(row: Endpoint) -> None:
    """Each answers 404 and logs one event."""
    async with serving() as (client, state):
        state.versions = lambda name: {"versions": []}
        path = row.path.replace("{name}", "none")
        with capture_logs() as records:
            answer = await (client.get(path) if row.method == "GET" else client.post(path, {}))
    assert (answer.status, answer.json["code"]) == (404, "RECIPE_NOT_FOUND")
    told = [record["name"] for record in records if record["event"] == "recipe_not_found"]
    assert told == ["none"]


async def test_unknown_parameters_of_recipes_are_refused() -> None:
    """A misspelt name gets a suggestion, any other name the list of parameters. 401 comes first."""
    async with serving() as (client, state):
        state.versions = lambda name: {"versions": []}
        for row in ABOUT_RECIPES:
            path, known = row.path.replace("{name}", "movies"), list(row.query.model_fields) if row.query else []
            listed = f"this endpoint has {', '.join(known) or 'no parameters'}"
            for given, hint in {"zzz": listed, **{f"{name}x": f"did you mean {name}?" for name in known}}.items():
                answer = await client.get(path, query=f"{known[0] if known else 'a'}=1&{given}=s3cret")
                (*_, error) = answer.json["errors"]
                assert (answer.status, error["loc"]) == (422, ["query", given])
                assert error["msg"] == f"unknown parameter; {hint}"
                assert "s3cret" not in answer.body.decode()
        for row in VERBS:
            field = next(iter(row.request.model_fields)) if row.request else ""
            answer = await client.post(row.path.replace("{name}", "movies"), {}, query=f"{field}=s3cret")
            (error,) = answer.json["errors"]
            assert (answer.status, error["loc"]) == (422, ["query", field])
            assert f"reads {field} from the JSON body, not from the address" in error["msg"]
            assert "s3cret" not in answer.body.decode()
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        assert (await client.get("/v1/recipes", query="zzz=1")).status == 401
        assert (await client.post("/v1/recipes/movies:recommend", {}, query="zzz=1")).status == 401


async def test_unknown_parameters_elsewhere_are_ignored() -> None:
    """Balancers add parameters to probes, Prometheus to metrics, and browsers to pages."""
    async with serving() as (client, _):
        for row in READ:
            if row not in ABOUT_RECIPES:
                plain, more = await client.get(row.path), await client.get(row.path, query="zzz=1")
                assert (more.status, more.headers["content-type"]) == (plain.status, plain.headers["content-type"])


async def test_metrics_and_openapi_can_be_off() -> None:
    """Without metrics there is no /v1/metrics, and a closed environment has no OpenAPI document."""
    async with serving(Settings(env="production")) as (client, _):
        assert (await client.get("/v1/metrics")).status == 404
        assert (await client.get("/v1/openapi.json")).status == 404


async def test_sample_users_need_the_console() -> None:
    """Without the console no answer has a user's history."""
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
