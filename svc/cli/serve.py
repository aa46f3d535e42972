"""`svc serve`: serve the recommendations of a folder of recipes over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from svc import events, logs
from svc.cli.common import Confirmed, DevAllowUnsigned, EnvVar, check_unsigned, log_overridden
from svc.env_file import environment
from svc.errors import ConfigError, UsageError
from svc.settings import MOST_WORKERS, Settings, parse_workers

_MOST_SHOWN = 20
EPILOG = """
[bold]Examples[/bold]
  svc serve --recipes recipes/
  SVC_API_KEYS=... svc serve --recipes recipes/ --host 0.0.0.0 --port 8000

[bold]Exit codes[/bold]
  0 ended by SIGTERM or SIGINT   2 bad usage
  8 configuration, such as a port in use or no signing keys
"""

_MISSPELT_KEYS = re.compile("SVC_(API_?(KEYS?|TOKENS?)|KEYS?|TOKENS?|AUTH_?(KEYS?|TOKENS?))(_FILE)?")
"""Names that other servers use for the variable of an API key."""


def command(
    recipes: Annotated[Path, typer.Option(help="Folder whose *.yaml files are served.", show_default=False)],
    host: Annotated[str | None, typer.Option(help="Address to bind.", show_default="SVC_HOST, else 127.0.0.1")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port. 0 takes any free one.", show_default="SVC_PORT, else 8080"),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(help="Processes that answer: 1 to 64, or auto.", show_default="SVC_WORKERS, else 1")
    ] = None,
    env_var: EnvVar = None,
    insecure_no_auth: Annotated[
        bool,
        typer.Option(
            "--insecure-no-auth", help="Bind any address without API keys. Needs SVC_ENV=development, dev or test."
        ),
    ] = False,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> int:
    """Serve recommendations over HTTP, one model for each recipe of a folder, and load changed artifacts."""
    try:
        n_workers = None if workers is None else parse_workers(workers)
    except ValueError as error:
        raise UsageError(f"--workers: {workers!r} {error}") from None
    environ = environment(recipes)
    settings = Settings.from_env(environ)
    # Before anything is served: with a misspelt variable a server would need no key.
    _refuse_misspelt_keys(environ)
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed)
    if insecure_no_auth and not settings.is_development:
        raise ConfigError("--insecure-no-auth needs SVC_ENV=development, dev or test; elsewhere set SVC_API_KEYS")
    if not recipes.is_dir():
        raise UsageError(f"--recipes: {recipes} is not a folder: name the folder that holds the recipes")
    logs.configure(settings)
    log_overridden(environ)
    _warn_of_no_recipes(recipes, settings)

    from svc.cores import usable_cores
    from svc.recipe.variables import recipe_variables
    from svc.serving.run import ServeOptions, serve

    options = ServeOptions(
        recipes_dir=recipes,
        host=settings.host if host is None else host,
        port=settings.port if port is None else port,
        insecure_no_auth=insecure_no_auth,
        dev_allow_unsigned=unsigned,
        # None is `auto`: all cores, which a large machine may have more of than workers are allowed.
        workers=(settings.workers if workers is None else n_workers) or min(usable_cores(), MOST_WORKERS),
    )
    return serve(options, settings, recipe_variables(environ, env_var or ()), environ)


def _warn_of_no_recipes(recipes: Path, settings: Settings) -> None:
    """Log a warning if the folder has no recipe, with a folder in it or the ending of files that may be meant."""
    files = sorted(path.name for path in recipes.glob("*.yml"))[:_MOST_SHOWN]
    if any(recipes.glob("*.yaml")) or (files and settings.yml_recipes):
        return
    if files:
        way_out = "rename them to .yaml, or set SVC_YML_RECIPES=1"
        logs.emit(events.RECIPES_END_IN_YML, files=files, way_out=way_out)
        return
    # One level is enough for the usual mistake, the folder above.
    below = next(iter(sorted(recipes.glob("*/*.yaml"))), None)
    way_out = (
        "put *.yaml files directly into it" if below is None else f"recipes are in {below.parent}: name that folder"
    )
    logs.emit(events.NO_RECIPES, folder=str(recipes), way_out=way_out)


def _refuse_misspelt_keys(environ: Mapping[str, str]) -> None:
    """Raise ConfigError for an API key in a variable that svc does not read, unless the server has other keys."""
    if environ.get("SVC_API_KEYS") or environ.get("SVC_API_KEYS_FILE"):
        return
    variable = next((name for name, value in environ.items() if value and _MISSPELT_KEYS.fullmatch(name)), None)
    if variable is not None:
        raise ConfigError(
            f"{variable} is not a variable of svc, and without SVC_API_KEYS the server would answer everybody: set "
            "SVC_API_KEYS to the entry that `svc keygen --type api` prints"
        )
