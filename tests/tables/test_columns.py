"""Columns of amounts, counts, weights and times as people have them. Each hint names a line, which is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tables.tables import (
    COLUMNS,
    SPLIT,
    TRAINING,
    both_accept,
    both_refuse,
    choices,
    query_of,
    tried,
    write_csv,
    write_table,
)

BY_TIME = {**TRAINING, "split": {"scheme": "leave_one_out"}}


def with_column(folder: Path, name: str, values: list[Any]) -> None:
    rows = [(*row, values[number % len(values)]) for number, row in enumerate(choices())]
    write_csv(folder / "rows.csv", rows, f"user_id,item_id,{name}")


def line_of(hint: str, begin: str) -> dict[str, Any]:
    """Return the value of the first line in the hint that starts with `begin`, such as `cleansing.where`."""
    return dict(yaml.safe_load(hint.split(f"`{begin}: ")[1].split("`", maxsplit=1)[0]))


def test_returns_are_named_with_the_filter_that_drops_them(tmp_path: Path) -> None:
    """A returned book is no choice of a book."""
    with_column(tmp_path, "Quantity", [1, 6, 2, 12, 1, 1, 4, -3, 1, 24])
    first = tried(tmp_path)
    hint = first.hint("amounts_below_zero")
    assert "the column 'Quantity' is below 0 in 12 of 120 rows" in hint
    assert first.is_silent("rating_unused")
    where = line_of(hint, "cleansing.where")
    second = tried(tmp_path, cleansing={"where": where})
    assert second.is_silent("amounts_below_zero")
    assert both_accept(second).header["data_stats"]["dropped_by_where"] == 12


@pytest.mark.parametrize("values", [[-3, 1], [1, 2, 3], [-1, -2], ["a", -1]])
def test_other_columns_hold_no_returns(tmp_path: Path, values: list[Any]) -> None:
    """Half of the numbers, none or all are below 0, or the column has texts."""
    with_column(tmp_path, "n", values)
    assert tried(tmp_path).is_silent("amounts_below_zero")


def test_columns_that_describe_users_or_items_are_no_ratings(tmp_path: Path) -> None:
    """A table of candidates has such columns, and one that tells what was bought."""
    rows = [
        (user, item, len(user) % 2, int(item[-1]) % 2, number % 3 % 2) for number, (user, item) in enumerate(choices())
    ]
    write_csv(tmp_path / "rows.csv", rows, "user_id,item_id,is_member,is_new,bought")
    assert "`cleansing.where: {bought: {gte: 1}}`" in tried(tmp_path).hint("rating_unused")


@pytest.mark.parametrize("values", [[1, 1, 1, 1, 2, 1, 1, 3, 1, 17], [0, 0, 0, 0.5, 0, 0, 2, 0, 0.75, 0]])
def test_counts_and_discounts_are_no_ratings(tmp_path: Path, values: list[float]) -> None:
    """The filter for the higher half of visit counts or discounts would drop nearly all rows."""
    with_column(tmp_path, "visits", values)
    assert tried(tmp_path).is_silent("rating_unused")
    with_column(tmp_path, "stars", [5, 4, 1, 3, 5, 2])
    hint = tried(tmp_path).hint("rating_unused")
    blocks = {name: line_of(hint, f"cleansing.{name}") for name in ("where", "hide")}
    assert blocks == {"where": {"stars": {"gte": 4}}, "hide": {"stars": {"lt": 4}}}
    assert both_accept(tried(tmp_path, cleansing=blocks)).header["data_stats"]["hidden_by_rule"] == 60


@pytest.mark.parametrize(
    ("texts", "shown"),
    [(["1,5", "2,25"], "'1,5'"), (["$1.50", "$2"], "'$1.50'"), (["7/10"] * 2, "'7/10'"), (["1,234"] * 2, "'1,234'")],
)
def test_a_weight_that_is_text_is_shown(tmp_path: Path, texts: list[str], shown: str) -> None:
    """The error says how to write it. Only decimal commas get the expression of a query, which is tried."""
    schema = {**COLUMNS, "weight_column": "price"}
    rows = [(*row, texts[number % 2]) for number, row in enumerate(choices())]
    write_table(tmp_path / "rows.db", rows, "user_id TEXT, item_id TEXT, price TEXT")
    all_columns = query_of("user_id, item_id, price")
    error = both_refuse(tried(tmp_path, schema=schema, source=all_columns))
    assert f"no row has a 'price' above 0, such as the text {shown}: write numbers with a point" in error
    assert ("`SELECT " in error) is (shown == "'1,5'")
    if "`SELECT " in error:
        expression = error.split("`SELECT ")[1].split(", ...`")[0]
        mended = tried(tmp_path, schema=schema, source=query_of(f"user_id, item_id, {expression}"))
        assert both_accept(mended).header["data_stats"]["n_rows"] == 120


def test_weights_of_which_some_are_text_or_below_zero_are_named(tmp_path: Path) -> None:
    """Both filters make the hint about numbers go away. A hidden row needs no weight."""
    schema = {**COLUMNS, "weight_column": "n"}
    with_column(tmp_path, "n", [1, 2, 3, "3 EUR"])
    assert "such as the text '3 EUR': write numbers" in tried(tmp_path, schema=schema).hint("weights_unusable")
    with_column(tmp_path, "n", [1, 2, 3, -2])
    hint = tried(tmp_path, schema=schema).hint("weights_unusable")
    for name in ("where", "hide"):
        mended = tried(tmp_path, schema=schema, cleansing={name: line_of(hint, f"cleansing.{name}")})
        both_accept(mended)
        assert mended.is_silent("weights_unusable")


def test_repeated_rows_with_weights_are_added_and_not_counted(tmp_path: Path) -> None:
    """`dedup: count` would forget the weights."""
    rows = [(*row, number % 3 + 1) for number, row in enumerate(choices() + choices())]
    write_csv(tmp_path / "rows.csv", rows, "user_id,item_id,n")
    hint = tried(tmp_path, schema={**COLUMNS, "weight_column": "n"}).hint("rows_repeat")
    assert "`cleansing.dedup: sum` weighs them" in hint
    assert "dedup: count" not in hint
    assert "`cleansing.dedup: count` weighs them" in tried(tmp_path).hint("rows_repeat")


DAYS = [20240131, 20240201, 20231224]


@pytest.mark.parametrize(
    ("values", "unit", "form"),
    [(DAYS, "s", "%Y%m%d"), (DAYS, None, "%Y%m%d"), ([2019, 2024, 1999], "s", "%Y"), ([2019, 2024, 1999], None, "%Y")],
)
def test_days_of_the_calendar_and_years_are_read_by_the_format_that_is_named(
    tmp_path: Path, values: list[int], unit: str | None, form: str
) -> None:
    """As seconds they would lie in 1970. Without a unit they are refused with the same advice."""
    with_column(tmp_path, "day", values)
    schema = {**COLUMNS, "time_column": "day", **({} if unit is None else {"time_unit": unit})}
    for training in (BY_TIME, {**TRAINING, "split": SPLIT, "recency": "off"}):
        result = tried(tmp_path, schema=schema, training=training)
        said = result.hint("time_unit_doubtful") if unit else both_refuse(result)
        assert f'`schema.time_format: "{form}"`' in said
    mended = tried(tmp_path, schema={**COLUMNS, "time_column": "day", "time_format": form}, training=BY_TIME)
    both_accept(mended)
    assert mended.is_silent("time_unit_doubtful")


def test_days_of_a_spreadsheet_are_read_by_the_query_that_is_named(tmp_path: Path) -> None:
    """45322 is 2024-01-31."""
    rows = [(*row, 45300 + number) for number, row in enumerate(choices())]
    write_table(tmp_path / "rows.db", rows, "user_id TEXT, item_id TEXT, day INTEGER")
    schema = {**COLUMNS, "time_column": "day", "time_unit": "s"}
    first = tried(tmp_path, schema=schema, source=query_of("user_id, item_id, day"), training=BY_TIME)
    hint = first.hint("time_unit_doubtful")
    assert "45300 is a day as spreadsheets count them" in hint
    expression = hint.split("`SELECT ")[1].split(", ...`")[0]
    mended = tried(tmp_path, schema=schema, source=query_of(f"user_id, item_id, {expression}"), training=BY_TIME)
    both_accept(mended)
    assert mended.is_silent("time_unit_doubtful")


def test_times_that_a_spreadsheet_rounded_are_named(tmp_path: Path) -> None:
    """1.70407E+09 is a time in steps of three hours. An equal time in all rows, or one of more digits, is no sign."""
    schema = {**COLUMNS, "time_column": "ts", "time_unit": "s"}
    for values, is_rounded in (
        (["1.70407E+09", "1.70408E+09"], True),
        (["1.70407E+09", "1704080001"], False),
        (["1.70407E+09"], False),
    ):
        with_column(tmp_path, "ts", values)
        result = tried(tmp_path, schema=schema, training=BY_TIME)
        if is_rounded:
            assert "six digits, such as 1.70407E+09, as a spreadsheet rounds" in result.hint("time_unit_doubtful")
        else:
            assert result.is_silent("time_unit_doubtful")


def test_times_before_1990_are_doubted_in_any_form(tmp_path: Path) -> None:
    """The unit that fits is named if there is one."""
    schema = {**COLUMNS, "time_column": "day"}
    with_column(tmp_path, "day", ["1970-01-20T17:00:00Z", "1970-01-21"])
    hint = tried(tmp_path, schema=schema, training=BY_TIME).hint("time_unit_doubtful")
    assert "all times lie before 1990, the last on 1970-01-21" in hint
    with_column(tmp_path, "day", ["1970-01-20", "1991-01-21"])
    assert tried(tmp_path, schema=schema, training=BY_TIME).is_silent("time_unit_doubtful")
    with_column(tmp_path, "day", [1_700_000_000, 1_700_000_001])
    hint = tried(tmp_path, schema={**schema, "time_unit": "ms"}, training=BY_TIME).hint("time_unit_doubtful")
    assert "set schema.time_unit: s?" in hint


def test_few_interactions_are_dropped_until_all_have_enough(tmp_path: Path) -> None:
    """Tutorials begin with a 5-core. The rows that it drops are counted, and dropped users are unknown."""
    rare = [("rare1", "i1"), ("rare2", "odd"), ("u1", "odd"), ("rare3", "odd")]
    write_csv(tmp_path / "rows.csv", choices() + rare)
    result = tried(tmp_path, cleansing={"min_interactions": 5})
    model = both_accept(result)
    (cleansed,) = [record for record in result.log if record["event"] == "data_cleansed"]
    assert cleansed["dropped_by_min_interactions"] == 4
    assert model.header["data_stats"]["dropped_by_min_interactions"] == 4
    assert (model.n_users, model.n_items) == (24, 12)
    refused = tried(tmp_path, cleansing={"min_interactions": 50}).error
    assert "Lower cleansing.min_interactions" in refused
