"""Lists of available items, which are read outside the watcher's ticks, in virtual time."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from svc.errors import DataSourceError
from svc.recipe.serving_schema import Serving
from svc.serving.models import transitions
from svc.serving.models.registry import Entry
from tests.serving.artifacts import ids
from tests.serving.watched import FakeRecipe, World, hang_until, until

pytestmark = pytest.mark.anyio


def declared(**more: Any) -> Any:
    """Return the serving block of a recipe with a list."""
    options = {"source": {"type": "csv", "path": "x.csv"}, "id_column": "id", "mode": "allow", "refresh_seconds": 10}
    return Serving.model_validate({"availability": {**options, **more}})


class Listing(World):
    """A world with one recipe whose model has the items i0 to i9."""

    def __init__(self, found: Any, **more: Any) -> None:
        super().__init__("a")
        self.folder.files["a.yaml"] = FakeRecipe("a", serving=declared(**more))
        self.lists["a"] = found
        load = self.loader.load

        def with_items(*arguments: Any, **options: Any) -> Any:
            loaded = load(*arguments, **options)
            return loaded and replace(loaded, model=cast(Any, SimpleNamespace(item_ids=ids("i", 10))))

        self.loader.load = with_items  # type: ignore[method-assign]

    def items(self) -> list[int] | None:
        available = cast(Entry, self.registry.get("a")).served.available  # type: ignore[union-attr]
        return None if available is None else available.columns().tolist()


async def test_a_list_is_read_at_the_start_and_at_each_interval(lowered: list[int]) -> None:
    """Each new model gets the list. Unknown ids are ignored, and an unchanged list keeps cached answers.

    The reading lowers the priority of its thread.
    """
    world = Listing(["i1", "i3", "none"])
    async with world.running():
        assert world.items() == [1, 3]
        assert lowered
        before = world.entry("a").served
        await until(lambda: cast(Any, world.entry("a").availability).read_at > 20)
        assert world.entry("a").served is before
        world.lists["a"] = ["i2"]
        await until(lambda: world.items() == [2])
        world.store("a").content = "v2"
        await until(lambda: len(world.loader.loads) == 2)
        await trio.sleep(1)
        assert world.items() == [2]
        world.lists["a"] = []
        await until(lambda: world.items() == [])
    said = world.said("availability_loaded")
    assert [(one["n_ids"], one["mode"]) for one in said] == [(3, "allow"), (1, "allow"), (0, "allow")]


@pytest.mark.parametrize("trouble", [DataSourceError("no such file"), RuntimeError("defect"), None])
async def test_the_last_list_stays_if_the_source_fails(trouble: Exception | None) -> None:
    """An error or a hang is logged once. The age grows until the next valid list."""
    world = Listing(["i1"], max_stale_seconds=60)
    hang = threading.Event()
    async with world.running():
        world.lists["a"] = trouble or hang
        await trio.sleep(50)
        assert world.items() == [1]
        assert 30 < world.count("svc_availability_age_seconds") <= 61
        assert len(world.said("availability_load_failed")) == 1
        await until(lambda: bool(world.said("availability_stale")))
        await trio.sleep(100)
        assert len(world.said("availability_stale")) == 1
        world.lists["a"] = ["i4"]
        world.release(hang)
        await until(lambda: world.items() == [4])
        assert world.count("svc_availability_age_seconds") < 60


async def test_a_publication_that_outlasts_the_interval_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """If each interval restarted it, a busy machine would never finish it."""
    world = Listing(["i1"])
    free = threading.Event()
    lined_up: list[tuple[str, ...]] = []
    available_items = transitions.available_items

    def slowly(declared: Any, ids: Any, item_ids: Any, new: Any) -> Any:
        lined_up.append(ids)
        hang_until(free)
        return available_items(declared, ids, item_ids, new)

    async with world.running():
        monkeypatch.setattr(transitions, "available_items", slowly)
        for number in range(10):
            world.lists["a"] = [f"i{2 + number % 7}"]
            await trio.sleep(12)
        world.store("a").content = "v2"
        await until(lambda: len(world.loader.loads) == 2)
        await trio.sleep(30)
        assert lined_up == [("i2",)]
        assert world.items() == [1]
        world.release(free)
        await until(lambda: world.items() == [4])
        assert lined_up[-1] == ("i4",)
        n_lined_up = len(lined_up)
        await trio.sleep(50)
        assert len(lined_up) == n_lined_up, "a list that has not changed is not lined up again"
        assert world.count("svc_availability_age_seconds") < 15


async def test_a_changed_declaration_of_a_list_is_applied() -> None:
    """The artifact is not loaded again. Only a changed mode discards the last list before the next is read."""
    world = Listing(["i1"])
    async with world.running():
        world.lists["a"] = DataSourceError("the source is down")
        moved = declared(source={"type": "csv", "path": "moved.csv"}, max_stale_seconds=90)
        world.folder.files["a.yaml"] = FakeRecipe("a", text="1", serving=moved)
        await until(lambda: len(world.said("availability_load_failed")) == 1)
        assert cast(Any, world.entry("a").availability).declared.max_stale_seconds == 90
        assert not world.entry("a").is_closed
        assert world.items() == [1]
        world.lists["a"] = ["i1"]
        world.folder.files["a.yaml"] = FakeRecipe("a", text="2", serving=declared(mode="deny"))
        await until(lambda: world.items() == [0, *range(2, 10)])
        world.folder.files["a.yaml"] = FakeRecipe("a", text="3")
        await until(lambda: world.items() is None)
        assert "svc_availability_age_seconds{" not in world.metrics.render().decode()
        assert len(world.loader.loads) == 1


async def test_a_recipe_without_a_list_has_no_event_and_no_metric() -> None:
    world = World("a")
    async with world.running():
        await trio.sleep(100)
    assert not [record for record in world.records if "availability" in record["event"]]
    assert "svc_availability_age_seconds{" not in world.metrics.render().decode()
