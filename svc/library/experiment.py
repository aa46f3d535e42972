"""`svc.experiment`: compare the arms of a recipe's experiment."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from svc import install_command
from svc.errors import ConfigError
from svc.experiments.events import VALUE, clean_events, event_schema
from svc.experiments.report import compare_arms
from svc.experiments.served_log import read_served
from svc.library.controls import names_arguments
from svc.library.tables import as_arrow, as_table, check_id_type, column_names, require
from svc.recipe.load import load_recipe
from svc.recipe.variables import recipe_variables
from svc.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Experiment(pd.DataFrame):
    """The result of `svc.experiment`: one row per arm.

    The columns are `units`, `pages`, `successes`, and for the rate of successes per page `rate`, `low` and `high`, and
    the `difference_value`, `_low`, `_high` and `_p` from the first arm. Columns that begin with `per_unit_` have the
    same for the share of units with a success, and those with `value_per_unit_` for values. `first_place_mean` and
    `first_place_median` are the place of the first success.

    Attributes:
        report: The same figures as `svc experiment --json` prints, with the check of the sample ratio, the overlap with
            shadow pages, and the numbers of lines and events that were left out.
    """

    # pandas copies the attributes named here to frames that are made from this one.
    _metadata = ("report",)
    report: dict[str, Any]

    def plot(self) -> Axes:  # type: ignore[override]
        """Plot the rate of each arm with its interval. Needs matplotlib (extra `report`)."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ConfigError(f"plot() needs matplotlib: {install_command('report')}") from None
        _, axes = pyplot.subplots(figsize=(7.0, 1.2 + 0.4 * len(self)), layout="constrained")
        reach = [self["rate"] - self["low"], self["high"] - self["rate"]]
        axes.errorbar(self["rate"], self.index, xerr=reach, fmt="o", capsize=3)
        axes.invert_yaxis()
        axes.set_xlabel("successes per page, with the interval at 95%")
        return axes


@names_arguments
def experiment(
    served: str | Path,
    events: Any,
    recipe: str | Path,
    *,
    window: str = "24h",
    unit: str = "unit",
    item: str = "item",
    time: str = "time",
    value: str | None = None,
    time_unit: str | None = None,
    time_format: str | None = None,
) -> Experiment:
    """Compare the arms of an experiment by the events behind the pages that were served.

    A page is a success if an event of its unit names one of its items within the window behind it.

    Args:
        served: The folder of the served log, or a pattern of its files.
        events: A DataFrame with one row per event. Identical rows count once.
        recipe: The recipe with the experiment. The served log has only digests of units and names of arms. The recipe's
            salt finds the units of the events in it, and its weights say how many units each arm should have.
        window: Time behind a page in which its events count, such as 90min, 24h or 7d.
        unit: The column of plain unit ids.
        item: The column of item ids.
        time: The column of times.
        value: The column of values. Default: `value`, if there is one.
        time_unit: As for `svc.train`.
        time_format: As for `svc.train`.

    Raises:
        svc.errors.UsageError: An argument is invalid, the recipe has no experiment, or no event is usable.
        svc.errors.DataSourceError: The served log cannot be read, or none of its pages counts.
        svc.errors.RecipeError: The recipe is invalid.
    """
    data = as_table(events, "events", "one row per event")
    there = column_names(data, "events")
    value = VALUE if value is None and VALUE in there else value
    columns = {"unit": unit, "item": item, "time": time} | ({} if value is None else {"value": value})
    require(columns, there, "events")
    table = as_arrow(data, [*columns.values()], "events")
    check_id_type(table, unit, "unit", "events")
    check_id_type(table, item, "item", "events")
    named = {"user_column": unit, "item_column": item, "time_column": time, "weight_column": value}
    schema = event_schema({**named, "time_unit": time_unit, "time_format": time_format})
    loaded = load_recipe(Path(recipe), recipe_variables(os.environ, ()), settings=Settings.from_env(), for_serving=True)
    report = compare_arms(read_served(str(served)), clean_events(table.to_pandas(), schema), loaded.recipe, window)
    frame = pd.json_normalize(report["arms"], sep="_").set_index("name")
    for name in [column for column in frame.columns if column.endswith("interval")]:
        # An arm without enough units has no interval.
        ends = [end if isinstance(end, list) else [math.nan, math.nan] for end in frame.pop(name)]
        frame[[name.replace("interval", "low"), name.replace("interval", "high")]] = ends
    result = Experiment(frame.drop(columns="first_place", errors="ignore"))
    result.report = report
    return result
