"""`svc validate`: check a recipe, its sources and its search storage before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from svc.cli.common import EnvVar, RecipeFile, load, progress_for
from svc.env_file import environment
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.training.validate import Check

EPILOG = """
[bold]Examples[/bold]
  svc validate recipes/movies.yaml
  svc validate recipes/movies.yaml --env-var SVC_RECIPE_DAY=2026-01-31

[bold]Exit codes[/bold]
  0 all checks hold   2 bad recipe or usage   3 data source
  4 training would find no usable row         8 configuration
"""


def command(recipe_file: RecipeFile, env_var: EnvVar = None) -> int:
    """Check a recipe and probe its sources without reading them whole, one line for each check."""
    settings = Settings.from_env(environment(recipe_file.parent))
    with progress_for(settings):
        loaded, variables = load(recipe_file, env_var, settings)
        typer.echo(_line("ok", "recipe", f"{recipe_file} is {loaded.recipe.name}, hash {loaded.recipe_hash}"))
        for warning in loaded.warnings:
            typer.echo(_line("note", "recipe", str(warning)))
        from itertools import chain

        from svc.cli.new_items import check_new_items
        from svc.training.validate import validate

        failed: Check | None = None
        new_items = (check for check in (check_new_items(loaded, settings, variables),) if check is not None)
        for check in chain(validate(loaded, settings, variables), new_items):
            result, code = ("ok", "") if check.ok else ("FAILED", f" (code {check.code}, exit code {check.exit_code})")
            typer.echo(_line(result, check.name, check.detail + code))
            failed = failed or (None if check.ok else check)
    return failed.exit_code if failed else 0


def _line(result: str, name: str, detail: str) -> str:
    return f"{result:<7} {name}: {detail}"
