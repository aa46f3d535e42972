"""Reading of times in any form, and messages about rows without a valid time."""

from __future__ import annotations

import datetime

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import TimeMixture, TimeUnitRequired
from svc.recipe.schema import Cleansing
from svc.training.data.times import BAD_TIME, odd_years, time_column, to_nanoseconds
from tests.training.data.test_fetch import refusal
from tests.training.data.test_interactions import SCHEMA, frame, from_frame


def test_text_dates_and_zones_are_read_as_utc() -> None:
    """ISO 8601 text with an offset is converted to UTC. A list is no time."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], ["2024-01-01T01:00:00+01:00", "2024-01-01", ["a", "b"]])
    schema = SCHEMA.model_copy(update={"time_unit": None})
    found = from_frame(data, schema, Cleansing(), with_times=True)
    assert found.times is not None
    assert found.times.tolist() == [1704067200 * 10**9] * 2


@pytest.mark.parametrize("dtype", [str, "category", "datetime64[s]"])
def test_a_date_beyond_int64_in_nanoseconds_drops_its_row(dtype: str) -> None:
    """A date such as 9999-12-31, which some databases write for "never", is no usable time."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], pd.Series(["2024-01-01", "9999-12-31", "0001-01-01"]).astype(dtype))
    schema = SCHEMA.model_copy(update={"time_unit": None})
    found = from_frame(data, schema, Cleansing(), with_times=True)
    assert found.times is not None
    assert (found.times.tolist(), found.dropped) == ([1704067200 * 10**9], {"bad_times": 2})


def test_a_column_of_missing_categories_has_no_usable_time() -> None:
    """A table of Parquet whose dictionary is empty has such a column."""
    assert to_nanoseconds(pd.Series([None, None], dtype="category"), None).tolist() == [BAD_TIME] * 2


def test_a_numeric_time_needs_its_unit() -> None:
    """Seconds and milliseconds cannot be told apart."""
    schema = SCHEMA.model_copy(update={"time_unit": None})
    with pytest.raises(TimeUnitRequired, match="time_unit"):
        from_frame(frame(["a"], ["x"], [1]), schema, Cleansing(), with_times=True)


@pytest.mark.parametrize("categorical", [False, True])
def test_one_number_among_a_thousand_dates_drops_one_row(*, categorical: bool) -> None:
    """One date among numbers drops one row, too. The majority decides how times are read."""
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
    """A column is a mixture if its minority is more than one row in a hundred."""
    data = frame(["a"] * 60, [f"i{n}" for n in range(60)])
    data["t"] = pd.Series(["1704067200"] * n_numbers + ["2024-01-02"] * (60 - n_numbers))
    with pytest.raises(TimeMixture, match=r"1704067200.*2024-01-02"):
        from_frame(data, SCHEMA, Cleansing(), with_times=True)


def test_numbers_as_text_need_their_unit_too() -> None:
    """One unreadable cell makes a CSV column text. Its numbers still need a unit."""
    data = frame(["a", "b", "c"], ["x", "y", "z"], ["1704067200", "1704067201", "n/a"])
    with pytest.raises(TimeUnitRequired, match="1704067200"):
        from_frame(data, SCHEMA.model_copy(update={"time_unit": None}), Cleansing(), with_times=True)


@pytest.mark.parametrize(("value", "unit", "meant"), [(1735689600000, "s", "ms"), (1735689600 * 10**9, "ms", "ns")])
def test_a_wrong_time_unit_is_named_with_the_right_one(value: int, unit: str, meant: str) -> None:
    """The message has a value, and the unit in which it is a time near today. It does not ask for more data."""
    message = refusal(frame(["a", "b"], ["x", "y"], [value] * 2), time_unit=unit)
    assert str(value) in message and f"not a time in {unit} (set schema.time_unit: {meant}?)" in message
    assert "Provide more data" not in message


def test_unreadable_dates_and_blank_ids_are_shown() -> None:
    """The message has the column, a value and its row."""
    message = refusal(frame(["a", "b"], ["x", "y"], ["31/12/2024"] * 2), time_unit=None)
    assert "'31/12/2024' in data row 1, which is no ISO 8601 date" in message
    data = frame(["a", "b"], ["x", "y"], pd.to_timedelta([1, 2], unit="D").to_list())
    assert "holds '1 days 00:00:00' in data row 1, which is not a time in s" in refusal(data, time_unit="s")
    assert "'u' is blank in 2 rows (first: data row 1)" in refusal(frame([None, " "], ["x", "y"]))


@pytest.mark.parametrize(
    ("texts", "unit", "hint"),
    [
        (["31.12.2024 23:59", "01.02.2024 00:00"], None, ' (set schema.time_format: "%d.%m.%Y %H:%M")'),
        (["02/01/2024", "03/01/2024"], None, ' (set schema.time_format: "%d/%m/%Y" or "%m/%d/%Y")'),
        (["03-Apr-13", "04-May-13"], "s", ' (set schema.time_format: "%d-%b-%y" and no time_unit)'),
        (["31.12.2024", "monday"], None, ""),
    ],
)
def test_a_usual_form_of_dates_is_named(texts: list[str], unit: str | None, hint: str) -> None:
    """All texts must have the form, and two forms are named if day and month may be in either order."""
    message = refusal(frame(["a", "b"], ["x", "y"], texts), time_unit=unit)
    assert ("such as 2024-05-31T12:00:00Z" if unit is None else "not a time in s") + hint + "." in message
    assert ("time_format" in message) is bool(hint)


@pytest.mark.parametrize(("value", "unit", "hint"), [(1735689600, "ms", "s"), (1735689600, "s", None), (5, "s", None)])
def test_times_that_are_plausible_only_in_another_unit_cause_a_warning(value: int, unit: str, hint: str | None) -> None:
    """The warning suggests this unit. Times that are plausible in no unit cause none."""
    doubt = odd_years(pd.Series([value]), unit)
    assert (doubt is None) == (hint is None)
    assert hint is None or f"schema.time_unit: {hint}?" in str(doubt)


def test_a_format_reads_other_forms_of_times() -> None:
    """A value of another form is no time, and the message has the format. Numbers count as the text of their digits."""
    texts = ["01.02.2024 08:30", "2024-02-01 08:30", None]
    schema = SCHEMA.model_copy(update={"time_unit": None, "time_format": "%d.%m.%Y %H:%M"})
    cleaned = from_frame(frame(["a", "b", "c"], ["x", "y", "z"], texts), schema, Cleansing(), with_times=True)
    assert cleaned.times is not None
    assert cleaned.times.tolist() == [1706776200 * 10**9]
    assert cleaned.reasons["bad_times"].endswith(
        "holds '2024-02-01 08:30' in data row 2, which is not of the form '%d.%m.%Y %H:%M' (schema.time_format)"
    )
    days = [pd.Series([20240131, None], dtype=dtype) for dtype in ("Int64", "category")]
    for column in (*days, pd.Series(["20240131", None])):
        assert to_nanoseconds(column, "%Y%m%d").tolist() == [1706659200 * 10**9, BAD_TIME]


@given(
    st.lists(
        st.tuples(
            st.none() | st.dates(datetime.date(1980, 1, 1), datetime.date(2100, 1, 1)),
            st.none() | st.times().map(lambda clock: clock.replace(microsecond=0)),
        ),
        max_size=20,
    )
)
def test_a_date_and_a_clock_time_are_one_time(rows: list[tuple[datetime.date | None, datetime.time | None]]) -> None:
    """Dates may be text, dates or timestamps of midnight. Without one of both, the row has no time."""
    clocks = [None if clock is None else str(clock) for _, clock in rows]
    whole = [BAD_TIME if None in row else pd.Timestamp.combine(*row).value for row in rows]  # type: ignore[arg-type]
    for dates in (
        [day for day, _ in rows],
        [day and str(day) for day, _ in rows],
        pd.to_datetime([d for d, _ in rows]),
    ):
        table = pd.DataFrame({"day": dates, "clock": clocks})
        assert to_nanoseconds(time_column(table, ("day", "clock")), None).tolist() == whole
