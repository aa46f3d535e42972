"""Warnings about rows that probably mean something else than the recipe assumes, and about unused ratings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from svc.errors import MinDataViolation
from svc.recipe.load import LoadedRecipe
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.training.data.doubts import Doubt, doubts, rating_hint
from svc.training.data.fetch import interaction_context
from svc.training.validate import validate
from tests.object_store import ObjectsInMemory
from tests.recipe.loading import load
from tests.training.data.test_interactions import from_frame
from tests.training.runs import Log, Make, run, training

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
    """The warning has the share of repeats. A few repeats cause no warning."""
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
    """Two suspicious column names cause the warning. A single one needs many more items than users."""
    messages = found(tmp_path, pairs(user, item, items=n_items), user, item)
    assert ("are they swapped?" in messages.get("columns_swapped", "")) is warns


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
def test_weights_that_look_like_times_or_are_unusable_cause_a_warning(tmp_path: Path, scale: int) -> None:
    """Times in any unit are detected. The warning counts rows without a usable weight."""
    frame = pairs().assign(w=[DAY * scale] * 97 + [0, -1, None])
    messages = found(tmp_path, frame, schema={"weight_column": "w"})
    assert messages["weights_unusable"].startswith("3 of 100 rows are dropped, since their 'w' is not a number above 0")
    assert "look like times" in messages["weights_look_like_times"]
    assert found(tmp_path, frame.assign(w=range(1, 101)), schema={"weight_column": "w"}) == {}
    with pytest.raises(MinDataViolation, match="no row has a 'w' above 0: is it the weight"):
        found(tmp_path, frame.assign(w=0), schema={"weight_column": "w"})


SPLIT = {"split": {"scheme": "random", "heldout_ratio": 0.3}}


def recipe_over(make_recipe: Make, folder: Path, values: list[Any], **blocks: Any) -> LoadedRecipe:
    """Return a recipe without times over a table whose third column, `stars`, repeats these values."""
    rows = [f"u{row % 19},i{row % 23},{values[row % len(values)]}" for row in range(200)]
    (folder / "rows.csv").write_text("user_id,item_id,stars\n" + "\n".join(rows) + "\n", encoding="utf-8")
    schema = {"user_column": "user_id", "item_column": "item_id", **blocks.pop("schema", {})}
    return make_recipe(ratings=folder / "rows.csv", schema=schema, training=training(**SPLIT), **blocks)


def hint(loaded: LoadedRecipe) -> Doubt | None:
    return rating_hint(loaded, interaction_context(loaded, Settings(), {}))


@pytest.mark.parametrize(("values", "high"), [([1, 2, 3, 4, 5], "4"), ([0.5, 1.0, 3.5, 5], "3.5"), ([0, 1], "1")])
def test_an_unused_rating_is_named_with_the_keys_that_could_use_it(
    values: list[float], high: str, make_recipe: Make, tmp_path: Path, log: Log
) -> None:
    """`svc validate` warns once, and so does a training."""
    loaded = recipe_over(make_recipe, tmp_path, values)
    found = hint(loaded)
    assert found is not None
    message = found.message
    assert f"'stars' holds {len(values)} numbers from {values[0]:g} to {values[-1]:g} and is not used" in message
    assert f"`cleansing.where: {{stars: {{gte: {high}}}}}`" in message
    assert f"`cleansing.hide: {{stars: {{lt: {high}}}}}`" in message
    assert [check.detail for check in validate(loaded, Settings(), {}) if "stars" in check.detail] == [
        f"warning: {message}"
    ]
    assert run(loaded).exit_code == 0
    (warned,) = [record for record in log if record.get("code") == found.code == "rating_unused"]
    assert (warned["event"], warned["field"], warned["message"]) == ("recipe_warning", "source", message)


@pytest.mark.parametrize(
    "values", [["a", "b"], [1], [-1, 1], [*range(22)], [1, 500], ["2024-01-01", "2024-01-02"], ["", ""]]
)
def test_columns_unlike_ratings_cause_no_warning(values: list[Any], make_recipe: Make, tmp_path: Path) -> None:
    """The columns have texts, one value, negative, many or large numbers, dates, or missing values."""
    assert hint(recipe_over(make_recipe, tmp_path, values)) is None


@pytest.mark.parametrize(
    "blocks",
    [
        {"schema": {"weight_column": "stars"}},
        {"cleansing": {"where": {"stars": {"gte": 4}}, "hide": {"stars": {"lt": 4}}}},
        {"cleansing": {"where": {"stars": {"any": ["5"]}}}},
        {"cleansing": {"hide": {"stars": {"lt": 4}}}},
    ],
)
def test_a_column_that_the_recipe_uses_is_not_named(blocks: dict[str, Any], make_recipe: Make, tmp_path: Path) -> None:
    """The recipe uses the column as a weight, or to choose rows."""
    assert hint(recipe_over(make_recipe, tmp_path, [1, 2, 5], **blocks)) is None


def test_a_rating_used_only_by_where_causes_one_hint_at_hide(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """`where` alone drops rows without hiding their items, so a model would recommend them again."""
    loaded = recipe_over(make_recipe, tmp_path, [1, 2, 5], cleansing={"where": {"stars": {"gte": 2}}})
    (message,) = [check.detail for check in validate(loaded, Settings(), {}) if "cleansing.hide" in check.detail]
    assert "`cleansing.hide: {stars: {lt: ...}}`" in message
    assert run(loaded).exit_code == 0
    (warned,) = [record for record in log if record.get("code") == "rating_not_hidden"]
    assert message == f"warning: {warned['message']}"


def test_a_table_that_cannot_be_read_gives_no_hint(make_recipe: Make, tmp_path: Path) -> None:
    """The training reports the error itself."""
    loaded = recipe_over(make_recipe, tmp_path, [1, 2, 5])
    (tmp_path / "rows.csv").unlink()
    assert hint(loaded) is None


def test_remote_stores_are_not_read_for_a_hint(
    make_recipe: Make, tmp_path: Path, objects_in_memory: ObjectsInMemory
) -> None:
    """A request to the store would cost more than the hint is worth."""
    loaded = recipe_over(make_recipe, tmp_path, [1, 2, 3])
    objects_in_memory.pipe_file("s3://shop/rows.csv", (tmp_path / "rows.csv").read_bytes())
    remote = SourceSpec.model_validate({"type": "csv", "path": "s3://shop/rows.csv"})
    recipe = loaded.recipe.model_copy(update={"source": remote})
    assert hint(loaded) is not None
    assert hint(replace(loaded, recipe=recipe)) is None
    assert objects_in_memory.calls == []
