"""Signing keys: the list in `SVC_SIGNING_KEYS`, and whether an artifact was signed with one of them."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from svc.artifact.layout import Parsed
from svc.errors import ConfigError, SignatureMismatch, UnknownKid

KEY_BYTES: Final = 32
DEVELOPMENT_KID: Final = "dev"
_DEVELOPMENT_KEY = hashlib.sha256(b"svc: the development key, known to everyone").digest()
KID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_FORM = "give <kid>:<64 hex characters>, several separated by commas; `svc keygen` prints one"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """(kid, 32 bytes) pairs in the order of the setting: the first one signs, all of them verify."""

    entries: tuple[tuple[str, bytes], ...] = field(repr=False)

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def active(self) -> tuple[str, bytes]:
        """The pair that signs. Raises ConfigError when there is none."""
        if not self.entries:
            raise ConfigError("SVC_SIGNING_KEYS is empty: make a key with `svc keygen --type signing --kid <kid>`")
        return self.entries[0]

    def get(self, kid: str) -> bytes | None:
        return next((key for name, key in self.entries if name == kid), None)

    def fingerprints(self) -> list[dict[str, str]]:
        """What `security.posture` shows of each key."""
        return [{"kid": kid, "fingerprint": fingerprint(key)} for kid, key in self.entries]

    def with_development(self) -> SigningKeys:
        """These keys, and after them the development key unless its kid is taken."""
        if self.get(DEVELOPMENT_KID) is not None:
            return self
        return SigningKeys((*self.entries, *development_keys().entries))


def fingerprint(key: bytes) -> str:
    """The first 8 hex characters of the key's sha256: tells keys apart, opens nothing."""
    return hashlib.sha256(key).hexdigest()[:8]


def parse_signing_keys(text: str) -> SigningKeys:
    """The keys in the form of `SVC_SIGNING_KEYS`; an empty text holds none.

    Raises ConfigError, which names the place of the faulty entry and never its value.
    """
    if not text.strip():
        return SigningKeys(())
    entries: dict[str, bytes] = {}
    for kid, key in _entries(text):
        if kid in entries:
            raise ConfigError(f"SVC_SIGNING_KEYS: the kid {kid!r} stands twice")
        entries[kid] = key
    return SigningKeys(tuple(entries.items()))


def _entries(text: str) -> Iterator[tuple[str, bytes]]:
    for place, entry in enumerate(text.split(","), start=1):
        kid, separator, hexadecimal = entry.strip().partition(":")
        if not separator or not KID.fullmatch(kid):
            raise ConfigError(f"SVC_SIGNING_KEYS: entry {place} has no valid kid; {_FORM}")
        if not _HEX.fullmatch(hexadecimal):
            raise ConfigError(f"SVC_SIGNING_KEYS: the key of entry {place} is not 64 hex characters; {_FORM}")
        key = bytes.fromhex(hexadecimal)
        if key == _DEVELOPMENT_KEY:
            raise ConfigError(
                f"SVC_SIGNING_KEYS: the key of entry {place} is the development key, which everyone knows"
            )
        yield kid, key


def development_keys() -> SigningKeys:
    """The one key that unsigned mode signs and verifies with. It is public, so it proves nothing."""
    return SigningKeys(((DEVELOPMENT_KID, _DEVELOPMENT_KEY),))


def is_development(kid: str, keys: SigningKeys) -> bool:
    """True when what `kid` verifies is worth nothing as proof: its key is the development key."""
    return keys.get(kid) == _DEVELOPMENT_KEY


def verify(parsed: Parsed, keys: SigningKeys) -> None:
    """Return when the artifact was signed with the key that its kid names.

    Raises UnknownKid or SignatureMismatch. Takes about as long as one sha256 of the file, without the GIL.
    """
    key = keys.get(parsed.kid)
    if key is None:
        raise UnknownKid(f"unknown kid: {parsed.kid}")
    signature = hmac.new(key, parsed.signed, "sha256").digest()
    if not hmac.compare_digest(signature, parsed.signature):
        raise SignatureMismatch("signature mismatch")
