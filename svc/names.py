"""The permitted forms of names and addresses, shared by several parts of svc."""

from __future__ import annotations

from typing import Final, Literal

RECIPE_NAME: Final = "[A-Za-z0-9_-]{1,64}"
NAME_PATTERN: Final = f"^{RECIPE_NAME}$"
ARM_MARK: Final = "@"
"""Stands between the names of a recipe and of an arm, because no recipe's name can contain it."""
KEY_ID: Final = "[A-Za-z0-9_.-]{1,64}"
"""The kid of a signing key or an API key."""
RUN_ID: Final = "[A-Za-z0-9_.-]{1,64}"

EXTRAS_OF_SCHEMES: Final = {"s3": "s3", "gs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
"""The extra that installs the client for each object-store scheme."""
OBJECT_SCHEMES: Final = frozenset(EXTRAS_OF_SCHEMES)
HTTP_SCHEMES: Final = frozenset({"http", "https"})

Versioning = Literal["append_sha", "always_overwrite"]
Order = Literal["score", "lift", "balanced"]
"""How users are ranked for an item."""

MAX_ID_CHARACTERS: Final = 256
"""The longest id of a user or item in a request."""


def is_float_text(name: str) -> bool:
    """Return whether a text is a whole number written as a floating point number: 7.0."""
    return name.endswith(".0") and name[:-2].removeprefix("-").isdecimal()


def stem_of(file: str) -> str:
    """Return the name of a recipe file without its ending."""
    return file.removesuffix(".yaml").removesuffix(".yml")


def arm_name(recipe: str, arm: str) -> str:
    """Return the name under which a server keeps the model of an arm."""
    return recipe + ARM_MARK + arm
