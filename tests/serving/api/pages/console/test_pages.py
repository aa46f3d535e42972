"""The web pages: when they are served, their rights in a browser, and that they load nothing from other hosts."""

from __future__ import annotations

import re

import pytest

from svc.metrics import Metrics
from svc.serving.api.access.api_keys import hash_api_key, new_api_key, parse_api_keys
from svc.serving.api.pages.console import pages
from svc.serving.api.routing.endpoints import SWAGGER_UI
from svc.settings import Settings
from tests.serving.api.routing.test_endpoints import FILES, SCRIPTS, STATIC
from tests.serving.client import serving

VENDORED = STATIC.parent / "swagger_ui"


async def statuses(settings: Settings) -> tuple[int, int, int, int]:
    """Return the statuses of the console, one of its scripts, the reference, and the shared style."""
    paths = ("/", "/console/main.js", "/v1/docs", "/console/style.css")
    async with serving(settings) as (client, _):
        found = [(await client.get(path)).status for path in paths]
    return found[0], found[1], found[2], found[3]


@pytest.mark.anyio
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
async def test_the_environment_opens_and_closes_the_pages(
    env: str, console: bool | None, expected: tuple[int, int, int, int]
) -> None:
    """In production the console needs SVC_CONSOLE=1. The reference is served if the OpenAPI document is."""
    assert await statuses(Settings(env=env, console=console)) == expected


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("0", False), ("", None)])
def test_console_variable_is_a_flag(text: str, expected: bool | None) -> None:
    """If it is unset, SVC_ENV decides."""
    assert Settings.from_env({"SVC_CONSOLE": text}).console is expected


@pytest.mark.anyio
async def test_every_file_is_served_with_its_type_and_headers() -> None:
    """Every file has the headers that restrict the page, and needs no key."""
    paths = {"index.html": "/", "reference.html": "/v1/docs"}
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    async with serving(keys=keys) as (client, _):
        for name in [*FILES, *SWAGGER_UI]:
            answer = await client.get(paths.get(name, f"/console/{name}"))
            folder = VENDORED if name in SWAGGER_UI else STATIC
            assert (answer.status, answer.body) == (200, (folder / name).read_bytes()), name
            assert answer.headers["content-type"] == pages.TYPES[name.rpartition(".")[2]]
            assert answer.headers["content-security-policy"] == (
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.anyio
async def test_the_page_learns_if_keys_metrics_and_reference_exist() -> None:
    """It learns nothing else about the server."""
    keys = parse_api_keys(f"k:{hash_api_key(new_api_key())}")
    async with serving() as (client, _):
        answer = await client.get("/console/server.json")
        assert answer.json == {"keys": False, "metrics": False, "reference": True}
        assert answer.headers["content-type"] == "application/json"
    async with serving(Settings(env="prod", console=True), keys, Metrics.create()) as (client, _):
        answer = await client.get("/console/server.json")
        assert answer.json == {"keys": True, "metrics": True, "reference": False}


@pytest.mark.anyio
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
def test_markup_holds_no_script_and_no_style(name: str) -> None:
    """The content security policy would block inline scripts and styles silently."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", text)
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [""] * text.count("<script")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_never_make_markup_or_code_from_text(name: str) -> None:
    """Titles and ids may contain markup, and are shown as text only."""
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function", text
    )
    assert not re.search(r"localStorage|document\.cookie|indexedDB", text)


def test_swagger_ui_comes_with_its_licence_and_loads_nothing() -> None:
    """Its style refers to no other file, and its script to no source map."""
    assert {"LICENSE", "NOTICE", "swagger-ui-bundle.js.LICENSE.txt"} <= {path.name for path in VENDORED.iterdir()}
    style = (VENDORED / "swagger-ui.css").read_text(encoding="utf-8")
    assert not re.search(r"url\(|@import|sourceMappingURL", style)
    assert "sourceMappingURL" not in (VENDORED / "swagger-ui-bundle.js").read_text(encoding="utf-8")
