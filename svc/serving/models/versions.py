"""The versions of a served recipe, for the console. Reading a store blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from svc.artifact.keys import SigningKeys
from svc.artifact.versions import Versions
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings

MOST = 100
"""Most versions in the answer."""

ReadVersions = Callable[[str], dict[str, Any]]
"""`read_versions` by the name of a recipe. Raises LookupError if no such recipe is served."""


def read_versions(recipe: LoadedRecipe, keys: SigningKeys, settings: Settings) -> dict[str, Any]:
    """Return `{"versioning", "versions"}`, newest first, in the form of `svc history --json`. Raises ArtifactError.

    Reads the log but no artifact: a version without a line in the log has only its name.
    """
    versioning = recipe.recipe.output.versioning
    if versioning != "append_sha":
        return {"versioning": versioning, "versions": []}
    history = Versions(recipe.output_uri, keys, settings, recipe=recipe.recipe.name).history(by_log_alone=True)
    return {"versioning": versioning, "versions": [version.as_fields() for version in history[:MOST]]}
