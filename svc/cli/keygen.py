"""`svc keygen`: make a signing key or an API key."""

from __future__ import annotations

import os
import secrets
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

import typer

from svc.atomic_write import replace_file
from svc.env_file import read_lines
from svc.errors import ConfigError, UsageError

EPILOG = """
[bold]Examples[/bold]
  svc keygen --kid 2026-01            a signing key, for SVC_SIGNING_KEYS; its
                                      public half (verify_entry) for servers
  svc keygen --type api --kid shop    an API key: plaintext for the client,
                                      env_entry for the server
  svc keygen --kid dev1 --write keys.env    adds the entry to a file that
                                      only its owner may read; beside the
                                      recipes every command finds it

[bold]Exit codes[/bold]  0 success   2 bad usage   8 the file of --write
"""


def add_entry(path: Path, variable: str, entry: str) -> None:
    """Append `entry`, which begins with its kid, to the list of `variable` in a file. A missing file is created.

    Existing entries never change, so the first signing key keeps signing. Raises UsageError for a kid that is listed
    already. Raises ConfigError if the file is malformed, readable by others, or cannot be written.
    """
    try:
        before = path.stat() if path.exists() else None
        lines = read_lines(path) if before else []
        _add(lines, variable, entry, path)
        # The mode of an existing file is its owner's choice.
        mode = stat.S_IMODE(before.st_mode) if before else 0o600
        # Behind a link, which would otherwise become a file.
        replace_file(path.resolve(), "".join(f"{line}\n" for line in lines).encode(), mode=mode)
        if before:
            os.chown(path, -1, before.st_gid)  # without this, the new file would have the group of this process
    except ConfigError as error:
        raise ConfigError(f"--write: {error.message}") from None
    except OSError as error:
        raise ConfigError(f"--write: {path} cannot be written: {error.strerror}") from None


def _add(lines: list[str], variable: str, entry: str, path: Path) -> None:
    kid = entry.partition(":")[0]
    for index, line in enumerate(lines):
        name, _, listed = line.partition("=")
        if name == variable:
            if kid in (listed_entry.partition(":")[0] for listed_entry in listed.split(",")):
                raise UsageError(f"--kid: {path} has a key {kid!r} in {variable} already: choose another kid")
            lines[index] = f"{variable}={listed},{entry}" if listed else f"{variable}={entry}"
            return
    lines.append(f"{variable}={entry}")


def command(
    kid: Annotated[
        str | None,
        typer.Option(
            help="Key id: 1 to 64 letters, digits, '_', '.' or '-'.", show_default="today, and four hex digits"
        ),
    ] = None,
    key_type: Annotated[
        Literal["signing", "api"],
        typer.Option("--type", help="Kind of key: `signing` for artifacts, `api` for clients of a server."),
    ] = "signing",
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append the entry to this file: a signing key itself, or the digest of an API key. The plaintext of a "
            "signing key is then not printed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a signing key or an API key. An API key is shown once and cannot be recovered."""
    from svc.artifact.keys import KID, looks_like_key

    # The digits tell keys of one day apart.
    kid = f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}" if kid is None else kid
    if looks_like_key(kid):
        raise UsageError("--kid: it looks like a key, and artifacts and logs show the kid to everybody: use a name")
    if not KID.fullmatch(kid):
        raise UsageError(f"--kid: {kid!r} is not a key id: use 1 to 64 letters, digits, '_', '.' or '-'")
    lines = _signing_lines(kid) if key_type == "signing" else _api_lines(kid)
    if write is not None:
        add_entry(write, *lines.pop("env_entry").split("=", 1))
        if key_type == "signing":
            del lines["plaintext"]
    for name, value in lines.items():
        typer.echo(f"{name}={value}")


def _signing_lines(kid: str) -> dict[str, str]:
    from svc.artifact.keys import fingerprint, public_entry

    key = secrets.token_bytes(32)
    return {
        "kid": kid,
        "plaintext": key.hex(),
        "fingerprint": fingerprint(key),
        "env_entry": f"SVC_SIGNING_KEYS={kid}:{key.hex()}",
        "verify_entry": f"SVC_VERIFY_KEYS={public_entry(kid, key)}",
    }


def _api_lines(kid: str) -> dict[str, str]:
    from svc.serving.api.authentication import hash_api_key, new_api_key

    plaintext = new_api_key()
    digest = hash_api_key(plaintext)
    return {"kid": kid, "plaintext": plaintext, "hash": digest, "env_entry": f"SVC_API_KEYS={kid}:{digest}"}
