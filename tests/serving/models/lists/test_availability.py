"""A list of available items: how it is read, how old it may be, and the items that it permits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.errors import AvailabilityStale, DataSourceError
from svc.model.ids import IdTable
from svc.recipe.load import load_recipe
from svc.recipe.serving_schema import Availability
from svc.serving.models.lists.availability import Available, ItemList, age_of, is_stale, read_ids
from svc.settings import Settings


def listing(folder: Path, text: str) -> Any:
    (folder / "list.csv").write_text(text, encoding="utf-8")
    (folder / "a.yaml").write_text(
        "name: a\nsource: {type: csv, path: x.csv}\nschema: {user_column: u, item_column: i}\n"
        "output: {path: a.svc}\nserving:\n  availability:\n    source: {type: csv, path: list.csv}\n"
        "    id_column: item_id\n    mode: allow\n",
        encoding="utf-8",
    )
    recipe = load_recipe(folder / "a.yaml", {}, settings=Settings(), for_serving=True)
    return read_ids(recipe, Settings(), {})


def test_ids_are_read_as_text_once_each(tmp_path: Path) -> None:
    """Other columns and blank cells are ignored. A table with only a header is an empty list."""
    assert listing(tmp_path, "x,item_id\n1,007\n2,a b\n3,007\n4,\n") == ("007", "a b")
    assert listing(tmp_path, "item_id\n") == ()


@pytest.mark.parametrize(("text", "words"), [("", "is empty"), ("id\n1\n", "item_id")])
def test_a_broken_list_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    """An error keeps the last list in use."""
    with pytest.raises(DataSourceError, match=words):
        listing(tmp_path, text)


def declared_list(mode: str, max_stale_seconds: float | None = None) -> Availability:
    """Return a declared list that is never read."""
    options = {"source": {"type": "csv", "path": "x.csv"}, "id_column": "id", "mode": mode}
    return Availability.model_validate({**options, "max_stale_seconds": max_stale_seconds})


ITEMS = IdTable.from_ids(["a", "b", "c"])


def test_a_list_allows_its_items_or_denies_them() -> None:
    """Ids that the model does not know are ignored. Before the first read, `deny` denies no item."""
    listed = ItemList(("c", "unknown", "a"), 0.0)
    for mode, expected in (("allow", [0, 2]), ("deny", [1])):
        available = Available.of(declared_list(mode), listed, ITEMS)
        assert available.items is not None
        assert available.items.columns().tolist() == expected
        assert Available.of(declared_list(mode), None, ITEMS).items is None


def test_a_stale_list_stops_a_recipe_only_in_mode_allow() -> None:
    """A list that was never read is stale too. Without a limit no age is stale."""
    listed = ItemList(("a",), 100.0)
    allow = Available.of(declared_list("allow", 60), listed, ITEMS)
    assert age_of(listed, 150.0) == 50.0
    assert not is_stale(declared_list("allow", 60), 60.0) and is_stale(declared_list("allow", 60), 60.1)
    allow.require_fresh(160.0)
    for late in (allow, Available.of(declared_list("allow"), None, ITEMS)):
        with pytest.raises(AvailabilityStale):
            late.require_fresh(161.0)
    deny = Available.of(declared_list("deny", 60), listed, ITEMS)
    deny.require_fresh(161.0)
    assert not is_stale(declared_list("allow"), 1e9) and is_stale(declared_list("deny"), None)
