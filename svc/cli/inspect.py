"""`svc inspect`: verify an artifact and show what its header says. Its payload is never decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from svc.cli.unsigned import Confirmed, DevAllowUnsigned, check_unsigned
from svc.errors import ConfigError

if TYPE_CHECKING:
    from svc.artifact.keys import SigningKeys
    from svc.settings import Settings

NAME = "inspect"
HELP = "Verify an artifact's size and signature and print its header. Safe on corrupt and hostile files."
EPILOG = """
[bold]Examples[/bold]
  svc inspect artifacts/movies.svc
  svc inspect s3://models/movies.svc --json | jq .best_params

[bold]Exit codes[/bold]
  0 verified   5 unreadable, corrupt or not trusted   8 no signing keys
"""


def command(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Path or s3://, gs://, az://, https:// URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    dev_allow_unsigned: DevAllowUnsigned = False,
    confirmed: Confirmed = False,
) -> None:
    from svc import logs
    from svc.settings import Settings

    settings = Settings.from_env()
    unsigned = check_unsigned(settings, wanted=dev_allow_unsigned, confirmed=confirmed)
    logs.configure(settings)
    shown = _read(artifact, _keys(settings, unsigned=unsigned), settings)
    typer.echo(_as_json(shown) if as_json else "\n".join(_lines(shown)))


def _keys(settings: Settings, *, unsigned: bool) -> SigningKeys:
    from svc.artifact.keys import development_keys, parse_signing_keys

    if unsigned:
        return development_keys()
    if not settings.signing_keys:
        raise ConfigError("SVC_SIGNING_KEYS is not set: set it to the keys that the artifact may be signed with")
    return parse_signing_keys(settings.signing_keys)


def _read(artifact: str, keys: SigningKeys, settings: Settings) -> dict[str, Any]:
    """The header, with what the file itself tells: where it was found, its digest, sizes and kid."""
    from svc.artifact.store import read_verified

    blob, parsed = read_verified(artifact, keys, settings)
    return {
        "artifact": blob.resolved,
        "model_version": f"sha256:{blob.sha256}",
        "kid": parsed.kid,
        "artifact_bytes": len(blob.view),
        "payload_bytes": len(parsed.payload),
        **parsed.header,
    }


def _as_json(shown: dict[str, Any]) -> str:
    import json

    return json.dumps(shown, indent=2, ensure_ascii=False)


def _lines(shown: dict[str, Any], prefix: str = "") -> list[str]:
    """One `name: value` line a leaf; what lies deeper is named with dots."""
    from svc.logs import printable

    lines: list[str] = []
    for name, value in shown.items():
        if isinstance(value, dict) and value:
            lines += _lines(value, f"{prefix}{name}.")
        else:
            lines.append(printable(f"{prefix}{name}: {_text(value)}"))
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(element) for element in value)
    return "-" if value is None else str(value)
