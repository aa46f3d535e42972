"""The registry of recipes, and its health documents in each state of a recipe."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from svc.errors import AvailabilityStale, RecipeNotFound
from svc.serving.models.registry import Entry, Faults, ListState, Registry, Served
from tests.serving import artifacts
from tests.serving.artifacts import availability


def served(name: str = "movies") -> Served:
    return artifacts.served_model(name=name, header={"best_class": "TopPopRecommender"}, model_version="sha256:00")


def loaded(name: str, **faults: str) -> Entry:
    return Entry(name, f"{name}.yaml", served(name), Faults(**faults))


def stub(name: str, error: str) -> Entry:
    return Entry(name, f"{name}.yaml", faults=Faults(load=error))


def registry(*entries: Entry, skipped: dict[str, str] | None = None) -> Registry:
    made = Registry()
    for entry in entries:
        made.put(entry)
    made.skip(skipped or {})
    return made


def test_an_empty_registry_is_healthy_and_ready() -> None:
    """A server without recipes is healthy."""
    empty = Registry()
    assert empty.health() == ({"status": "ok", "total": 0, "loaded": 0}, 200)
    assert empty.details() == ({"status": "ok", "recipes": {}}, 200)
    assert empty.unready_reason(names_recipes=True) is None


def test_details_have_version_and_age_of_the_model() -> None:
    """The age counts from the training, not from the start of the server."""
    header = {"trained_at": datetime.fromtimestamp(time.time() - 90, UTC).isoformat()}
    document, _ = registry(Entry("a", "a.yaml", replace(served(), header=header))).details()
    shown = document["recipes"]["a"]
    assert shown["model_version"] == "sha256:00"
    assert 88 <= shown["age_seconds"] <= 95


def test_a_stub_degrades_both_documents_but_not_readiness_of_others() -> None:
    """A valid recipe without a model gives 503 and its reason. The server is ready if another recipe is loaded."""
    mixed = registry(loaded("a"), stub("b", "magic bytes mismatch"))
    assert mixed.health() == ({"status": "degraded", "total": 2, "loaded": 1}, 503)
    document, status = mixed.details()
    assert (document["status"], status) == ("degraded", 503)
    assert document["recipes"]["b"] == {"loaded": False, "error": "magic bytes mismatch"}
    assert mixed.unready_reason(names_recipes=True) is None
    stubs = registry(stub("b", "x" * 300), Entry("c", "c.yaml"))
    assert stubs.unready_reason(names_recipes=True) == f"b: {'x' * 200}; c: not loaded yet"
    counted = stubs.unready_reason(names_recipes=False)
    assert counted == "2 of 2 recipes have no model yet: GET /v1/health/details, with a key, says why"


def test_skipped_files_are_counted_apart_and_degrade_nothing() -> None:
    """`skipped` is present if it is above zero. Details list a skipped file under its name without the extension."""
    partly = registry(loaded("a"), skipped={"broken.yaml": "broken.yaml: line 3"})
    assert partly.health() == ({"status": "ok", "total": 1, "loaded": 1, "skipped": 1}, 200)
    document, status = partly.details()
    assert (document["status"], status) == ("ok", 200)
    assert document["recipes"]["broken"] == {"loaded": False, "skipped": True, "error": "broken.yaml: line 3"}
    assert partly.skipped_files() == {"broken.yaml": "broken.yaml: line 3"}


def test_a_skipped_file_never_hides_a_recipe_of_the_same_name() -> None:
    """If a recipe has that name, the details list the skipped file under its full name."""
    document, _ = registry(loaded("a"), skipped={"a.yaml": "bad"}).details()
    assert document["recipes"]["a"]["loaded"] is True
    assert document["recipes"]["a.yaml"]["skipped"] is True


def test_errors_are_shown_at_most_200_characters_long() -> None:
    """Longer texts of stores and files are cut."""
    document, _ = registry(loaded("a", stat="x" * 500), stub("b", "y" * 500), skipped={"c.yaml": "z" * 500}).details()
    shown = document["recipes"]
    assert [len(shown["a"]["last_load_error"]), len(shown["b"]["error"]), len(shown["c"]["error"])] == [200] * 3


def test_errors_outside_utf_8_are_escaped() -> None:
    """A path may have bytes outside UTF-8, which would break the document."""
    document, _ = registry(stub("b", "/data/\udcff.svc cannot be read")).details()
    assert document["recipes"]["b"]["error"] == "/data/\\udcff.svc cannot be read"


def test_a_running_request_keeps_its_registry_entry() -> None:
    """Publication replaces the reference to the entry, and does not change the entry."""
    one = registry(loaded("a"))
    before = one.get("a")
    assert before is not None
    one.put(replace(before, served=served()))
    assert one.get("a") is not before
    one.remove("a")
    assert one.get("a") is None
    assert before.served is not None


def test_of_several_faults_health_shows_that_of_the_load() -> None:
    """The order is load, stat, recipe. A failed load comes first, because it keeps a new model from being served."""
    assert Faults(load="l", stat="s", recipe="r").first() == "l"
    assert Faults(stat="s", recipe="r").first() == "s"
    assert Faults(recipe="r").first() == "r"


@pytest.mark.anyio
async def test_a_stale_list_stops_a_recipe_only_in_mode_allow() -> None:
    """A list that was never read is stale too. Without `max_stale_seconds`, no age is stale."""

    def entry(mode: str, age_s: float | None, longest_s: float | None = 60) -> Entry:
        declared = availability(mode, max_stale_seconds=longest_s)
        read_at = None if age_s is None else trio.current_time() - age_s
        return replace(loaded("a"), availability=ListState(declared, (), read_at))

    for fresh in (entry("allow", 59.0), entry("allow", 1e9, None), entry("deny", 61.0), entry("deny", None)):
        fresh.require_fresh()
        assert registry(fresh).details()[1] == 200
    for stale in (entry("allow", 60.1), entry("allow", None), entry("allow", None, None)):
        with pytest.raises(AvailabilityStale):
            stale.require_fresh()
        assert registry(stale).details()[1] == 503
    document, _ = registry(entry("deny", None)).details()
    assert document["recipes"]["a"]["availability"] == {"mode": "deny", "age_seconds": None, "stale": True}


def test_an_unknown_recipe_is_logged_and_refused() -> None:
    """The same function logs and refuses, so every 404 has its event."""
    made = registry(loaded("movies"))
    assert made.require("movies") is made.get("movies")
    with capture_logs() as records, pytest.raises(RecipeNotFound):
        made.require("none")
    assert [(record["event"], record["name"]) for record in records] == [("recipe_not_found", "none")]


def test_each_change_is_reported_once() -> None:
    """Reports come in order. Skipped files are reported only if they changed."""
    told: list[tuple[Any, ...]] = []
    made = Registry(lambda *message: told.append(message))
    made.put(loaded("a"))
    made.skip({})
    made.skip({"b.yaml": "wrong"})
    made.skip({"b.yaml": "wrong"})
    made.remove("a")
    assert [message[0] for message in told] == ["entry", "skip", "remove"]
    assert made.get("a") is None


def test_health_has_the_numbers_of_workers() -> None:
    """`failing` counts workers that die at each start."""
    made = registry()
    made.workers = {"total": 4, "ready": 3, "failing": 1}
    document, status = made.health()
    assert document["workers"] == {"total": 4, "ready": 3, "failing": 1}
    assert status == 200
