"""Lists of available items and of new items: reading, refusals, and the items that a list permits."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from svc.asking import item_lists
from svc.asking.item_lists import NewItemList, available_items, read_ids, read_new_items
from svc.errors import DataSourceError
from svc.model.ids import IdTable
from svc.model.ranking.filter_fields import NO_FIELDS
from svc.recipe.serving_schema import NewItems, Serving
from svc.serving.models.fragments import ItemFragments
from svc.settings import Settings
from tests.serving.artifacts import availability, recipe
from tests.serving.client import model
from tests.serving.watched import FakeRecipe, World, until

pytestmark = pytest.mark.anyio


def listed_ids(folder: Path, text: str) -> Any:
    (folder / "list.csv").write_text(text, encoding="utf-8")
    declared = availability().model_dump(mode="json", exclude_unset=True)
    return read_ids(recipe(folder, serving={"availability": declared}), Settings(), {})


def test_ids_are_read_as_text_without_duplicates(tmp_path: Path) -> None:
    """Other columns and blank cells are ignored. A table with only a header gives an empty list."""
    assert listed_ids(tmp_path, "x,item_id\n1,007\n2,a b\n3,007\n4,\n") == ("007", "a b")
    assert listed_ids(tmp_path, "item_id\n") == ()


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("id\n1\n", "item_id")])
def test_an_invalid_list_of_available_items_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    """The message says what is wrong with the list."""
    with pytest.raises(DataSourceError, match=words):
        listed_ids(tmp_path, text)


def test_a_list_allows_its_items_or_denies_them() -> None:
    """Ids that the model does not know are ignored."""
    for mode, expected in (("allow", [0, 2]), ("deny", [1])):
        items = available_items(availability(mode), ("c", "unknown", "a"), IdTable.from_ids(["a", "b", "c"]))
        assert items.columns().tolist() == expected


WITH_NEW_ITEMS: dict[str, Any] = {
    "features": {
        "item": {
            "source": {"type": "csv", "path": "none.csv"},
            "id_column": "item_id",
            "columns": [{"name": "tag", "kind": "categorical"}, {"name": "age", "kind": "numerical"}],
        }
    },
    "item_metadata": {
        "source": {"type": "csv", "path": "titles.csv"},
        "id_column": "item_id",
        "fields": ["title"],
        "filter_fields": [{"name": "title", "kind": "categorical"}, {"name": "year", "kind": "numerical"}],
    },
    "training": {"algorithms": ["IALSRecommender"]},
    "serving": {"new_items": {"source": {"type": "csv", "path": "new.csv"}, "max_items": 4}},
}


def declared(**shares: float | None) -> NewItems:
    return NewItems.model_validate({"source": {"type": "csv", "path": "new.csv"}, **shares})


TITLES = "item_id,title,year\nx,First,1999\ni3,Known,\n"


def listing(folder: Path, text: str, titles: str = TITLES) -> NewItemList:
    (folder / "new.csv").write_text(text, encoding="utf-8")
    (folder / "titles.csv").write_text(titles, encoding="utf-8")
    return read_new_items(recipe(folder, **WITH_NEW_ITEMS), Settings(), {})


@pytest.mark.parametrize("rows_at_once", [2, 1000])
def test_any_change_of_a_list_changes_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """An id, a feature, a field or a filter value may change in any row."""
    monkeypatch.setattr(item_lists, "ROWS_AT_ONCE", rows_at_once)
    rows = ["i3,a,20", "x,b,", "007,,33.5", "y,c,1"]
    changed = [[*rows[:place], row, *rows[place + 1 :]] for place in range(4) for row in ("new,d,7",)]
    changed += [[*rows[:3], last] for last in ("z,c,1", "y,d,1", "y,c,2")] + [["i3,a,21", *rows[1:]]]
    texts = ["\n".join(["item_id,tag,age", *lines, ""]) for lines in (rows, *changed)]
    digests = [listing(tmp_path, text).digest for text in texts]
    digests += [listing(tmp_path, texts[0], TITLES.replace(*pair)).digest for pair in (("First", "1st"), ("1999", "2"))]
    assert len(set(digests)) == len(digests) == 11


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("item_id,tag\nx,a\n", "the list lacks the column 'age'|age"),
        ("item_id,tag,age\nx,a,1\n,b,2\n", "no id in data row 2, column 'item_id'"),
        ("item_id,tag,age\nx,a,1\ny,b,2\nx,b,2\n", "the id 'x' in data rows 1 and 3, column 'item_id'"),
        ("item_id,tag,age\n" + "".join(f"n{n},a,1\n" for n in range(5)), "5 items, more than serving.new_items.max_it"),
    ],
)
def test_an_invalid_list_of_new_items_names_row_and_column(tmp_path: Path, text: str, words: str) -> None:
    """The error says where the list is invalid."""
    with pytest.raises(DataSourceError, match=words):
        listing(tmp_path, text)


class Listing(World):
    """A world with one recipe, whose model was trained with item features."""

    def __init__(self, found: Any) -> None:
        super().__init__("a")
        declared = {"source": {"type": "csv", "path": "x.csv"}, "refresh_seconds": 10}
        self.folder.files["a.yaml"] = FakeRecipe("a", serving=Serving.model_validate({"new_items": declared}))
        self.new_items["a"] = found
        load = self.loader.load

        def with_model(*arguments: Any, **options: Any) -> Any:
            loaded = load(*arguments, **options)
            own = model()
            return loaded and replace(loaded, model=own, fragments=ItemFragments.build(own.item_ids, None))

        self.loader.load = with_model  # type: ignore[method-assign]

    def ids(self) -> list[str] | None:
        served = cast(Any, self.entry("a").served)
        return None if served.new is None else served.new.items.ids.all()


def items(*ids: str, **features: Any) -> NewItemList:
    return NewItemList(ids, tuple(features for _ in ids), None, NO_FIELDS, repr((ids, features)).encode())


async def test_the_last_list_stays_if_the_source_fails() -> None:
    """An empty list, an error, a hang and unusable features are logged once. The age grows until a valid list comes."""
    world = Listing(items("x", "i3", tag="a"))
    hang = threading.Event()
    async with world.running():
        assert world.ids() == ["x"]
        assert world.said("new_items_loaded")[0]["n_new"] == 1
        world.new_items["a"] = items("y", age="old")
        await trio.sleep(25)
        assert [one["error"] for one in world.said("new_items_load_failed")] == [
            "data row 1, item 'y': feature 'age': a text is not a number; give one or null"
        ]
        for trouble in (items(), DataSourceError("no such file"), hang):
            world.new_items["a"] = trouble
            await trio.sleep(45)
            assert world.ids() == ["x"]
        assert len(world.said("new_items_load_failed")) == 4
        assert world.count("svc_new_items_age_seconds") > 60
        details = cast(Any, world.registry.details()[0])["recipes"]["a"]["new_items"]
        assert details["n_new"] == 1
        assert details["age_seconds"] > 60
        world.new_items["a"] = items("z")
        world.release(hang)
        await until(lambda: world.ids() == ["z"])
        assert world.count("svc_new_items_age_seconds") < 15
        world.store("a").content = "v2"
        await until(lambda: len(world.loader.loads) == 2)
        await trio.sleep(1)
        assert world.ids() == ["z"]
        world.folder.files["a.yaml"] = FakeRecipe("a", text="2")
        await until(lambda: world.ids() is None)
        assert "svc_new_items_age_seconds{" not in world.metrics.render().decode()


async def test_a_list_is_read_again_if_the_metadata_of_its_recipe_changes() -> None:
    """New items would otherwise keep the old fields."""
    world = Listing(items("x"))
    async with world.running():
        serving = world.folder.files["a.yaml"].serving
        world.folder.files["a.yaml"] = FakeRecipe("a", text="2", serving=serving)
        await trio.sleep(25)
        assert len(world.said("new_items_loaded")) == 1
        world.folder.files["a.yaml"] = FakeRecipe("a", item_metadata="other", serving=serving)
        await until(lambda: len(world.said("new_items_loaded")) == 2)
        await until(lambda: world.ids() == ["x"])
