"""`svc.experiment` gives the figures of `svc experiment` as a DataFrame, from tables with any names of columns."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pyarrow as pa
import pytest

import svc
from svc.cli import main
from svc.errors import UsageError
from tests.experiments.lines import make_shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shop(tmp_path, monkeypatch)


def test_the_frame_has_the_figures_of_the_command(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are arms. The column `value` counts by itself."""
    assert main.run(["experiment", str(shop), "--served", "served", "--events", "events.csv", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    table = pd.read_csv("events.csv")
    result = svc.experiment("served", table, shop)
    assert result.report == report
    names = {"unit": "who", "item": "book", "time": "at", "value": "price"}
    for renamed in (table.rename(columns=names), pa.table(table.rename(columns=names))):
        pd.testing.assert_frame_equal(svc.experiment("served", renamed, shop, **names), result)
    following = report["arms"][1]
    assert result.index.tolist() == ["control", "next"]
    assert result.loc["next", ["rate", "low", "high", "difference_p", "value_per_unit_low"]].tolist() == [
        following["rate"],
        *following["interval"],
        following["difference"]["p"],
        following["value_per_unit"]["interval"][0],
    ]
    mpl.use("agg")
    assert [label.get_text() for label in result.plot().get_yticklabels()] == ["control", "next"]


def test_an_arm_without_units_has_a_row(shop: Path) -> None:
    """A row of missing figures, and a plot without its point."""
    for file in (shop.parent / "served").iterdir():
        file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"control"' in line))
    result = svc.experiment("served", pd.read_csv("events.csv"), shop)
    assert result["units"].tolist() == [20, 0]
    assert result.loc["next", ["rate", "low", "high"]].isna().all()
    mpl.use("agg")
    result.plot()


def test_mistakes_name_the_argument(shop: Path) -> None:
    table = pd.read_csv("events.csv")
    with pytest.raises(UsageError, match="unit: events has no column 'user'; it has unit, item, time, value"):
        svc.experiment("served", table, shop, unit="user")
    with pytest.raises(UsageError, match="item: ids are text"):
        svc.experiment("served", table.assign(item=7), shop)
    with pytest.raises(UsageError, match="window: "):
        svc.experiment("served", table, shop, window="soon")
