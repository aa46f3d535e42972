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
from svc.training.data.doubts import Doubt, column_hints, doubts
from svc.training.data.fetch import interaction_context
from svc.training.data.where import KeptRows
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
    return {doubt.code: doubt.message for doubt in doubts(KeptRows(texts), interactions, recipe)}


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


def with_events(*kinds: str) -> pd.DataFrame:
    """Return a row for each of `kinds`, each of another user and item."""
    return pd.DataFrame({"user": [f"u{n}" for n in range(len(kinds))], "item": "i", "event": kinds})


def of_events(tmp_path: Path, frame: pd.DataFrame, weights: dict[str, Any], **more: Any) -> dict[str, str]:
    cleansing = {"event_weights": weights, **more.pop("cleansing", {})}
    return found(tmp_path, frame, schema={"event_column": "event"}, cleansing=cleansing, **more)


@pytest.mark.parametrize(
    ("weights", "more", "warns"),
    [
        ({"view": 1, "buy": 10}, {}, True),
        ({"view": 1, "buy": 1}, {}, False),
        ({"buy": 10, "no": "exclude"}, {}, False),
        ({"view": 1, "buy": 10}, {"cleansing": {"seen": ["view", "buy"]}}, False),
        ({"view": 1, "buy": 10}, {"training": {"target": ["buy"]}}, False),
        ({"view": 1, "buy": 10}, {"training": {"repeats": True}}, False),
    ],
)
def test_weights_without_a_word_on_what_hides_cause_a_warning(
    tmp_path: Path, weights: dict[str, Any], more: dict[str, Any], *, warns: bool
) -> None:
    """The warning has the two lines to add, with the event of the largest weight."""
    message = of_events(tmp_path, with_events("view", "buy", "no"), weights, **more).get("events_all_seen", "")
    assert ("`cleansing: {seen: [buy]}` and `training: {target: [buy]}`" in message) is warns


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (["view"] * 95 + ["wish"] * 4 + ["lend"], ""),
        (["view"] * 90 + ["wish"] * 4 + ["lend"] * 6, "events without a weight are dropped: 'lend' (6), 'wish' (4)"),
        (["view"] * 95 + ["View "] * 5, ""),
    ],
)
def test_many_rows_of_other_events_cause_a_warning(tmp_path: Path, kinds: list[str], message: str) -> None:
    """One in twenty rows is not many."""
    assert message in of_events(tmp_path, with_events(*kinds), {"view": 1}).get("unlisted_events", "")
    assert bool(message) == ("unlisted_events" in of_events(tmp_path, with_events(*kinds), {"view": 1}))


def test_an_event_that_never_occurs_causes_a_warning(tmp_path: Path) -> None:
    messages = of_events(tmp_path, with_events("view", "buy"), {"view": 1, "buy": 1, "Buy": 1, "no": "exclude"})
    assert messages == {"unlisted_events": "no row is of 'Buy', 'no': compare the spelling"}


def test_a_suggested_event_that_looks_like_a_number_has_quotes(tmp_path: Path) -> None:
    """Without them, YAML would read a number, which is no event."""
    message = of_events(tmp_path, with_events("7", "8"), {"7": 1, "8": 2})["events_all_seen"]
    assert '`cleansing: {seen: ["8"]}` and `training: {target: ["8"]}`' in message


def test_repeated_events_are_not_to_be_counted(tmp_path: Path) -> None:
    """A count would ignore the weights. The largest weight of a user and item counts already."""
    frame = pd.concat([with_events("view", "buy")] * 2)
    assert (
        "`cleansing.dedup: sum` weighs them, `dedup: max` keeps it so"
        in of_events(tmp_path, frame, {"view": 1, "buy": 1})["rows_repeat"]
    )


def test_a_training_names_the_dropped_events(make_recipe: Make, tmp_path: Path, log: Log) -> None:
    """The record of the dropped rows has the events with their counts, and validation those of the first rows."""
    rows = [f"u{n % 30},i{(n * 7 + n // 30) % 11},{DAY + n},{('view', 'buy', 'wish')[n % 3]}" for n in range(330)]
    path = tmp_path / "events.csv"
    path.write_text("\n".join(["user_id,item_id,ts,event", *rows]), encoding="utf-8")
    schema = {"user_column": "user_id", "item_column": "item_id", "time_column": "ts", "time_unit": "s"}
    blocks: dict[str, Any] = {
        "schema": {**schema, "event_column": "event"},
        "cleansing": {"event_weights": {"view": 1, "buy": 3}, "seen": ["buy"]},
        "training": training("TopPop", target=["buy"]),
    }
    loaded = make_recipe(ratings=path, **blocks)
    run(loaded)
    lost = next(record for record in log if record["event"] == "rows_dropped")
    assert (lost["reason"], lost["count"], lost["detail"]) == ("unlisted_events", 110, "'wish' (110)")
    lines = [check.detail for check in validate(loaded, Settings(), {}) if check.name == "source"]
    assert (
        "events of the first 330 rows: 110 'buy' (weight 3), 110 'view' (weight 1), 110 'wish' (no weight, dropped)"
        in lines
    )


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


@pytest.mark.parametrize("side", ["user", "item"])
def test_ids_that_each_row_has_anew_cause_a_warning(tmp_path: Path, side: str) -> None:
    """Numbers of orders are neither users nor items. One repeated id suffices to say nothing."""
    orders = pairs("user", "item").assign(**{side: [f"o{row}" for row in range(100)]})
    messages = found(tmp_path, orders, "user", "item")
    assert messages["ids_of_rows"].startswith(f"each of the 100 rows has another id in '{side}', as numbers of orders")
    assert messages["ids_of_rows"].endswith(f"name the column of the {side}")
    orders.loc[1, side] = "o0"
    assert "ids_of_rows" not in found(tmp_path, orders, "user", "item")


@pytest.mark.parametrize("scale", [1, 1000, 10**6, 10**9])
def test_weights_that_look_like_times_or_are_unusable_cause_a_warning(tmp_path: Path, scale: int) -> None:
    """Times in any unit are detected. The warning counts rows without a usable weight."""
    frame = pairs().assign(w=[DAY * scale] * 97 + [0, -1, None])
    messages = found(tmp_path, frame, schema={"weight_column": "w"})
    assert messages["weights_unusable"].startswith("3 of 100 rows are dropped, since their 'w' is not a number above 0")
    assert messages["weights_look_like_times"].endswith("` without weight_column?")
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
    return next(iter(column_hints(loaded, interaction_context(loaded, Settings(), {}))), None)


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


def test_a_suggested_weight_column_with_blanks_has_quotes(make_recipe: Make, tmp_path: Path) -> None:
    """Without them, YAML would lose the blank at the front of the name."""
    loaded = recipe_over(make_recipe, tmp_path, [1, 2, 5])
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text(encoding="utf-8").replace("stars", " stars", 1), encoding="utf-8")
    found = hint(loaded)
    assert found is not None
    assert '`schema.weight_column: " stars"` weighs them' in found.message


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
