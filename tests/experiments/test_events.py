"""Events have the columns and times that interactions may have."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from svc.errors import TimeMixture, UsageError
from svc.experiments.events import clean_events, event_schema
from tests.experiments.lines import START, at

COLUMNS: dict[str, Any] = {"user_column": "unit", "item_column": "item", "time_column": "time"}


@pytest.mark.parametrize(
    ("when", "options"),
    [
        ((START + timedelta(hours=9)).strftime("%Y-%m-%dT%H:%M:%S+09:00"), {}),
        (START.strftime("%Y-%m-%d %H:%M:%S"), {}),
        (START.timestamp(), {"time_unit": "s"}),
        (str(int(START.timestamp())), {"time_unit": "s"}),
        (START.strftime("%d.%m.%Y %H:%M"), {"time_format": "%d.%m.%Y %H:%M"}),
        (pd.Timestamp(START).tz_convert("Asia/Tokyo"), {}),
    ],
)
def test_times_are_read_as_those_of_interactions(when: object, options: dict[str, str]) -> None:
    """Zones, numbers with a unit and formats name the same instant. A time without a zone is UTC."""
    table = pd.DataFrame({"unit": ["u"], "item": ["a"], "time": [when]})
    events = clean_events(table, event_schema({**COLUMNS, **options}))
    assert events.table["time"].tolist() == [int(START.timestamp() * 1000)]


def test_columns_and_times_without_a_meaning_are_refused() -> None:
    mixed = pd.DataFrame({"unit": ["u"] * 2, "item": ["a"] * 2, "time": ["1764581400", at(1)]})
    with pytest.raises(TimeMixture):
        clean_events(mixed, event_schema({**COLUMNS, "time_unit": "s"}))
    for wrong in ({"time_format": "soon"}, {"time_unit": "days"}, {"item_column": "unit"}):
        with pytest.raises(UsageError, match="events: "):
            event_schema({**COLUMNS, **wrong})
