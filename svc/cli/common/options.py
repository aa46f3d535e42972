"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from svc.env_file import Environment
    from svc.recipe.load import LoadedRecipe
    from svc.settings import Settings

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="The recipe, a YAML file.", show_default=False)]
EnvVar = Annotated[
    list[str] | None,
    typer.Option(
        "--env-var",
        metavar="KEY=VALUE",
        help="A variable for ${...} in the recipe; KEY starts with SVC_RECIPE_. Repeatable.",
        show_default=False,
    ),
]


def log_overridden(environ: Environment) -> None:
    """Log the variables with a value in the environment that overrides the value in the file of variables."""
    from svc import events, logs

    if environ.overridden:
        logs.emit(events.VARIABLES_OVERRIDDEN, file=str(environ.file), variables=environ.overridden)


def load(recipe_file: Path, extra: Sequence[str] | None, settings: Settings) -> tuple[LoadedRecipe, dict[str, str]]:
    """Return the checked recipe, and the variables for its `${...}`."""
    from svc.env_file import environment
    from svc.recipe.load import load_recipe
    from svc.recipe.variables import recipe_variables
    from svc.sources.base import check_spec

    variables = recipe_variables(environment(recipe_file.parent), extra or ())
    return load_recipe(recipe_file, variables, settings=settings, check_source=check_spec), variables


def load_for_serving(
    recipe_file: Path, extra: Sequence[str] | None, settings: Settings
) -> tuple[LoadedRecipe, dict[str, str]]:
    """Return the recipe as a server reads it, and the variables for its `${...}`.

    Fields that only training uses may refer to variables that are not set.
    """
    from svc.env_file import environment
    from svc.recipe.load import load_recipe
    from svc.recipe.variables import recipe_variables
    from svc.sources.base import check_spec

    variables = recipe_variables(environment(recipe_file.parent), extra or ())
    return load_recipe(recipe_file, variables, settings=settings, for_serving=True, check_source=check_spec), variables
