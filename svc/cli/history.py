"""`svc history`: list the versions beside a recipe's pointer, or check their log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from svc.cli.common.options import EnvVar, RecipeFile
from svc.cli.common.unsigned import DevAllowUnsigned
from svc.cli.common.versions import open_versions
from svc.errors import ArtifactError

if TYPE_CHECKING:
    from rich.table import Table

    from svc.artifact.versions import Version

NAME = "history"
_TO_THE_MINUTE = len("2026-01-31 08:15")
HELP = "List the versions of a recipe's model: when, which class, score, decision, and which one is live."
EPILOG = """
[bold]Examples[/bold]
  svc history recipes/books.yaml
  svc history recipes/books.yaml --json | jq '.versions[] | select(.live)'
  svc history recipes/books.yaml --verify

--verify checks the signed log <output.path>.log.jsonl: lines that were
changed, taken out or put in are named, and the exit code is 5.

[bold]Exit codes[/bold]
  0 ok   2 bad recipe, or one without versions   5 the log is not whole
  8 no signing keys
"""


def command(
    recipe_file: RecipeFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check the signed log; say what is wrong.")] = False,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> int:
    versions = open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    if verify:
        problems = versions.problems()
        _print_problems(problems, versions.log().lines, as_json=as_json)
        return ArtifactError.exit_code if problems else 0
    history = versions.history()
    if as_json:
        import json

        typer.echo(json.dumps({"versions": [version.as_fields() for version in history]}, indent=2))
    else:
        from rich.console import Console

        Console().print(_table(versions.uri, history))
        if not history:
            typer.echo(f"No version is there yet: svc train {recipe_file} writes the first one.")
    return 0


def _print_problems(problems: list[str], lines: tuple[object, ...], *, as_json: bool) -> None:
    from svc.logs import printable

    if as_json:
        import json

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
    space = (0, 0 if with_refits else 1)  # a row of eight columns has 80 characters
    table = Table(title=escape(uri), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=space)
    headings = ("version", "trained at (UTC)", "algorithm", "score", "rank ms", "decision", "state")
    for heading in (*headings, "refit of") if with_refits else headings:
        table.add_column(heading, overflow="fold", no_wrap=heading != "algorithm")
    for version in versions:
        score = "" if version.best_score is None else f"{version.best_score:.5f}"
        rank_ms = "" if version.rank_ms is None else f"{version.rank_ms:.3g}"
        state = "live, held" if version.held else "live" if version.live else ""
        trained_at = _to_the_minute(version.trained_at or "unreadable")
        algorithm = (version.best_class or "").removesuffix("Recommender")
        reused = version.reused_from
        more = [reused["sha8"] if reused else ""] if with_refits else []
        cells = (trained_at, algorithm, score, rank_ms, version.decision or "", state, *more)
        table.add_row(version.sha8, *(escape(cell) for cell in cells))
    return table


def _to_the_minute(moment: str) -> str:
    return moment.replace("T", " ")[:_TO_THE_MINUTE]
