"""The table of endpoints and of the files of web pages: their paths, and whether they need a key."""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest

from svc.serving.api.application import DOCUMENTS
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import (
    CONSOLE,
    ENDPOINTS,
    PAGES,
    PROBES,
    REFERENCE,
    SHARED,
    SWAGGER_UI,
    VERBS,
    Router,
    served_with,
)
from svc.serving.api.pages.routes import build_routes
from svc.serving.api.verbs import Verbs
from svc.settings import Settings
from tests.serving.client import serving

PUBLIC = {"health", "live", "ready", "openapi"}


def test_only_health_openapi_and_pages_are_public() -> None:
    """A new public endpoint must be added to this list."""
    assert {row.name for row in ENDPOINTS if row.public and row not in PAGES} == PUBLIC
    assert {row.path for row in PAGES if not row.path.startswith("/console/")} == {"/", "/v1/docs"}
    assert {row.name for row in ENDPOINTS if row.any_host} == {row.name for row in PROBES} == DOCUMENTS.keys()


def test_names_and_paths_are_unique() -> None:
    """Two rows of the table for one path could disagree about the need for a key, and only one would be routed."""
    assert all(row.name for row in ENDPOINTS)
    assert max(Counter(row.name for row in ENDPOINTS).values()) == 1
    assert max(Counter(row.path for row in ENDPOINTS).values()) == 1


@pytest.mark.anyio
async def test_quart_routes_exactly_the_endpoints_other_than_verbs_and_probes() -> None:
    """Quart treats a double slash in a path as different from a single one."""
    async with serving() as (_, state):
        rules = build_routes(state, Verbs(state).popular).url_map
    expected = {row.path.replace("{name}", "<name>") for row in ENDPOINTS if row not in PROBES and row not in VERBS}
    assert {rule.rule for rule in rules.iter_rules()} == expected
    assert not rules.merge_slashes


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.path)
def test_an_endpoint_is_found_by_its_exact_path_only(row: Endpoint) -> None:
    """Similar paths, such as one with another slash at its end, lead to no endpoint."""
    router = Router(ENDPOINTS)
    path = row.path.replace("{name}", "a-B_9")
    route = router.find(path)
    assert route is not None
    assert (route.endpoint(row.method), route.name) == (row, "a-B_9" if "{name}" in row.path else "")
    for other in (path + "/", path + "\n", "/" + path, path.upper() + "X", path[1:], path + "%", row.path + "{name}"):
        assert router.find(other) is None


@pytest.mark.parametrize("name", ["", "a" * 65, "a.b", "a b", "\u00e9", "a/b", "a\n", "{name}"])
def test_an_invalid_name_of_a_recipe_has_no_route(name: str) -> None:
    """A recipe name in a path must match the pattern of recipe names."""
    for row in ENDPOINTS:
        if "{name}" in row.path:
            assert Router(ENDPOINTS).find(row.path.replace("{name}", name)) is None


@pytest.mark.parametrize("environment", ["", "production"])
def test_a_disabled_endpoint_still_needs_its_key(environment: str) -> None:
    """Only clients with a key learn that the endpoint is disabled."""
    settings = Settings(env=environment)
    rows = served_with(settings)
    assert {row for row in ENDPOINTS if not row.public} <= set(rows)
    assert all(row.is_served(settings) for row in rows if row.public)
    settings = Settings(metrics_enabled=True)
    assert all(row.is_served(settings) for row in served_with(settings))


STATIC = Path(str(resources.files("svc.serving.api.pages"))) / "console" / "static"


FILES = sorted(path.name for path in STATIC.iterdir())


SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_every_import_of_a_script_is_a_file() -> None:
    """A missing module would stop the whole page."""
    for name in SCRIPTS:
        text = (STATIC / name).read_text(encoding="utf-8")
        assert {part[2:] for part in re.findall(r'from "([^"]+)"', text)} <= set(FILES), name


def test_every_file_is_listed_once() -> None:
    """A file without a row in the table of endpoints would never be served."""
    listed = [*SHARED, *CONSOLE, *REFERENCE]
    assert sorted([*listed, "index.html", "reference.html"]) == FILES
    vendored = {path.name for path in (STATIC.parent / "swagger_ui").iterdir()}
    assert set(SWAGGER_UI) <= vendored
