"""Cleansing: what is dropped, what is counted, in which order ids stand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from svc.errors import MinDataViolation, TimeMixture, TimeUnitRequired
from svc.recipe.schema import Cleansing, InteractionSchema
from svc.training.dropped import odd_years
from svc.training.interactions import check_thresholds, from_frame

SCHEMA = InteractionSchema(user_column="u", item_column="i", time_column="t", time_unit="s")


def frame(users: list[str | None], items: list[str | None], times: list[object] | None = None) -> pd.DataFrame:
    found = pd.DataFrame({"u": pd.Categorical(users), "i": pd.Categorical(items)})
    if times is not None:
        found["t"] = times
    return found


def test_ids_stand_in_order_of_first_appearance() -> None:
    """Codes follow the rows, not the alphabet."""
    found = from_frame(frame(["b", "a", "b"], ["y", "x", "x"]), SCHEMA, Cleansing(), with_times=False)
    assert found.user_ids == ["b", "a"]
    assert found.item_ids == ["y", "x"]
    assert found.users.tolist() == [0, 1, 0]
    assert found.items.tolist() == [0, 1, 1]


def test_null_and_blank_ids_are_dropped_with_their_count() -> None:
    """Neither missing ids nor blank text become users or items, and nobody else's order changes."""
    found = from_frame(frame(["a", None, " ", "b"], ["x", "x", "y", ""]), SCHEMA, Cleansing(), with_times=False)
    assert (found.user_ids, found.item_ids) == (["a"], ["x"])
    assert found.dropped == {"null_ids": 3}
    assert found.drop_count == 3


@pytest.mark.parametrize(("dedup", "time"), [("keep_last", 9), ("keep_first", 2)])
def test_duplicates_are_chosen_by_time(dedup: str, time: int) -> None:
    """Of equal pairs the latest or the earliest stays, wherever it stands in the file."""
    data = frame(["a", "a", "a"], ["x", "x", "x"], [5, 9, 2])
    found = from_frame(data, SCHEMA, Cleansing(dedup=dedup), with_times=True)
    assert found.times is not None
    assert found.times.tolist() == [time * 10**9]
    assert found.dropped == {"duplicates": 2}


def test_without_dedup_repetitions_count_in_the_matrix() -> None:
    """An entry of the matrix is how often the pair occurs."""
    found = from_frame(frame(["a", "a", "b"], ["x", "x", "y"]), SCHEMA, Cleansing(dedup="none"), with_times=False)
    assert len(found) == 3
    assert found.matrix().toarray().tolist() == [[2.0, 0.0], [0.0, 1.0]]


def test_bad_times_are_dropped_only_where_time_is_used() -> None:
    """A split that ignores time keeps rows whose time says nothing."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], [1.0, np.nan, 1e300])
    assert from_frame(data, SCHEMA, Cleansing(), with_times=True).dropped == {"bad_times": 2}
    assert len(from_frame(data, SCHEMA, Cleansing(), with_times=False)) == 3


def test_text_dates_and_zones_are_read_as_utc() -> None:
    """ISO 8601 text with an offset is the same moment as without."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], ["2024-01-01T01:00:00+01:00", "2024-01-01", "nonsense"])
    schema = SCHEMA.model_copy(update={"time_unit": None})
    found = from_frame(data, schema, Cleansing(), with_times=True)
    assert found.times is not None
    assert found.times.tolist() == [1704067200 * 10**9] * 2


def test_a_numeric_time_needs_its_unit() -> None:
    """Seconds and milliseconds cannot be told apart by looking."""
    schema = SCHEMA.model_copy(update={"time_unit": None})
    with pytest.raises(TimeUnitRequired, match="time_unit"):
        from_frame(frame(["a"], ["x"], [1]), schema, Cleansing(), with_times=True)


@pytest.mark.parametrize("categorical", [False, True])
def test_one_number_among_dates_costs_one_row(*, categorical: bool) -> None:
    """With a unit, text is what most rows are: 999 dates stay, whatever the last row holds."""
    times = pd.Series(["2024-01-01T00:00:00"] * 999 + ["7"])
    data = frame(["a"] * 1000, [f"i{n}" for n in range(1000)])
    data["t"] = times.astype("category") if categorical else times
    found = from_frame(data, SCHEMA, Cleansing(), with_times=True)
    assert (len(found), found.dropped) == (999, {"bad_times": 1})
    data["t"] = pd.Series(["1704067200"] * 999 + ["2024-01-01"])
    found = from_frame(data, SCHEMA, Cleansing(), with_times=True)
    assert found.times is not None
    assert set(found.times.tolist()) == {1704067200 * 10**9}
    assert found.dropped == {"bad_times": 1}


@pytest.mark.parametrize("n_numbers", [1, 2, 50])
def test_a_mixture_of_dates_and_numbers_is_refused_with_examples(n_numbers: int) -> None:
    """From more than one row in a hundred on nobody can tell what is meant."""
    data = frame(["a"] * 60, [f"i{n}" for n in range(60)])
    data["t"] = pd.Series(["1704067200"] * n_numbers + ["2024-01-02"] * (60 - n_numbers))
    with pytest.raises(TimeMixture, match=r"1704067200.*2024-01-02"):
        from_frame(data, SCHEMA, Cleansing(), with_times=True)


def test_numbers_as_text_need_their_unit_too() -> None:
    """One unreadable cell makes a CSV column text; its numbers are still numbers."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], ["1704067200", "1704067201", "n/a"])
    with pytest.raises(TimeUnitRequired, match="1704067200"):
        from_frame(data, SCHEMA.model_copy(update={"time_unit": None}), Cleansing(), with_times=True)


def test_too_little_data_names_counts_and_thresholds() -> None:
    """All observed counts and all thresholds are fields of the error."""
    found = from_frame(frame(["a", "b"], ["x", "y"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="2 users where at least 3") as caught:
        check_thresholds(found, Cleansing(min_users=3))
    assert caught.value.fields == {
        "n_rows": 2, "n_users": 2, "n_items": 2, "min_rows": 1, "min_users": 3, "min_items": 2,
    }  # fmt: skip


@pytest.mark.parametrize("rows", [0, 1])
def test_nothing_and_a_single_row_are_too_little(rows: int) -> None:
    """Even without thresholds a model needs a user and two items."""
    found = from_frame(frame(["a"][:rows], ["x"][:rows]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation):
        check_thresholds(found, Cleansing())


def refusal(data: pd.DataFrame, **schema: object) -> str:
    chosen = SCHEMA.model_copy(update=schema)
    found = from_frame(data, chosen, Cleansing(), with_times="t" in data)
    with pytest.raises(MinDataViolation) as caught:
        check_thresholds(found, Cleansing())
    return caught.value.message


@pytest.mark.parametrize(("value", "unit", "meant"), [(1735689600000, "s", "ms"), (1735689600 * 10**9, "ms", "ns")])
def test_a_wrong_time_unit_is_named_with_the_right_one(value: int, unit: str, meant: str) -> None:
    """A value is shown, and the unit that would make it a time of our days; more data is not the way out."""
    message = refusal(frame(["a", "b"], ["x", "y"], [value] * 2), time_unit=unit)
    assert str(value) in message and f"no time in {unit} (set schema.time_unit: {meant}?)" in message
    assert "Provide more data" not in message


def test_unreadable_dates_and_blank_ids_are_shown() -> None:
    """The column, a value and its row: what somebody needs to find the mistake."""
    message = refusal(frame(["a", "b"], ["x", "y"], ["31/12/2024"] * 2), time_unit=None)
    assert "'31/12/2024' in data row 1, which is no ISO 8601 date" in message
    assert "'u' is blank in 2 rows (first: data row 1)" in refusal(frame([None, " "], ["x", "y"]))


def test_a_threshold_below_what_a_model_needs_is_reported_as_it_was_given() -> None:
    """`min_items: 1` stays 1; the message says that a model needs two."""
    found = from_frame(frame(["a"], ["x"]), SCHEMA, Cleansing(), with_times=False)
    with pytest.raises(MinDataViolation, match="asks for 1, but a model needs at least 2") as caught:
        check_thresholds(found, Cleansing(min_items=1))
    assert caught.value.fields["min_items"] == 1


@pytest.mark.parametrize(("value", "unit", "hint"), [(1735689600, "ms", "s"), (1735689600, "s", None), (5, "s", None)])
def test_numbers_that_only_another_unit_explains_are_doubted(value: int, unit: str, hint: str | None) -> None:
    """Seconds counted as milliseconds are times in 1970: nothing is dropped, and the order is right, but say so."""
    doubt = odd_years(pd.Series([value]), unit)
    assert (doubt is None) == (hint is None)
    assert hint is None or f"schema.time_unit: {hint}?" in str(doubt)
