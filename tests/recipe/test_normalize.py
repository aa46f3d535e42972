"""Two spellings of one recipe."""

from __future__ import annotations

from typing import Any

import pytest

from svc.errors import RecipeError
from svc.recipe.normalize import SHORTHAND, normalize


@pytest.mark.parametrize("key", SHORTHAND)
def test_shorthand_moves_into_its_block(key: str) -> None:
    """The block keeps what it holds, and the caller learns which shorthand was used."""
    block = SHORTHAND[key]
    tree, used = normalize({key: "value", block: {"other": 1}})
    assert tree == {block: {"other": 1, key: "value"}}
    assert used == {key}


def test_the_given_tree_is_not_changed() -> None:
    """Error messages show the recipe as it was written."""
    column = {"name": "genre", "encoding": "categorical"}
    given: dict[str, Any] = {"metric": "map", "features": {"item": {"columns": [column]}}}
    tree, _ = normalize(given)
    assert given == {"metric": "map", "features": {"item": {"columns": [{"name": "genre", "encoding": "categorical"}]}}}
    assert tree["features"]["item"]["columns"] == [{"name": "genre", "kind": "categorical"}]


def test_both_spellings_of_a_kind_are_an_error() -> None:
    """The error names the column."""
    column = {"name": "genre", "encoding": "categorical", "kind": "categorical"}
    with pytest.raises(RecipeError, match=r"features\.user\.columns\[0\].*keep one"):
        normalize({"features": {"user": {"columns": [column]}}})


@pytest.mark.parametrize("block", [3, "text", ["list"]])
def test_a_block_of_another_type_is_left_to_the_schema(block: object) -> None:
    """Validation names the wrong type better than this step could."""
    assert normalize({"metric": "map", "training": block})[0] == {"metric": "map", "training": block}
