"""The table of endpoints: what a path leads to, and who may go there."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from svc.errors import MethodNotAllowed
from svc.metrics import Metrics
from svc.serving.api.endpoints import ENDPOINTS, PAGES, PROBES, VERBS, Endpoint, Router, served_by
from svc.serving.api.probes import DOCUMENTS
from svc.serving.api.routes import build_routes
from svc.settings import Settings
from tests.serving.client import serving

PUBLIC = {"health", "live", "ready", "openapi"}


def test_a_row_says_whether_it_is_public() -> None:
    """Nobody can add an endpoint without a word on it."""
    field = next(field for field in dataclasses.fields(Endpoint) if field.name == "public")
    assert field.default is field.default_factory is dataclasses.MISSING
    with pytest.raises(TypeError, match="public"):
        Endpoint(name="new", path="/v1/new")  # type: ignore[call-arg]


def test_only_these_are_public() -> None:
    """The public health, the description of the API and the files of the pages; whoever adds one says so here."""
    assert {row.name for row in ENDPOINTS if row.public and row not in PAGES} == PUBLIC
    assert {row.path for row in PAGES if not row.path.startswith("/console/")} == {"/", "/v1/docs"}
    assert {row.name for row in ENDPOINTS if row.any_host} == {row.name for row in PROBES} == DOCUMENTS.keys()


def test_a_name_and_a_path_stand_once() -> None:
    """Two rows for one thing would be two answers to who may ask for it."""
    assert max(Counter(row.name for row in ENDPOINTS).values()) == 1
    assert max(Counter((row.method, row.path) for row in ENDPOINTS).values()) == 1


@pytest.mark.anyio
async def test_quart_has_the_other_rows_and_no_more() -> None:
    """Its rules are those of the table, in the same words; it neither merges slashes nor redirects."""
    async with serving() as (_, state):
        rules = build_routes(state).url_map
    expected = {row.path.replace("{name}", "<name>") for row in ENDPOINTS if row not in PROBES and row not in VERBS}
    assert {rule.rule for rule in rules.iter_rules()} == expected
    assert not rules.merge_slashes


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.path)
def test_each_row_is_found_by_its_path_only(row: Endpoint) -> None:
    """A path that differs in anything leads nowhere, or to another row."""
    router = Router(ENDPOINTS)
    path = row.path.replace("{name}", "a-B_9")
    route = router.find(path)
    assert route is not None
    assert (route.endpoint(row.method), route.name) == (row, "a-B_9" if "{name}" in row.path else "")
    for other in (path + "/", path + "\n", "/" + path, path.upper() + "X", path[1:], path + "%", row.path + "{name}"):
        assert router.find(other) is None


@pytest.mark.parametrize("name", ["", "a" * 65, "a.b", "a b", "\u00e9", "a/b", "a\n", "{name}"])
def test_what_cannot_name_a_recipe_leads_nowhere(name: str) -> None:
    """The pattern of names is the recipe's own."""
    for row in ENDPOINTS:
        if "{name}" in row.path:
            assert Router(ENDPOINTS).find(row.path.replace("{name}", name)) is None


def test_methods_are_case_sensitive() -> None:
    """HEAD goes where GET goes; every other method, in whatever letters, is told which there are."""
    router = Router(ENDPOINTS)
    health, verb = router.find("/v1/health"), router.find("/v1/recipes/a:recommend")
    assert health is not None
    assert verb is not None
    assert health.endpoint("HEAD") is health.endpoint("GET")
    for method in ("get", "Get", "POST", "OPTIONS", ""):
        with pytest.raises(MethodNotAllowed) as caught:
            health.endpoint(method)
        assert caught.value.fields["allow"] == ["GET", "HEAD"]
    with pytest.raises(MethodNotAllowed) as caught:
        verb.endpoint("HEAD")
    assert caught.value.fields["allow"] == ["POST"]


@pytest.mark.anyio
@pytest.mark.parametrize("environment", ["", "production"])
async def test_a_guarded_row_that_is_off_still_asks_for_a_key(environment: str) -> None:
    """Only those with a key learn what is switched off."""
    async with serving(Settings(env=environment)) as (_, state):
        rows = served_by(state)
        assert {row for row in ENDPOINTS if not row.public} <= set(rows)
        assert all(row.is_served(state) for row in rows if row.public)
    async with serving(metrics=Metrics.create()) as (_, state):
        assert all(row.is_served(state) for row in served_by(state))
