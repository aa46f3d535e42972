"""The serial and the expiry in a signed header, and the signed log lines that permit older artifacts.

`serial` rises with every training of a recipe. From `expires_at` on, the artifact is no longer loaded. An artifact has
them only if its training was configured to write them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from svc.artifact import ed25519
from svc.artifact.keys import SigningKeys
from svc.artifact.layout import Signature
from svc.errors import ArtifactExpired, HeaderInvalid
from svc.names import RECIPE_NAME

MAX_SERIAL: Final = (1 << 53) - 1
"""The largest integer that every JSON reader represents exactly."""
MAX_LOG_BYTES: Final = 16 << 20
_NAME: Final = re.compile(RECIPE_NAME)


def serial_of(header: Mapping[str, Any]) -> int | None:
    """Return the serial, or None without one. Raises HeaderInvalid for an invalid serial."""
    serial = header.get("serial")
    if serial is None or (type(serial) is int and 0 <= serial <= MAX_SERIAL):
        return serial
    raise HeaderInvalid("header: serial is not a whole number of 0 to 2**53 - 1")


def expires_at(header: Mapping[str, Any]) -> datetime | None:
    """Return the time of expiry, or None without one. Raises HeaderInvalid for an invalid time."""
    text = header.get("expires_at")
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text) if type(text) is str else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise HeaderInvalid("header: expires_at is no time with a zone")
    return moment


def require_unexpired(header: Mapping[str, Any], now: datetime) -> None:
    """Raise ArtifactExpired if `now` is the time of expiry or later."""
    moment = expires_at(header)
    if moment is not None and moment <= now:
        raise ArtifactExpired(f"the artifact expired at {moment.isoformat()}: train the recipe again")


def recipe_of(header: Mapping[str, Any], declared: str) -> str:
    """Return the recipe that the artifact was trained for, or `declared` if the header has no valid name.

    Serials count for this recipe. So an artifact copied into another recipe's place cannot raise the other recipe's
    serials.
    """
    name = header.get("recipe_name")
    return name if isinstance(name, str) and _NAME.fullmatch(name) else declared


def signed_line(move: Mapping[str, Any], *, kid: str, key: bytes, signature: Signature) -> str:
    """Return one line of the log beside an output: the fields of `move`, `kid`, and the `signature` by `key`.

    A rollback has `action: rollback`, the `recipe`, the `sha256` that the pointer names from then on, and
    `from_serial`, the highest serial of the kid `serial_kid` until then. Once a higher serial was served, the line
    permits nothing any more.
    """
    content = {**move, "kid": kid}
    digest = _digest(content)
    if signature == "hmac":
        code = hmac.digest(key, ed25519.LOG_LINE + digest, "sha256")
    else:
        code = ed25519.sign(key, ed25519.LOG_LINE, digest)
    return json.dumps({**content, "signature": code.hex()}, ensure_ascii=True, allow_nan=False)


def verified_lines(log: bytes | memoryview, keys: SigningKeys) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log with valid signatures and skip all others."""
    for line in bytes(log).split(b"\n"):
        try:
            content = json.loads(line)
            code = bytes.fromhex(content.pop("signature"))
            if has_valid_signature(content, code, keys):
                yield content
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            continue


def has_valid_signature(content: Mapping[str, Any], code: bytes, keys: SigningKeys) -> bool:
    """Return whether `code` is a valid signature of a line's fields, `content`, by the key of its kid."""
    try:
        digest = _digest(content)
    except (ValueError, RecursionError):  # NaN, 1e999 and deep lists can be parsed, but never signed
        return False
    kid = str(content.get("kid"))
    secret = keys.get(kid)
    if len(code) == ed25519.SIGNATURE_BYTES:
        public = keys.public_of(kid)
        return public is not None and ed25519.is_signed(public, code, ed25519.LOG_LINE, digest)
    return secret is not None and hmac.compare_digest(hmac.digest(secret, ed25519.LOG_LINE + digest, "sha256"), code)


def _digest(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).digest()


def about(lines: Iterator[dict[str, Any]], *, recipe: str, kid: str) -> Iterator[dict[str, Any]]:
    """Yield the lines for this recipe and for serials of this kid. A line without these fields is for all of them.

    Lines for other recipes are skipped, so that a log copied from another output with the same key permits nothing.
    """
    for line in lines:
        if line.get("recipe") in (None, recipe) and line.get("serial_kid") in (None, kid):
            yield line


def is_rolled_back_to(sha256: str, highest: int, lines: Iterator[dict[str, Any]]) -> bool:
    """Return whether a rollback or promotion names this sha256, and its `from_serial` is `highest` or above."""
    return any(
        line.get("action") in ("rollback", "promote")
        and line.get("sha256") == sha256
        and type(line.get("from_serial")) is int
        and line["from_serial"] >= highest
        for line in lines
    )
