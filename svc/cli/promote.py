"""`svc promote`: make one version of a recipe's model live."""

from __future__ import annotations

import typer

from svc.cli.common.options import EnvVar, RecipeFile
from svc.cli.common.unsigned import DevAllowUnsigned
from svc.cli.common.versions import Sha8, open_versions

NAME = "promote"
HELP = "Make one version of a recipe's model live, and end a hold. Servers follow at their next poll."
EPILOG = """
[bold]Examples[/bold]
  svc promote recipes/books.yaml 3f9a1c07

The version's signature is checked before the pointer moves.

[bold]Exit codes[/bold]
  0 live                                5 no such version, or not trusted
  2 bad recipe, or one without versions 6 another command holds the lock
  8 no signing keys
"""


def command(
    recipe_file: RecipeFile, sha8: Sha8, env_var: EnvVar = None, dev_allow_unsigned: DevAllowUnsigned = False
) -> None:
    versions = open_versions(recipe_file, env_var, unsigned=dev_allow_unsigned)
    named = versions.named(sha8)
    before = versions.promote(named)
    typer.echo(f"{named} is live (before: {before or 'none'}); trainings move the pointer again")
