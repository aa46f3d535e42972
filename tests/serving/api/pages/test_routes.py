"""The endpoints behind quart: recipes, metrics, the OpenAPI document, sample users and popular items."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urljoin

import numpy as np
import pytest
from structlog.testing import capture_logs

from svc.asking.item_lists import available_items
from svc.asking.policy import Policy
from svc.metrics import Metrics
from svc.recipe.filter_tree import parse_filter
from svc.serving.api.authentication import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS, SWAGGER_UI, VERBS
from svc.serving.api.key_policies import KeyPolicies, parse_policies
from svc.serving.api.pages import routes
from svc.serving.api.pages.routes import TYPES
from svc.serving.api.request import ServerState
from svc.serving.api.verbs import INLINE_BODY_BYTES
from svc.settings import Settings
from tests.serving.api.test_endpoints import FILES, SCRIPTS, STATIC
from tests.serving.api.verbs.test_filters import BATCH, POPULAR, RECOMMEND, fields, genres_of, numbers
from tests.serving.artifacts import availability
from tests.serving.client import N_ITEMS, Answer, Client, serve, served_in, serving

pytestmark = pytest.mark.anyio

READ = [row for row in ENDPOINTS if row.method == "GET"]
BODIES: dict[str, object] = {
    "recommend": {"user_id": "u3"},
    "recommend-related": {"seed_items": ["i1"]},
    "recommend-users": {"item_id": "i1"},
    "page": {"user_id": "u1", "rows": [{"id": "a", "recommend": {}}]},
    "rerank": {"user_id": "u1", "items": ["i1"]},
    "batch-recommend": {"requests": [{"user_id": "u3"}]},
    "batch-recommend-related": {"requests": [{"seed_items": ["i1"]}]},
}
ABOUT_RECIPES = [row for row in READ if row.path.split("/")[:3] == ["", "v1", "recipes"]]


async def test_recipes_are_listed_and_described() -> None:
    """The list has all recipes. A description has facts of the artifact, but not its kid."""
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
    """Each endpoint answers 404 and logs one event."""
    async with serving() as (client, state):
        state.versions = lambda name: {"versions": []}
        path = row.path.replace("{name}", "none")
        with capture_logs() as records:
            answer = await (client.get(path) if row.method == "GET" else client.post(path, {}))
    assert (answer.status, answer.json["code"]) == (404, "RECIPE_NOT_FOUND")
    told = [record["name"] for record in records if record["event"] == "recipe_not_found"]
    assert told == ["none"]


async def test_a_store_that_hangs_delays_the_versions_of_its_own_recipe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for the store cannot be ended."""
    released = threading.Event()

    def versions(name: str) -> dict[str, Any]:
        assert name == "plain" or released.wait(10)
        return {"versioning": "append_sha", "versions": []}

    monkeypatch.setattr(routes, "LONGEST_LISTING_S", 0.2)
    async with serving() as (client, state):
        state.versions = versions
        hung = await client.get("/v1/recipes/movies/versions")
        other = await client.get("/v1/recipes/plain/versions")
        released.set()
    assert (hung.status, other.status) == (503, 200)


async def test_unknown_parameters_of_recipes_are_refused() -> None:
    """A misspelt name gets a suggestion, any other name the list of parameters. The check of the key comes first."""
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


async def test_the_openapi_document_names_the_server_relative_to_itself() -> None:
    """Behind a proxy with a path prefix, `/` would be another server."""
    async with serving() as (client, _):
        (server,) = (await client.get("/v1/openapi.json")).json["servers"]
    for prefix in ("", "/shop", "/a/b"):
        assert urljoin(f"https://host{prefix}/v1/openapi.json", server["url"]) == f"https://host{prefix}/"


async def test_sample_users_are_served_only_with_the_console() -> None:
    """Without the console, no answer has a user's history."""
    async with serving(keys=parse_api_keys(f"k:{hash_api_key(new_api_key())}")) as (client, _):
        assert (await client.get("/v1/recipes/movies/somebody")).status == 401
    async with serving() as (client, _):
        found = (await client.get("/v1/recipes/movies/somebody", query="user_id=u3")).json
        assert (found["user_id"], found["n_history"]) == ("u3", 4)
        assert [item["item_id"] for item in found["history"]] == ["i0", "i1", "i2", "i3"]
        assert found["history"][1]["title"] == "Title 1"
        first = (await client.get("/v1/recipes/movies/somebody", query="user_id=u0")).json
        assert (first["user_id"], first["n_history"]) == ("u0", 1)
        anybody = (await client.get("/v1/recipes/plain/somebody")).json
        assert anybody["n_history"] == int(anybody["user_id"][1:]) + 1
        unknown = await client.get("/v1/recipes/movies/somebody", query="user_id=nobody")
        assert (unknown.status, unknown.json["code"]) == (404, "UNKNOWN_USER")
    async with serving(Settings(console=False)) as (client, _):
        assert (await client.get("/v1/recipes/movies/somebody")).status == 404


KEY = new_api_key()
COMEDY = {"genres": {"any": ["Comedy"]}}
LATELY = np.random.default_rng(8).integers(0, 9, N_ITEMS).astype(np.float64)
"""Number of recent choices of each item, with many ties."""
BY_COUNT = sorted(range(N_ITEMS), key=lambda item: -LATELY[item])


@asynccontextmanager
async def listing(policy: Policy | None = None, **more: Any) -> AsyncIterator[tuple[Client, ServerState]]:
    """Return a model with counts of recent choices and with filter fields."""
    async with serving(**more) as (client, state):
        served = served_in(state)
        served.model.popularity = LATELY
        serve(state, replace(served, filters=fields()).beside(None, None, policy or Policy()))
        yield client, state


async def ask(client: Client, tree: object, more: str = "&limit=60", **options: Any) -> Answer:
    text = tree if isinstance(tree, str) else json.dumps(tree)
    return await client.get(POPULAR, query=f"filter={quote(text)}{more}", **options)


@pytest.mark.parametrize("tree", [COMEDY, {"all": [COMEDY, {"not": {"year": {"gte": 2020}}}]}, None])
async def test_items_that_satisfy_the_filter_are_listed_most_chosen_first(tree: Any) -> None:
    """The list equals brute force, and the popular fallback of the verbs under the same filter."""
    wanted = [item for item in BY_COUNT if tree is None or "Comedy" in genres_of(item)]
    if tree is not None and "all" in tree:
        wanted = [item for item in wanted if item < 30 or item % 5 == 0]
    fallback = {"user_id": "nobody", "fallback": "popular", "filter": tree, "limit": 60}
    async with listing() as (client, _):
        answers = [(await ask(client, tree)).json for _ in range(2)]
        page = (await ask(client, tree, "&limit=3&offset=2")).json
        single = (await client.post(RECOMMEND, fallback)).json
        batch = (await client.post(BATCH, {"requests": [fallback]})).json
    for answer in (*answers, single, batch["results"][0]):
        assert numbers(answer) == wanted
    assert numbers(page) == wanted[2:5]
    assert list(page) == ["request_id", "recipe", "model_version", "items"]
    assert answers[0]["items"] == answers[1]["items"]


async def test_a_requests_filter_is_joined_with_the_filter_and_list_of_the_recipe() -> None:
    """Listed items satisfy both filters, and the recipe's list does not deny them."""
    declared = availability("deny")
    policy = Policy(parse_filter({"year": {"exists": True}}, fields().kinds))
    gone = tuple(f"i{item}" for item in BY_COUNT[:20])
    async with listing(policy) as (client, state):
        served = served_in(state)
        serve(state, replace(served, available=available_items(declared, gone, served.model.item_ids)))
        answer = (await ask(client, COMEDY)).json
    assert numbers(answer) == [item for item in BY_COUNT[20:] if "Comedy" in genres_of(item) and item % 5]


REFUSED = [
    ("{", ["query", "filter"], "a filter in a query string is JSON"),
    ("", ["query", "filter"], "a filter in a query string is JSON"),
    ('{"year": {"gte": NaN}}', ["query", "filter"], "a filter in a query string is JSON"),
    ('{"year": {"gte": 1}, "year": {"gte": 2}}', ["query", "filter"], "an object names one key twice"),
    ("[" * 5000, ["query", "filter"], "recursion limit"),
    ("[]", ["query", "filter"], "an object with exactly one key"),
    ('{"genre": {"any": ["x"]}}', ["query", "filter", "genre"], "did you mean 'genres'?"),
    ('{"secret": {"any": ["x"]}}', ["query", "filter", "secret"], "there are genres, year"),
    (
        json.dumps({"any": [{"year": {"gte": n}} for n in range(33)]}),
        ["query", "filter", "any"],
        "at most 32 conditions",
    ),
]


@pytest.mark.parametrize(("text", "place", "words"), REFUSED, ids=lambda value: str(value)[:30])
async def test_an_invalid_filter_is_refused_with_its_path(text: str, place: list[str], words: str) -> None:
    """The bounds of filters are those of the verbs."""
    async with listing() as (client, _):
        answer = await ask(client, text)
    assert (answer.status, answer.json["code"]) == (422, "VALIDATION_ERROR")
    (error,) = answer.json["errors"]
    assert (error["loc"], words in error["msg"]) == (place, True)


async def test_a_filter_that_no_item_satisfies_gives_the_error_of_the_verbs() -> None:
    async with listing() as (client, _):
        answer = await ask(client, {"genres": {"any": ["Comdy"]}})
        verb = await client.post(RECOMMEND, {"user_id": "u1", "filter": {"genres": {"any": ["Comdy"]}}})
    assert (answer.status, answer.json["code"]) == (verb.status, verb.json["code"]) == (404, "NO_CANDIDATES")
    assert answer.json["detail"] == verb.json["detail"]
    assert "did you mean 'Comedy'?" in answer.json["detail"]


async def test_a_filter_is_compiled_once() -> None:
    """Repeated lists and a verb use the items that the first list has compiled, also for a long filter."""
    tree = {"any": [COMEDY, {"genres": {"any": ["x" * 60 + str(n) for n in range(80)]}}]}
    assert len(json.dumps(tree)) > INLINE_BODY_BYTES
    async with listing() as (client, state):
        compiled = served_in(state).filters
        kept: list[object] = []
        compiled._keep = lambda key, items, keep=compiled._keep: (kept.append(key), keep(key, items))[1]  # type: ignore[method-assign]
        for _ in range(3):
            assert (await ask(client, tree)).status == 200
        assert (await client.post(RECOMMEND, {"user_id": "u1", "filter": tree})).status == 200
    assert len(kept) == 2  # as the client wrote it, and in its canonical form


async def test_a_short_list_is_charged_1_and_a_long_or_filtered_list_more() -> None:
    """With a burst of 10, two short lists leave tokens for a long and a filtered one, and the next is refused."""
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)}")
    policies = KeyPolicies(Metrics.disabled(), parse_policies(b"shop: {rate: 1/h, burst: 10}", "policies.yaml"))
    async with listing(keys=keys, policies=policies) as (client, _):
        own = {"headers": {"X-API-Key": KEY}}
        plain = [(await client.get(POPULAR, query=f"limit={limit}", **own)).status for limit in (32, 32, 33)]
        filtered = [(await ask(client, COMEDY, **own)).status for _ in range(2)]
    assert (plain, filtered) == ([200, 200, 200], [200, 429])


async def test_boosts_and_diversity_apply_if_the_popularity_window_is_empty() -> None:
    """Counts of the whole history then order the items. Boosts lift items, and diversity changes the order."""
    async with listing() as (client, state):
        model = served_in(state).model
        model.popularity = np.zeros(N_ITEMS)
        counts = np.bincount(model.history.columns, minlength=N_ITEMS)
        plain = (await ask(client, None)).json["items"]
        body = {"user_id": "nobody", "fallback": "popular", "limit": 60}
        rules: list[dict[str, Any]] = [{"boosts": [{"filter": COMEDY, "factor": 10}]}, {"diversity": 0.5}]
        boosted, diverse = [(await client.post(RECOMMEND, body | rule)).json["items"] for rule in rules]
    chosen = [item["item_id"] for item in plain if counts[int(item["item_id"][1:])] > 0]
    lifted = [item for item in chosen if "Comedy" in genres_of(int(item[1:]))]
    assert 0 < len(lifted) < len(chosen)
    assert [item["item_id"] for item in boosted[: len(lifted)]] == lifted
    assert diverse[0]["item_id"] == plain[0]["item_id"]
    assert [item["item_id"] for item in diverse] != [item["item_id"] for item in plain]


VENDORED = STATIC.parent / "swagger_ui"


async def statuses(settings: Settings) -> tuple[int, int, int, int]:
    """Return the statuses of the console, one of its scripts, the reference, and the shared style."""
    paths = ("/", "/console/main.js", "/v1/docs", "/console/style.css")
    async with serving(settings) as (client, _):
        found = [(await client.get(path)).status for path in paths]
    return found[0], found[1], found[2], found[3]


@pytest.mark.parametrize(
    ("env", "console", "expected"),
    [
        ("", None, (200, 200, 200, 200)),
        ("development", None, (200, 200, 200, 200)),
        ("production", None, (404, 404, 404, 404)),
        ("prod", None, (404, 404, 404, 404)),
        ("staging", None, (404, 404, 404, 404)),
        ("production", True, (200, 200, 404, 200)),
        ("", False, (404, 404, 200, 200)),
        ("staging", False, (404, 404, 404, 404)),
    ],
)
async def test_the_environment_selects_which_pages_are_served(
    env: str, console: bool | None, expected: tuple[int, int, int, int]
) -> None:
    """In production the console needs SVC_CONSOLE=1. The API reference is served if the OpenAPI document is."""
    assert await statuses(Settings(env=env, console=console)) == expected


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("0", False), ("", None)])
def test_svc_console_overrides_the_default_of_the_environment(text: str, expected: bool | None) -> None:
    """If SVC_CONSOLE is unset, SVC_ENV decides."""
    assert Settings.from_env({"SVC_CONSOLE": text}).console is expected


async def test_every_file_is_served_with_its_type_and_headers() -> None:
    """Every file has the security headers of the pages, and needs no key."""
    paths = {"index.html": "/", "reference.html": "/v1/docs"}
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    async with serving(keys=keys) as (client, _):
        for name in [*FILES, *SWAGGER_UI]:
            answer = await client.get(paths.get(name, f"/console/{name}"))
            folder = VENDORED if name in SWAGGER_UI else STATIC
            assert (answer.status, answer.body) == (200, (folder / name).read_bytes()), name
            assert answer.headers["content-type"] == TYPES[name.rpartition(".")[2]]
            assert answer.headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


async def test_the_console_gets_only_whether_keys_metrics_and_reference_exist() -> None:
    """The page gets no other fact about the server."""
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    async with serving() as (client, _):
        answer = await client.get("/console/server.json")
        assert answer.json == {"keys": False, "metrics": False, "reference": True}
        assert answer.headers["content-type"] == "application/json"
    async with serving(Settings(env="prod", console=True), keys, Metrics.create()) as (client, _):
        answer = await client.get("/console/server.json")
        assert answer.json == {"keys": True, "metrics": True, "reference": False}


async def test_the_pages_are_served_to_allowed_hosts_only() -> None:
    """A name that an attacker points at the loopback address gets no page."""
    async with serving() as (client, _):
        for path in ("/", "/v1/docs", "/console/main.js"):
            assert (await client.get(path, headers={"host": "evil.example"})).json["code"] == "HOST_NOT_ALLOWED"
        assert (await client.get("/console/../settings.py")).status == 404
        assert (await client.get("/console/nothing.js")).status == 404


@pytest.mark.parametrize("name", FILES)
def test_no_file_loads_from_another_host(name: str) -> None:
    """The only addresses in the files are names of XML namespaces."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'>]*", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".html", ".svg"))])
def test_pages_have_no_inline_scripts_or_styles(name: str) -> None:
    """The content security policy would block inline scripts and styles silently."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""] * text.count("<script")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_never_make_markup_or_code_from_text(name: str) -> None:
    """Titles and ids that contain markup are shown as text."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", text
    )
    assert not re.search(r"localStorage|document\.cookie|indexedDB", text)


def test_swagger_ui_has_its_licence_and_loads_no_other_file() -> None:
    """The style sheet refers to no other file, and the script to no source map."""
    assert {"LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"} <= {path.name for path in VENDORED.iterdir()}
    style = (VENDORED / "swagger-ui.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|sourceMappingURL", style)
    assert "sourceMappingURL" not in (VENDORED / "swagger-ui-bundle.js").read_text(encoding="utf-8")
