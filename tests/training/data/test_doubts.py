"""Warnings about rows that probably have another meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from svc.errors import MinDataViolation
from svc.training.data.doubts import doubts
from svc.training.data.interactions import from_frame
from tests.recipe.loading import load

DAY = 1_700_000_000


def found(tmp_path: Path, frame: pd.DataFrame, user: str = "user", item: str = "item", **more: Any) -> dict[str, str]:
    """Return the warnings about rows of `frame`, by code."""
    schema = {"user_column": user, "item_column": item, **more.pop("schema", {})}
    recipe = load(tmp_path, {"schema": schema, **more}).recipe
    texts = frame.astype({user: "str", item: "str"}).astype({user: "category", item: "category"})
    interactions = from_frame(texts, recipe.schema_, recipe.cleansing, with_times=False)
    return {doubt.code: doubt.message for doubt in doubts(texts, interactions, recipe)}


def pairs(user: str = "user", item: str = "item", *, users: int = 10, items: int = 10) -> pd.DataFrame:
    rows = [(f"u{u}", f"i{i}") for u in range(users) for i in range(items)]
    return pd.DataFrame(rows, columns=[user, item])


@pytest.mark.parametrize(
    ("more", "warns"),
    [
        ({}, True),
        ({"training": {"repeats": False}}, False),
        ({"cleansing": {"dedup": "count"}}, False),
    ],
)
def test_many_repeats_cause_a_warning_unless_the_recipe_has_a_rule(
    tmp_path: Path, more: dict[str, Any], *, warns: bool
) -> None:
    """The warning has their share. A few repeats cause none."""
    frame = pairs()
    twice = pd.concat([frame, frame.head(25)])
    messages = found(tmp_path, twice, **more)
    assert ("20% of the rows repeat" in messages.get("rows_repeat", "")) is warns
    assert found(tmp_path, pd.concat([frame, frame.head(5)]), **more) == {}


@pytest.mark.parametrize(
    ("user", "item", "n_items", "warns"),
    [
        ("product_id", "customer_id", 10, True),
        ("product_id", "b", 31, True),
        ("product_id", "b", 30, False),
        ("a", "reader", 31, True),
        ("a", "b", 300, False),
        ("user_id", "item_id", 300, False),
        ("user_of_item", "b", 300, False),
    ],
)
def test_swapped_columns_cause_a_warning(tmp_path: Path, user: str, item: str, n_items: int, *, warns: bool) -> None:
    """Two suspicious names suffice. A single one needs many more items than users."""
    messages = found(tmp_path, pairs(user, item, items=n_items), user, item)
    assert ("are they swapped?" in messages.get("columns_swapped", "")) is warns


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
def test_weights_that_look_like_times_or_are_unusable_cause_a_warning(tmp_path: Path, scale: int) -> None:
    """Times may have any unit. Rows without a usable weight are counted."""
    frame = pairs().assign(w=[DAY * scale] * 97 + [0, -1, None])
    messages = found(tmp_path, frame, schema={"weight_column": "w"})
    assert messages["weights_unusable"].startswith("3 of 100 rows are dropped, since their 'w' is no number above 0")
    assert "look like times" in messages["weights_look_like_times"]
    assert found(tmp_path, frame.assign(w=range(1, 101)), schema={"weight_column": "w"}) == {}
    with pytest.raises(MinDataViolation, match="no row has a 'w' above 0: is it the weight"):
        found(tmp_path, frame.assign(w=0), schema={"weight_column": "w"})
