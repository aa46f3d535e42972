"""`svc experiment`: compare the arms of a recipe's experiment, or plan its length."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc import logs
from svc.cli.common import EnvVar, load
from svc.env_file import environment
from svc.errors import UsageError
from svc.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svc.experiments.events import Events
    from svc.recipe.load import LoadedRecipe

EPILOG = """
[bold]Examples[/bold]
  svc experiment recipes/books.yaml --events orders.csv --window 7d
  svc experiment books.yaml --events clicks.parquet --unit user --json
  svc experiment books.yaml --events '{type: delta, path: s3://shop/orders}'
  svc experiment --plan --rate .05 --effect .1 --units-a-day 2000

[bold]Exit codes[/bold]
  0 ok   2 bad recipe, without an experiment, or usage
  3 events or served log unreadable, or no page counts
"""


def command(
    recipe_file: Annotated[Path | None, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.")] = None,
    events: Annotated[
        str | None, typer.Option(metavar="FILE", help="A csv, parquet or jsonl table, or a source of recipes, {...}.")
    ] = None,
    served: Annotated[
        str | None, typer.Option(help="Files of the served log, a pattern.", show_default="the recipe's served_log")
    ] = None,
    window: Annotated[str, typer.Option(help="Time behind a page in which its events count.")] = "24h",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    unit: Annotated[str, typer.Option(help="The column of units.")] = "unit",
    item: Annotated[str, typer.Option(help="The column of items.")] = "item",
    time: Annotated[str, typer.Option(help="The column of times.")] = "time",
    value: Annotated[
        str | None, typer.Option(help="The column of values.", show_default="value, if there is one")
    ] = None,
    time_unit: Annotated[str | None, typer.Option(help="Unit of numeric times: s, ms, us or ns.")] = None,
    time_format: Annotated[str | None, typer.Option(help="Form of times, as in recipes.")] = None,
    planned: Annotated[bool, typer.Option("--plan", help="Print the days that a comparison needs.")] = False,
    rate: Annotated[float, typer.Option(help="With --plan: share of units with a success.")] = 0.0,
    effect: Annotated[float, typer.Option(help="With --plan: relative change to find, .1 for 10%.")] = 0.0,
    units_a_day: Annotated[int, typer.Option(help="With --plan: new units a day.")] = 0,
    env_var: EnvVar = None,
) -> None:
    """Compare the arms of an experiment by the events behind the pages that were served, or plan its length."""
    from svc.experiments.report import compare_arms, experiment_of, plan
    from svc.experiments.served_log import read_served

    settings = Settings.from_env(environment(Path() if recipe_file is None else recipe_file.parent))
    logs.configure(settings)
    loaded, variables = (None, {}) if recipe_file is None else load(recipe_file, env_var, settings, for_serving=True)
    if planned:
        weights = (1, 1) if loaded is None else [arm.weight for arm in experiment_of(loaded.recipe).arms]
        days = plan(rate, effect, units_a_day, weights)
        typer.echo(json.dumps(days) if as_json else f"{days['days']} days, {days['units']:,} units, for 80% power")
        return
    if loaded is None or events is None:
        raise UsageError("give a RECIPE and --events, or --plan with --rate, --effect and --units-a-day")
    experiment_of(loaded.recipe)
    columns = {"user_column": unit, "item_column": item, "time_column": time, "weight_column": value}
    form = {"time_unit": time_unit, "time_format": time_format}
    report = compare_arms(
        read_served(served or _served_log(loaded)),
        _read_events(events, {**columns, **form}, settings, variables),
        loaded.recipe,
        window,
    )
    typer.echo(json.dumps(report, indent=2)) if as_json else _print(report)


def _served_log(loaded: LoadedRecipe) -> str:
    if loaded.served_log_folder is None:
        raise UsageError("the recipe has no serving.served_log: name its files by --served")
    return str(loaded.served_log_folder)


def _read_events(events: str, columns: dict[str, Any], settings: Settings, variables: Mapping[str, str]) -> Events:
    """Read the table that --events names. A column `value` of a file counts without --value."""
    from svc.experiments.events import VALUE, clean_events, event_schema
    from svc.recipe.source_options import SourceSpec
    from svc.recipe.yaml_reader import parse_yaml
    from svc.sources.base import SourceContext, build_source

    is_file = not events.lstrip().startswith("{")
    # Anywhere in the name, because `.gz` or the brackets of a pattern may follow.
    kind = next((kind for kind in ("parquet", "jsonl") if f".{kind}" in events.lower()), "csv")
    delimiter = {"delimiter": "\t"} if ".tsv" in events.lower() else {}
    tree = {"path": events, **delimiter} if is_file else parse_yaml(events.encode(), "--events")
    try:
        spec = SourceSpec.model_validate({"type": kind, **tree})
    except ValueError:
        raise UsageError("--events: the type of the source is no text") from None
    schema = event_schema(columns)
    ids = frozenset({schema.user_column, schema.item_column})
    context = SourceContext(Path.cwd(), settings, None, ids, "interactions", variables, None)
    source: Any = build_source(spec, context)
    # One row shows whether there is a column of values, which need not be named then.
    first = source.sample(1) if is_file and schema.weight_column is None else None
    if first is not None and VALUE in first:
        schema = event_schema({**columns, "weight_column": VALUE})
    names = (*ids, *schema.time_columns, *([schema.weight_column] if schema.weight_column else []))
    return clean_events(build_source(spec, replace(context, columns=names)).fetch(), schema)


def _print(report: Mapping[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from svc.experiments.report import UNLIKELY_RATIO

    console = Console()
    title = f"{report['experiment']} of {report['recipe']}, events within {report['window']}, 95% intervals"
    table = Table("arm", "", title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("rate", "interval", "difference", "interval", "p"):
        table.add_column(heading, justify="right")
    for arm in report["arms"]:
        table.add_row(arm["name"], f"{arm['units']:,} units, {arm['pages']:,} pages, {arm['successes']:,} successes")
        for label, rate in {"per page": arm, **arm}.items():
            if isinstance(rate, dict) and "rate" in rate:
                difference = rate.get("difference", {})
                figures = (rate["rate"], rate["interval"], *map(difference.get, ("value", "interval", "p")))
                table.add_row("", label.replace("_", " "), *map(_shown, figures))
        if arm["first_place"]:
            table.add_row("", "place of first success", "{mean:.2f}, median {median:g}".format(**arm["first_place"]))
    console.print(table)
    p = report["sample_ratio"]["p"]
    console.print(f"units by arm against the weights: p = {_shown(p) or 'unknown'}")
    if p is not None and p < UNLIKELY_RATIO:
        console.print("[bold red]THE ARMS DO NOT HAVE THE UNITS OF THEIR WEIGHTS: the comparison is void[/]")
    if (shadow := report["shadow"]) is not None:
        share = _shown(shadow["overlap"]) or "unknown"
        console.print(escape(f"shadow {shadow['arm']}: share of common items {share}, over {shadow['pages']:,} pages"))
    for reason, count in report["left_out"].items():
        console.print(f"{reason.replace('_', ' ')}: {count:,}")


def _shown(figure: float | list[float] | None) -> str:
    if isinstance(figure, list):
        return " to ".join(map(_shown, figure))
    return "" if figure is None else f"{figure:.4g}"
