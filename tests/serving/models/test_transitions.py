"""Publication of a changed recipe, model or list."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import trio

from svc import events, logs
from svc.asking.policy import Policy
from svc.events import Event
from svc.metrics import Metrics
from svc.recipe.serving_schema import Serving
from svc.serving.models import transitions
from svc.serving.models.loader import Loaded
from svc.serving.models.recipes import Declared, Refused
from svc.serving.models.registry import Registry
from svc.serving.models.transitions import Publisher
from tests.asking.test_item_lists import Listing, items
from tests.serving.watched import FakeLane, FakeRecipe, hang_until, ticks, until

pytestmark = pytest.mark.anyio
Said = list[tuple[Event, dict[str, Any]]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return the names of the logged events in order."""
    records: Said = []
    monkeypatch.setattr(logs, "emit", lambda event, /, **fields: records.append((event, fields)))
    return records


async def no_lane(_model: object) -> Any:
    raise AssertionError("nothing is loaded here")


def publisher() -> tuple[Publisher, Registry]:
    registry = Registry()
    return Publisher(registry, no_lane, Metrics.disabled()), registry


def declared(name: str = "books") -> Declared:
    return Declared(f"{name}.yaml", FakeRecipe(name))  # type: ignore[arg-type]  # has the parts that are read


def test_a_skipped_file_is_logged_once_for_each_of_its_errors(said: Said) -> None:
    """Each poll finds the file again, but logs only a new error."""
    publish, registry = publisher()
    for error in ("line 1", "line 1", "line 2"):
        publish.refuse({"a.yaml": Refused(error, "parse")})
    assert [fields["error"] for event, fields in said if event is events.RECIPE_LOAD_ERROR_SKIPPED] == [
        "line 1",
        "line 2",
    ]
    publish.refuse({})
    assert registry.skipped_files() == {}


async def test_the_metrics_of_a_refit_have_the_time_of_its_search() -> None:
    """A searched model has the time of its training. Removing the recipe removes both metrics."""
    counters = Metrics.create()

    async def a_lane(loaded: Loaded) -> Any:
        return FakeLane(loaded.model)

    publish = Publisher(Registry(), a_lane, counters)
    publish.declare(declared())
    head: dict[str, Any] = {"trained_at": "1970-01-02T00:00:00+00:00", "tuning": {}}
    reused = {"reused_from": {"sha8": "0" * 8, "searched_at": "1970-01-01T01:00:00+00:00"}}
    for header, searched_at in ((head, 86_400.0), ({**head, "tuning": reused}, 3600.0)):
        loaded = Loaded(
            model=cast(Any, None), fragments=cast(Any, None), header=header, model_version="sha256:0", kid="k1"
        )
        await publish.load_succeeded("books", loaded, Policy, lambda: True)
        text = counters.render().decode()
        assert f'svc_model_searched_timestamp_seconds{{recipe="books"}} {searched_at}\n' in text
        assert 'svc_model_trained_timestamp_seconds{recipe="books"} 86400.0\n' in text
    publish.remove("books")
    assert "_timestamp_seconds{" not in counters.render().decode()


async def test_available_items_include_new_items() -> None:
    """A change of either list takes effect. The columns of new items follow those of the model."""
    world = Listing(items("x", "y"))
    lists = {
        "new_items": {"source": {"type": "csv", "path": "x.csv"}, "refresh_seconds": 10},
        "availability": {
            "source": {"type": "csv", "path": "x.csv"}, "id_column": "id", "mode": "allow", "refresh_seconds": 10
        },
    }  # fmt: skip
    world.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving.model_validate(lists))
    world.lists["a"] = ["i2", "y"]

    def available() -> list[int]:
        return cast(Any, world.entry("a").served).available.columns().tolist()

    async with world.running():
        n_items = cast(Any, world.entry("a").served).model.n_items
        await until(lambda: available() == [2, n_items + 1])
        world.lists["a"] = ["x"]
        await until(lambda: available() == [n_items])
        world.new_items["a"] = items("z", "x")
        await until(lambda: available() == [n_items + 1])
        world.folder.files["a.yaml"] = FakeRecipe(
            "a", text="2", serving=Serving.model_validate({"availability": lists["availability"]})
        )
        await until(lambda: available() == [])


async def test_edits_that_wait_for_new_items_delay_no_poll_and_apply_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Embedding 32,000 texts may take longer than a poll interval. The second edit requires a new load."""
    world = Listing(items("x", "y"))
    placed, hold = transitions.place_with_fragments, threading.Event()

    def place_late(listed: Any, *arguments: Any, **options: Any) -> Any:
        if len(listed.ids) == 1:
            hang_until(hold)
        return placed(listed, *arguments, **options)

    monkeypatch.setattr(transitions, "place_with_fragments", place_late)
    async with world.running():
        world.new_items["a"] = items("z")
        await trio.sleep(11)
        source = {"source": {"type": "csv", "path": "x.csv"}, "refresh_seconds": 10}
        edited = Serving.model_validate({"new_items": source, "diversity": 0.5})
        world.folder.files["a.yaml"] = FakeRecipe("a", text="2", serving=edited)
        looks = world.store("a").looks
        await ticks(4)
        looks, before = world.store("a").looks - looks, world.entry("a").policy.diversity
        edited = Serving.model_validate({"new_items": source, "diversity": 0.2})
        world.folder.files["a.yaml"] = FakeRecipe("a", text="3", output="other.svc", serving=edited)
        await ticks(2)
        world.release(hold)
        await until(lambda: len(world.said("artifact_loaded")) == 2)
        assert cast(Any, world.entry("a").served).policy.diversity == world.entry("a").policy.diversity == 0.2
        assert world.ids() == ["z"]
    assert looks >= 3
    assert before != 0.5


async def test_an_unchanged_list_changes_only_its_age() -> None:
    """The new items of an unchanged list are not embedded again."""
    world = Listing(items("x", "y"))
    async with world.running():
        before = cast(Any, world.entry("a").served)
        await until(lambda: cast(Any, world.entry("a")).new_items.read_at > 20)
        assert world.entry("a").served is before
        world.new_items["a"] = items("x", "z")
        await until(lambda: world.ids() == ["x", "z"])
        now = cast(Any, world.entry("a").served)
    assert (now.model, now.lane, now.alone) == (before.model, before.lane, before.alone)


async def test_a_change_of_a_removed_recipe_does_not_apply_to_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe is removed and added again while the change is computed."""
    publish, registry = publisher()
    publish.declare(declared())

    async def meanwhile(compute: Any, *arguments: Any) -> Any:
        publish.remove("books")
        publish.declare(declared())
        return compute(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", meanwhile)
    assert await publish.change("books", policy=Policy(diversity=0.5)) is None
    entry = registry.get("books")
    assert entry is not None
    assert entry.policy == Policy()
