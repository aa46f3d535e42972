"""Messages about unusable rows that lead to the mistake."""

from __future__ import annotations

import pandas as pd
import pytest

from svc.training.data.dropped import odd_years
from tests.training.data.test_interactions import frame
from tests.training.data.test_thresholds import refusal


@pytest.mark.parametrize(("value", "unit", "meant"), [(1735689600000, "s", "ms"), (1735689600 * 10**9, "ms", "ns")])
def test_a_wrong_time_unit_is_named_with_the_right_one(value: int, unit: str, meant: str) -> None:
    """The message has a value, and the unit in which it is a time near today. It does not suggest more data."""
    message = refusal(frame(["a", "b"], ["x", "y"], [value] * 2), time_unit=unit)
    assert str(value) in message and f"no time in {unit} (set schema.time_unit: {meant}?)" in message
    assert "Provide more data" not in message


def test_unreadable_dates_and_blank_ids_are_shown() -> None:
    """The message has the column, a value and its row."""
    message = refusal(frame(["a", "b"], ["x", "y"], ["31/12/2024"] * 2), time_unit=None)
    assert "'31/12/2024' in data row 1, which is no ISO 8601 date" in message
    assert "'u' is blank in 2 rows (first: data row 1)" in refusal(frame([None, " "], ["x", "y"]))


@pytest.mark.parametrize(("value", "unit", "hint"), [(1735689600, "ms", "s"), (1735689600, "s", None), (5, "s", None)])
def test_times_that_are_plausible_only_in_another_unit_cause_a_warning(value: int, unit: str, hint: str | None) -> None:
    """Seconds read as milliseconds are times in 1970. No row is dropped, and their order is right."""
    doubt = odd_years(pd.Series([value]), unit)
    assert (doubt is None) == (hint is None)
    assert hint is None or f"schema.time_unit: {hint}?" in str(doubt)
