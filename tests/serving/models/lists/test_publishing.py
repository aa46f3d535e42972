"""A list of available items and one of new items beside one model."""

from __future__ import annotations

from typing import Any, cast

import pytest

from svc.recipe.serving_schema import Serving
from tests.serving.models.lists.test_new_items import Listing, items
from tests.serving.watched import FakeRecipe, until

pytestmark = pytest.mark.anyio


async def test_available_items_are_lined_up_with_the_new_ones() -> None:
    """Whichever list changes; columns of new items stand behind those of the model."""
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
        return cast(Any, world.entry("a").served).available.items.columns().tolist()

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
