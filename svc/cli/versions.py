"""`svc history`, `svc promote` and `svc rollback`: the versions beside a recipe's pointer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from svc.cli.common import DevAllowUnsigned, EnvVar, RecipeFile, open_recipe
from svc.errors import ArtifactError, UsageError
from svc.logs import printable
from svc.recipe.algorithms import short_name

if TYPE_CHECKING:
    from rich.table import Table

    from svc.artifact.versions import Version, Versions

_TO_THE_MINUTE = len("2026-01-31 08:15")
HISTORY_EPILOG = """
[bold]Examples[/bold]
  svc history recipes/books.yaml
  svc history recipes/books.yaml --json | jq '.versions[] | select(.live)'
  svc history recipes/books.yaml --verify

[bold]Exit codes[/bold]
  0 ok   2 bad recipe, or one without versions   5 the log is not whole
  8 no signing keys
"""
PROMOTE_EPILOG = """
[bold]Examples[/bold]
  svc promote recipes/books.yaml 3f9a1c07

[bold]Exit codes[/bold]
  0 live                                5 no such version, or not trusted
  2 bad recipe, or one without versions 6 another command holds the lock
  8 no signing keys
"""
ROLLBACK_EPILOG = """
[bold]Examples[/bold]
  svc rollback recipes/books.yaml --hold
  svc rollback recipes/books.yaml --to 3f9a1c07

Without --to: the version that was live before, else the next older one.

[bold]Exit codes[/bold]
  0 live                                5 nothing older, or not trusted
  2 bad recipe, or one without versions 6 another command holds the lock
  8 no signing keys
"""


def history(
    recipe_file: RecipeFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check the signed log and name its invalid lines.")] = False,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> int:
    """List the versions of a recipe's model: time, algorithm, score, decision, and which one is live."""
    versions = _open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    if verify:
        problems = versions.problems()
        _print_problems(problems, versions.log().lines, as_json=as_json)
        return ArtifactError.exit_code if problems else 0
    listed = versions.history()
    if as_json:
        typer.echo(json.dumps({"versions": [version.as_fields() for version in listed]}, indent=2))
    else:
        from rich.console import Console

        # Also without a version: the title says which artifact was looked for.
        Console().print(_table(versions.uri, listed))
        if not listed:
            typer.echo(f"There is no version yet: svc train {recipe_file} writes the first one.")
    return 0


def promote(
    recipe_file: RecipeFile,
    sha8: Annotated[
        str, typer.Argument(metavar="SHA8", help="A version as `svc history` shows it, or its first digits.")
    ],
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> None:
    """Make one version of a recipe's model live, and end any hold. Servers load it at their next poll."""
    versions = _open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    # First, because a wrong version must change nothing.
    named = versions.find_version(sha8)
    before = versions.promote(named)
    typer.echo(f"{named} is live (before: {before or 'none'}); trainings move the pointer again")


def rollback(
    recipe_file: RecipeFile,
    to: Annotated[
        str | None, typer.Option(metavar="SHA8", help="The version to make live, as for `svc promote`.")
    ] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep it live through trainings, until `svc promote`.")] = False,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> None:
    """Make an earlier version of a recipe's model live again. With --hold, trainings leave it live."""
    versions = _open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    live, before = versions.rollback(None if to is None else versions.find_version(to), hold=hold)
    held = "; held there until `svc promote`" if versions.log().held else ""
    typer.echo(f"{live} is live (before: {before or 'none'}){held}")


def _open_versions(recipe_file: Path, env_var: Sequence[str] | None, *, unsigned: bool) -> Versions:
    """Return the versions of the recipe.

    Raises RecipeError for a recipe that cannot be used, UsageError if output.versioning is not append_sha, and
    ConfigError if no keys are set.
    """
    from svc.artifact.versions import Versions

    loaded, keys, settings = open_recipe(recipe_file, env_var, unsigned=unsigned)
    if loaded.recipe.output.versioning != "append_sha":
        raise UsageError(
            f"{recipe_file}: output.versioning is {loaded.recipe.output.versioning}, which keeps one file without a "
            "history; set output.versioning: append_sha"
        )
    return Versions(loaded.output_uri, keys, settings, recipe=loaded.recipe.name)


def _print_problems(problems: list[str], lines: tuple[object, ...], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"lines": len(lines), "problems": problems}, indent=2))
        return
    for problem in problems:
        typer.echo(printable(problem))
    if not problems:
        typer.echo(f"{len(lines)} lines, all signed and in order")


def _table(uri: str, versions: list[Version]) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    with_refits = any(version.reused_from for version in versions)
    # Without padding, a row of eight columns fits into 80 characters.
    table = Table(title=escape(uri), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0)
    headings = ("version", "trained at (UTC)", "algorithm", "score", "rank ms", "decision", "state")
    with_orders = any(version.score_with_order is not None for version in versions)
    more_headings = ["refit of"] * with_refits + ["with order"] * with_orders
    for heading in (*headings, *more_headings):
        table.add_column(heading, overflow="fold", no_wrap=heading != "algorithm")
    for version in versions:
        score = "" if version.best_score is None else f"{version.best_score:.5f}"
        ordered = "" if version.score_with_order is None else f"{version.score_with_order:.5f}"
        rank_ms = "" if version.rank_ms is None else f"{version.rank_ms:.3g}"
        state = "live, held" if version.held else "live" if version.live else ""
        trained_at = (version.trained_at or "unreadable").replace("T", " ")[:_TO_THE_MINUTE]
        algorithm = short_name(version.best_class or "")
        reused = version.reused_from
        more = [reused["sha8"] if reused else ""] if with_refits else []
        more += [ordered] if with_orders else []
        cells = (trained_at, algorithm, score, rank_ms, version.decision or "", state, *more)
        # rich would take a text in brackets for markup.
        table.add_row(version.sha8, *(escape(cell) for cell in cells))
    return table
