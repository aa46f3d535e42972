"""Fetched rows: the columns and ids that are checked, and the least data that a training needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from svc.errors import DataSourceError, FeatureTableError, MinDataViolation
from svc.progress import Progress
from svc.recipe.load import LoadedRecipe
from svc.recipe.schema import Cleansing
from svc.settings import Settings
from svc.training.data.features import FittedSide
from svc.training.data.fetch import check_thresholds, load
from svc.training.ranker.record import item_tables
from svc.training.validate import validate
from tests.training.data.test_interactions import SCHEMA, frame, from_frame
from tests.training.runs import Log, Make, last, run, training


def test_too_little_data_exits_with_4_and_logs_all_counts(make_recipe: Make, log: Log) -> None:
    """The last record is `train_error`, with counts and thresholds."""
    result = run(make_recipe(cleansing={"min_users": 1000}))
    error = last(log)
    assert (result.exit_code, error["event"], error["code"]) == (4, "train_error", "min_data_violation")
    assert (error["n_rows"], error["n_users"], error["n_items"], error["min_users"]) == (960, 80, 40, 1000)
    assert {"error", "name", "run_id", "exit_code", "trained_at", "kid"} <= set(error)


def test_an_invalid_time_column_ends_a_training(make_recipe: Make, log: Log) -> None:
    """The split `random` needs no times, but a declared column must be valid."""
    for column, code, words in (
        ("when", "data_source_error", "when"),
        ("ts", "time_unit_required", "is a time near today in s"),
        ("user_id", "min_data_violation", "which is no ISO 8601 date or time"),
    ):
        schema = {"user_column": "user_id", "item_column": "item_id", "time_column": column}
        run(make_recipe(schema=schema, training=training(split={"scheme": "random"})))
        assert last(log)["code"] == code
        assert words in last(log)["error"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_date_and_a_clock_time_may_be_two_columns(make_recipe: Make, log: Log, tmp_path: Path, kind: str) -> None:
    """The text of each is kept, such as 0830, and the training holds out the latest rows as for a single column."""
    rows = [(f"u{k % 40}", f"i{k % 7}", f"{1 + k % 28:02}.03.2024", f"{k % 24:02}{k % 60:02}") for k in range(400)]
    table = pd.DataFrame(rows, columns=["user_id", "item_id", "date", "clock"])
    path = tmp_path / f"till.{kind}"
    table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    schema = {"user_column": "user_id", "item_column": "item_id", "time_column": ["date", "clock"]}
    source = {"type": kind, "path": str(path)}
    result = run(make_recipe(source=source, schema={**schema, "time_format": "%d.%m.%Y %H%M"}, training=training()))
    assert result.exit_code == 0, log
    assert not [record for record in log if record["event"] in ("data_lost_rows", "many_rows_dropped")]
    run(make_recipe(source=source, schema=schema, training=training()))
    assert "time column 'date clock' holds '01.03.2024 0000' in data row 1" in last(log)["error"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_labels_may_be_lists(make_recipe: Make, tmp_path: Path, kind: str) -> None:
    """Lists encode as texts with a delimiter do. `svc validate` and the order of the page accept them as filter fields.

    Values that are no labels, and lists in a column of another kind, are refused by name.
    """
    tags = [None if k % 9 == 0 else ["even", None, f"t{k % 4}"] if k % 2 == 0 else [f"t{k % 4}"] for k in range(40)]
    table = pd.DataFrame({"item_id": [f"i{k}" for k in range(40)], "tags": tags})
    table["nested"], table["texts"] = (
        [[["a"]]] * 40,
        table["tags"].map(lambda cell: cell and "|".join(filter(None, cell))),
    )
    table.to_parquet(tmp_path / "a.parquet")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table[["item_id", "texts"]].to_csv(tmp_path / "a.csv", index=False)

    def recipe(kind: str, column: str, as_kind: str = "multi_label") -> LoadedRecipe:
        labels = {"source": {"type": kind, "path": str(tmp_path / f"a.{kind}")}, "id_column": "item_id"}
        columns = [{"name": column, "kind": as_kind}]
        return make_recipe(
            features={"item": {**labels, "columns": columns}}, item_metadata={**labels, "filter_fields": columns}
        )

    def sides(recipe: LoadedRecipe) -> tuple[FittedSide, FittedSide]:
        data = load(recipe, Settings(), {}, Progress(None))
        return data.sides["item"], item_tables(recipe, data, Settings(), {})[1]

    assert all(check.ok for check in validate(recipe(kind, "tags"), Settings(), {}))
    for of_texts, of_lists in zip(sides(recipe("csv", "texts")), sides(recipe(kind, "tags")), strict=True):
        assert of_texts.matrix.toarray().tolist() == of_lists.matrix.toarray().tolist()
        assert of_lists.encoder.encoders[0].tokens.all() == ["even", "t0", "t1", "t2", "t3"]
    with pytest.raises(FeatureTableError, match="'nested': a list does not belong here; give text"):
        sides(recipe(kind, "nested"))
    with pytest.raises(DataSourceError, match=r"column tags is of type list.*, and only a column of kind multi_label"):
        sides(recipe(kind, "tags", "categorical"))


def test_ids_that_are_hard_to_request_cause_warnings(
    make_recipe: Make, make_ratings: Callable[..., Path], log: Log
) -> None:
    """Such ids are longer than requests allow, or are integers that a tool turned into floats."""
    ratings = make_ratings("odd.csv")
    text = ratings.read_text(encoding="utf-8").replace("u1,", "u" * 257 + ",").replace(",i3,", ",3.0,")
    ratings.write_text(text, encoding="utf-8")
    assert run(make_recipe(ratings=ratings, training=training())).exit_code == 0
    warned = [(e["side"], e["reason"], e["count"], e["example"]) for e in log if e["event"] == "ids_hardly_meant"]
    assert warned == [("user", "too_long", 1, "u" * 40), ("item", "floating_point", 1, "3.0")]


@pytest.mark.parametrize("unusable", [50, 51])
def test_many_unusable_rows_cause_a_warning(make_recipe: Make, log: Log, tmp_path: Path, unusable: int) -> None:
    """Many is more than 5% of the rows. The warning says why, with the first such row."""
    times = ["" if row < unusable else str(1_700_000_000 + row) for row in range(1000)]
    lines = [f"u{row % 100},i{row // 100},{time}" for row, time in enumerate(times)]
    ratings = tmp_path / "many.csv"
    ratings.write_text("\n".join(["user_id,item_id,ts", *lines]), encoding="utf-8")
    run(make_recipe(ratings=ratings, cleansing={"min_users": 1000}))
    warned = [(e["count"], e["n_rows"], e["detail"]) for e in log if e["event"] == "many_rows_dropped"]
    assert warned == [(51, 1000, "the time column 'ts' is blank in data row 1")][: unusable - 50]


def test_too_little_data_names_counts_and_thresholds() -> None:
    """The error has all counts and thresholds as fields."""
    found = from_frame(frame(["a", "b"], ["x", "y"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="2 users where at least 3") as caught:
        check_thresholds(found, Cleansing(min_users=3))
    assert caught.value.fields == {
        "n_rows": 2, "n_users": 2, "n_items": 2, "min_rows": 1, "min_users": 3, "min_items": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_a_single_row_are_too_little(rows: int) -> None:
    """A model needs a user and two items, even without thresholds."""
    found = from_frame(frame(["a"][:rows], ["x"][:rows]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation):
        check_thresholds(found, Cleansing())


def refusal(data: pd.DataFrame, **schema: object) -> str:
    chosen = SCHEMA.model_copy(update=schema)
    found = from_frame(data, chosen, Cleansing(), with_times="t" in data)
    with pytest.raises(MinDataViolation) as caught:
        check_thresholds(found, Cleansing())
    return caught.value.message


def test_a_threshold_below_the_minimum_of_a_model_is_reported_unchanged() -> None:
    """`min_items: 1` stays 1. The message says that a model needs two."""
    found = from_frame(frame(["a"], ["x"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="asks for 1, but a model needs at least 2") as caught:
        check_thresholds(found, Cleansing(min_items=1))
    assert caught.value.fields["min_items"] == 1
