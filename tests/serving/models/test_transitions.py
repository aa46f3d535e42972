"""What is published when something happens to a recipe."""

from __future__ import annotations

from typing import Any, cast

import pytest

from svc import events, logs
from svc.events import Event
from svc.metrics import Metrics
from svc.serving.models.discovery import Declared, Refused
from svc.serving.models.loader import Loaded
from svc.serving.models.registry import Registry
from svc.serving.models.transitions import Publisher
from tests.serving.watched import FakeLane, FakeRecipe

pytestmark = pytest.mark.anyio
Said = list[tuple[Event, dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """What is logged, in order."""
    records: Said = []
    monkeypatch.setattr(logs, "emit", lambda event, /, **fields: records.append((event, fields)))
    return records


async def no_lane(_model: object) -> Any:
    raise AssertionError("nothing is loaded here")


def publisher() -> tuple[Publisher, Registry]:
    registry = Registry()
    return Publisher(registry, no_lane, Metrics.disabled()), registry


def declared(name: str = "books") -> Declared:
    return Declared(f"{name}.yaml", FakeRecipe(name))  # type: ignore[arg-type]  # it has what is read of a recipe


def test_a_declared_recipe_is_a_stub_until_it_is_loaded() -> None:
    """It counts in health, and nobody can ask it."""
    publish, registry = publisher()
    publish.declare(declared())
    entry = registry.get("books")
    assert entry is not None
    assert entry.served is None
    assert registry.health()[1] == 503


def test_a_skipped_file_is_logged_once_for_each_of_its_errors(said: Said) -> None:
    """Every poll sees the file again; only news are worth a line."""
    publish, registry = publisher()
    for error in ("line 1", "line 1", "line 2"):
        publish.refuse({"a.yaml": Refused(error, "parse")})
    assert [fields["error"] for event, fields in said if event is events.RECIPE_LOAD_ERROR_SKIPPED] == [
        "line 1",
        "line 2",
    ]
    publish.refuse({})
    assert registry.skipped_files() == {}


def test_a_broken_file_keeps_its_recipe_until_it_is_mended(said: Said) -> None:
    """The error is shown while it lasts, and its end is logged with what it was."""
    publish, registry = publisher()
    publish.declare(declared())
    for _ in range(2):
        publish.recipe_broken(declared(), Refused("line 3", "parse"))
    entry = registry.get("books")
    assert entry is not None
    assert entry.faults.recipe == "line 3"
    publish.recipe_mended("books")
    publish.recipe_mended("books")
    cleared = [fields for event, fields in said if event is events.ARTIFACT_LOAD_ERROR_CLEARED]
    assert [(fields["reason"], fields["previous_error"]) for fields in cleared] == [("recipe_parsed", "line 3")]


async def test_a_refit_has_the_age_of_its_search_among_the_metrics() -> None:
    """A model that was searched is as old as its parameters. Both ages go with the recipe."""
    counters = Metrics.create()

    async def a_lane(loaded: Loaded) -> Any:
        return FakeLane(loaded.model)

    publish = Publisher(Registry(), a_lane, counters)
    publish.declare(declared())
    head: dict[str, Any] = {"trained_at": "1970-01-02T00:00:00+00:00", "tuning": {}}
    reused = {"reused_from": {"sha8": "0" * 8, "searched_at": "1970-01-01T01:00:00+00:00"}}
    for header, searched_at in ((head, 86_400.0), ({**head, "tuning": reused}, 3600.0)):
        loaded = Loaded(cast(Any, None), cast(Any, None), header, "0" * 64, "k1", 0.0)
        await publish.load_succeeded("books", loaded, initial=True)
        text = counters.render().decode()
        assert f'svc_model_searched_timestamp_seconds{{recipe="books"}} {searched_at}\n' in text
        assert 'svc_model_trained_timestamp_seconds{recipe="books"} 86400.0\n' in text
    publish.remove("books")
    assert "_timestamp_seconds{" not in counters.render().decode()


def test_a_removed_recipe_is_gone_from_the_registry() -> None:
    """The next request for it is answered with 404."""
    publish, registry = publisher()
    publish.declare(declared())
    publish.remove("books")
    assert registry.get("books") is None
    assert registry.health()[1] == 200
