"""`svc experiment` reports the same figures for every form of events, and names mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from svc.cli import main
from tests.experiments.lines import line, make_shop, write


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shop(tmp_path, monkeypatch)


def run(shop: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main.run(["experiment", str(shop), "--served", "served/*.jsonl", "--json", *options]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_every_form_of_events_gives_the_same_report(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns have any names. The column `value` of a file counts by itself."""
    found = run(shop, capsys, "--events", "events.csv")
    assert [(arm["name"], arm["units"], arm["successes"]) for arm in found["arms"]] == [
        ("control", 20, 5),
        ("next", 20, 10),
    ]
    assert found["arms"][1]["difference"]["value"] == 0.25
    assert found["arms"][1]["value_per_unit"]["rate"] == 1.25
    assert found["shadow"] == {"arm": "next", "pages": 1, "overlap": 0.5}
    assert found["left_out"] == {"events_of_other_units": 1, "events_repeated": 1}
    table = pd.read_csv("events.csv")
    renamed = table.rename(columns={"unit": "who", "item": "book", "time": "at", "value": "price"})
    renamed.to_parquet("e.parquet")
    table.to_csv("e.tsv", sep="\t", index=False)
    table.to_json("e.jsonl", orient="records", lines=True)
    columns = ("--unit", "who", "--item", "book", "--time", "at", "--value", "price")
    source = json.dumps({"type": "parquet", "path": "e.parquet"})
    for options in (("e.parquet", *columns), (source, *columns), ("e.tsv",), ("e.jsonl",)):
        assert run(shop, capsys, "--events", *options) == found


def test_the_table_names_every_figure(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["experiment", str(shop), "--served", "served", "--events", "events.csv"]) == 0
    printed = capsys.readouterr().out
    for text in (
        "20 units, 20 pages, 10 successes",
        "place of first success",
        "value per unit",
        "weights: p = 1",
        "shadow next: share of common items 0.5, over 1 page",
        "events repeated: 1",
    ):
        assert text in printed
    assert "nan" not in printed.lower()


def test_a_skewed_division_is_said_loudly(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(shop.parent / "served" / "b.jsonl", [line(f"v{n}", "next", ["a"]) for n in range(40)])
    assert main.run(["experiment", str(shop), "--served", "served", "--events", "events.csv"]) == 0
    assert "THE ARMS DO NOT HAVE THE UNITS OF THEIR WEIGHTS" in capsys.readouterr().out


def test_a_plan_needs_no_recipe(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a recipe, the weights of its arms count."""
    numbers = ["--rate", ".05", "--effect", ".1", "--units-a-day", "2000"]
    assert main.run(["experiment", "--plan", *numbers]) == 0
    assert capsys.readouterr().out.startswith("32 days, 62,462 units")
    assert main.run(["experiment", str(shop), "--plan", *numbers, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"units": 62462, "days": 32}


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--served", "served"], 2, "give a RECIPE and --events"),
        (["--events", "none.csv", "--served", "served"], 3, "none.csv"),
        (["--events", "events.csv", "--served", "none"], 3, "no file of the served log matches none"),
        (["--events", "events.csv", "--served", "served", "--unit", "user"], 3, "no column user"),
        (["--events", "events.csv", "--served", "served", "--time-unit", "days"], 2, "events: "),
        (["--events", "{type: 7}", "--served", "served"], 2, "--events: the type of the source is no text"),
        (["--events", "{type: cvs}", "--served", "served"], 2, "did you mean 'csv'"),
        (["--plan"], 2, "plan: the rate must lie"),
    ],
)
def test_mistakes_are_named(
    shop: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert main.run(["experiment", str(shop), *options]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["experiment", "served_log"])
def test_a_recipe_without_an_experiment_or_a_log_is_refused(
    shop: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    tree = json.loads(shop.read_text())
    del tree["serving"][missing]
    shop.write_text(json.dumps(tree))
    assert main.run(["experiment", str(shop), "--events", "events.csv"]) == 2
    assert f"no serving.{missing}" in capsys.readouterr().err


def test_the_log_of_the_recipe_is_read_by_default(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its path is relative to the recipe, from whatever folder the command is run."""
    assert main.run(["experiment", str(shop), "--events", "events.csv", "--json"]) == 0
    by_default = capsys.readouterr().out
    assert main.run(["experiment", str(shop), "--events", "events.csv", "--served", "served", "--json"]) == 0
    assert capsys.readouterr().out == by_default
