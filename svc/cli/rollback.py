"""`svc rollback`: make an earlier version of a recipe's model live again."""

from __future__ import annotations

from typing import Annotated

import typer

from svc.cli.common.options import EnvVar, RecipeFile
from svc.cli.common.unsigned import DevAllowUnsigned
from svc.cli.common.versions import open_versions

NAME = "rollback"
HELP = "Make an earlier version of a recipe's model live again; with --hold, keep it there through trainings."
EPILOG = """
[bold]Examples[/bold]
  svc rollback recipes/books.yaml --hold
  svc rollback recipes/books.yaml --to 3f9a1c07

Without --to: what was live before, by the log, else the next older version.
A hold stays until `svc promote`: trainings go on, write their version, and
do not move the pointer.

[bold]Exit codes[/bold]
  0 live                                5 nothing older, or not trusted
  2 bad recipe, or one without versions 6 another command holds the lock
  8 no signing keys
"""


def command(
    recipe_file: RecipeFile,
    to: Annotated[str | None, typer.Option("--to", metavar="SHA8", help="The version to go to.")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="Keep it live through trainings, until `svc promote`.")] = False,
    env_var: EnvVar = None,
    dev_allow_unsigned: DevAllowUnsigned = False,
) -> None:
    versions = open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    live, before = versions.rollback(None if to is None else versions.named(to), hold=hold)
    held = "; held there until `svc promote`" if versions.log().held else ""
    typer.echo(f"{live} is live (before: {before or 'none'}){held}")
