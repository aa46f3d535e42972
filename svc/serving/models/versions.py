"""The versions of a served recipe, for people who look at them in the console. Reading a store blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from svc.artifact.keys import SigningKeys
from svc.artifact.versions import Versions
from svc.recipe.load import LoadedRecipe
from svc.settings import Settings

MOST = 100
"""Number of newest versions in the answer."""

ReadVersions = Callable[[str], dict[str, Any]]
"""What `read_versions` gives for the recipe of a name. Raises LookupError for a name that is not served."""


def read_versions(recipe: LoadedRecipe, keys: SigningKeys, settings: Settings) -> dict[str, Any]:
    """`{"versioning", "versions"}`, the newest first, as `svc history --json` has them.

    No artifact is read: of a version without a line in the log only its name is known. Raises ArtifactError.
    """
    versioning = recipe.recipe.output.versioning
    if versioning != "append_sha":
        return {"versioning": versioning, "versions": []}
    history = Versions(recipe.output_uri, keys, settings, recipe=recipe.recipe.name).history(by_log_alone=True)
    return {"versioning": versioning, "versions": [version.as_fields() for version in history[:MOST]]}
