"""The versions of a recipe, for `svc history`, `svc promote` and `svc rollback`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from svc.cli.common.options import load_for_serving
from svc.cli.common.unsigned import check_unsigned, verifying_keys
from svc.errors import UsageError

if TYPE_CHECKING:
    from svc.artifact.versions import Versions

Sha8 = Annotated[str, typer.Argument(metavar="SHA8", help="A version as `svc history` shows it, or its first digits.")]


def open_versions(recipe_file: Path, env_var: Sequence[str] | None, *, unsigned: bool) -> Versions:
    """Return the versions of the recipe.

    Raises UsageError for a recipe without versions, ConfigError without keys.
    """
    from svc import logs
    from svc.artifact.versions import Versions
    from svc.env_file import environment
    from svc.settings import Settings

    settings = Settings.from_env(environment(recipe_file.parent))
    development = check_unsigned(settings, wanted=unsigned, confirmed=False, runs_payload=False)
    logs.configure(settings)
    loaded, _ = load_for_serving(recipe_file, env_var, settings)
    keys = verifying_keys(settings, unsigned=development)
    if loaded.recipe.output.versioning != "append_sha":
        raise UsageError(
            f"{recipe_file}: output.versioning is {loaded.recipe.output.versioning}, which keeps one file without a "
            "history; set output.versioning: append_sha"
        )
    return Versions(loaded.output_uri, keys, settings, recipe=loaded.recipe.name)
