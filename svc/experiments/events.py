"""Clean the events that tell whether a page was a success: of which unit, with which item, when, and of which value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ValidationError

from svc.errors import TimeUnitRequired, UsageError
from svc.recipe.schema import InteractionSchema
from svc.training.data.interactions import id_codes, read_times
from svc.training.data.times import BAD_TIME, as_numbers

VALUE = "value"
"""The column of values by default, if the table has it."""


class Events(NamedTuple):
    """Distinct events with a unit, an item and a time.

    - `table` has their `unit` and `item` as positions in `units` and `items`, their `time` in milliseconds since 1970,
      and their `value`, if values are given.
    - `left_out` counts other rows by the reason.
    """

    table: pd.DataFrame
    units: NDArray[np.object_]
    items: NDArray[np.object_]
    left_out: dict[str, int]


def event_schema(columns: dict[str, Any]) -> InteractionSchema:
    """Return the columns of a table of events, named as in recipes. Values are weights. Raises UsageError."""
    try:
        return InteractionSchema.model_validate(columns)
    except ValidationError as error:
        raise UsageError(f"events: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None


def clean_events(frame: pd.DataFrame, schema: InteractionSchema) -> Events:
    """Return the usable events. Identical rows count once.

    Raises UsageError for numeric times without a unit and if no row is usable, and TimeMixture for numbers and dates in
    one column.
    """
    units, unit_names = id_codes(frame[schema.user_column])
    items, item_names = id_codes(frame[schema.item_column])
    try:
        times = read_times(frame, schema)
    except TimeUnitRequired as error:
        raise UsageError(f"events: give their unit as --time-unit, in Python as time_unit: {error}") from None
    table = pd.DataFrame({"unit": units, "item": items, "time": times})
    left_out = {
        "events_without_unit": int((units < 0).sum()),
        "events_without_item": int((items < 0).sum()),
        "events_without_time": int((times == BAD_TIME).sum()),
    }
    if schema.weight_column is not None:
        values = as_numbers(frame[schema.weight_column])
        table["value"] = np.where(np.isfinite(values), values, 0.0)
        left_out["values_without_number"] = int((~np.isfinite(values)).sum())
    usable = table[(units >= 0) & (items >= 0) & (times != BAD_TIME)]
    if usable.empty:
        raise UsageError(f"events: none of {len(table)} rows has a unit, an item and a time that can be read")
    # Pipelines that deliver at least once repeat whole rows.
    distinct = usable.drop_duplicates()
    left_out["events_repeated"] = len(usable) - len(distinct)
    # The served log has milliseconds. Rounded after repeated rows are found, so that near events stay two.
    return Events(distinct.assign(time=distinct["time"] // 1_000_000), unit_names, item_names, left_out)
