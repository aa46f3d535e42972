"""Normalization of shorthand keys and of `encoding`."""

from __future__ import annotations

from typing import Any

import pytest

from svc.errors import RecipeError
from svc.recipe.normalize import SHORTHAND, normalize


@pytest.mark.parametrize("key", SHORTHAND)
def test_shorthand_moves_into_its_block(key: str) -> None:
    """The block keeps its other keys, and the result names the shorthand key."""
    block = SHORTHAND[key]
    tree, used = normalize({key: "value", block: {"other": 1}})
    assert tree == {block: {"other": 1, key: "value"}}
    assert used == {key}


def test_the_input_is_not_changed() -> None:
    """Messages show the recipe as written, so the input must stay unchanged."""
    column = {"name": "genre", "encoding": "categorical"}
    original: dict[str, Any] = {"metric": "map", "features": {"item": {"columns": [column]}}}
    tree, _ = normalize(original)
    assert original == {
        "metric": "map",
        "features": {"item": {"columns": [{"name": "genre", "encoding": "categorical"}]}},
    }
    assert tree["features"]["item"]["columns"] == [{"name": "genre", "kind": "categorical"}]


def test_a_column_with_kind_and_encoding_is_an_error() -> None:
    """The error names the column."""
    column = {"name": "genre", "encoding": "categorical", "kind": "categorical"}
    with pytest.raises(RecipeError, match=r"features\.user\.columns\[0\].*keep one"):
        normalize({"features": {"user": {"columns": [column]}}})


@pytest.mark.parametrize("block", [3, "text", ["list"]])
def test_a_block_of_the_wrong_type_is_not_changed(block: object) -> None:
    """The schema reports the wrong type later, with a better message."""
    assert normalize({"metric": "map", "training": block})[0] == {"metric": "map", "training": block}
