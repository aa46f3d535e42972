"""The development mode without signing keys: its flags, their check, and the choice of signing keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from svc.env_file import keys_hint
from svc.errors import ConfigError, UsageError
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.artifact.keys import SigningKeys

_TABLES = (".csv", ".csv.gz", ".tsv", ".parquet", ".jsonl", ".xlsx")
CONFIRMATION = "--i-understand-this-loads-arbitrary-code"

DevAllowUnsigned = Annotated[
    bool,
    typer.Option(
        "--dev-allow-unsigned",
        help="Use a built-in key that anybody knows. Needs SVC_ENV=development.",
    ),
]
Confirmed = Annotated[bool, typer.Option(CONFIRMATION, help="Confirms --dev-allow-unsigned.")]


def check_unsigned(settings: Settings, *, wanted: bool, confirmed: bool, runs_payload: bool = True) -> bool:
    """Return whether unsigned mode is on.

    Raises ConfigError for a flag without its requirements. Only commands that decode or make a payload (`runs_payload`)
    require the confirmation.
    """
    if not wanted:
        if confirmed:
            raise ConfigError(f"{CONFIRMATION} stands without --dev-allow-unsigned: give both or neither")
        return False
    if settings.env != "development":
        raise ConfigError("--dev-allow-unsigned needs SVC_ENV=development; elsewhere set SVC_SIGNING_KEYS")
    if runs_payload and not confirmed:
        raise ConfigError(f"--dev-allow-unsigned also needs {CONFIRMATION}")
    return True


def verifying_keys(settings: Settings, *, unsigned: bool, artifact: str | None = None) -> SigningKeys:
    """Return the keys that an artifact may be signed with.

    Raises UsageError if `artifact` is a table, ConfigError if no keys are set, or ArtifactReadError if also the local
    file `artifact` is missing.
    """
    from svc.artifact.keys import development_keys, load_signing_keys
    from svc.artifact.store import require_file

    if artifact is not None and artifact.lower().endswith(_TABLES):
        raise UsageError(f"{artifact} is a table; this command takes an artifact, a .svc file")
    if unsigned:
        return development_keys()
    keys = load_signing_keys(settings)
    if not keys:
        if artifact is not None:
            require_file(artifact)
        raise ConfigError(
            "SVC_SIGNING_KEYS is not set: set it, or SVC_VERIFY_KEYS, to the keys that the artifact may be signed with"
            f"{'' if artifact is None else keys_hint(artifact)}"
        )
    return keys
