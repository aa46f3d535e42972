"""The development mode without signing keys: its two flags, and when it is refused."""

from __future__ import annotations

from typing import Annotated

import typer

from svc.errors import ConfigError
from svc.settings import Settings

CONFIRMATION = "--i-understand-this-loads-arbitrary-code"

DevAllowUnsigned = Annotated[
    bool,
    typer.Option(
        "--dev-allow-unsigned",
        help="Use a built-in key that anybody knows. Needs SVC_ENV=development.",
    ),
]
Confirmed = Annotated[bool, typer.Option(CONFIRMATION, help="Confirms --dev-allow-unsigned.")]


def check_unsigned(settings: Settings, *, wanted: bool, confirmed: bool) -> bool:
    """Whether unsigned mode is on. A flag without what it needs is a `ConfigError`, never silently ignored."""
    if not wanted:
        if confirmed:
            raise ConfigError(f"{CONFIRMATION} stands without --dev-allow-unsigned: give both or neither")
        return False
    if settings.env != "development":
        raise ConfigError("--dev-allow-unsigned needs SVC_ENV=development; elsewhere set SVC_SIGNING_KEYS")
    if not confirmed:
        raise ConfigError(f"--dev-allow-unsigned also needs {CONFIRMATION}")
    return True
