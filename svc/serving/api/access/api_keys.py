"""API keys and the server's list of their digests.

The digest is scrypt with a low cost, because a key of 256 random bits gains nothing from stretching.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from svc.errors import ConfigError
from svc.key_files import key_list
from svc.names import KEY_ID
from svc.settings import Settings

# Constant, so that one digest finds a key among all keys of the list.
SALT = b"svc.api-key.v1"
# Part of the specified format of entries, although the digest is scrypt.
PREFIX = "sha256:"

_KEY = re.compile(rb"[A-Za-z0-9_-]{43}")
_ENTRY = re.compile(rf"(?P<kid>{KEY_ID}):sha256:(?P<digest>[0-9a-fA-F]{{64}})")


def new_api_key() -> str:
    """Return 43 characters of base64url from 32 random bytes."""
    return secrets.token_urlsafe(32)


def hash_api_key(plaintext: str) -> str:
    """Return the key's entry in the server's list without the kid: `sha256:` and a scrypt digest in hex."""
    return PREFIX + digest(plaintext.encode()).hex()


def parse_api_keys(text: str) -> dict[str, bytes]:
    """Return the digests by kid from `<kid>:sha256:<hex64>` entries separated by commas.

    Raises ConfigError with the number of the entry, never with its value.
    """
    keys: dict[str, bytes] = {}
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for number, entry in enumerate(entries, start=1):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"SVC_API_KEYS: entry {number} is not <kid>:sha256:<64 hex characters>; "
                "make one with: svc keygen --type api --kid <kid>"
            )
        if match["kid"] in keys:
            raise ConfigError(f"SVC_API_KEYS: the kid {match['kid']!r} is there twice")
        keys[match["kid"]] = bytes.fromhex(match["digest"])
    return keys


def load_api_keys(settings: Settings) -> dict[str, bytes]:
    """Return the keys in the settings, or in the file of the settings. Raises ConfigError."""
    return parse_api_keys(key_list(settings.api_keys, settings.api_keys_file, "SVC_API_KEYS"))


def is_well_formed(value: bytes) -> bool:
    """Return True if the value has the form of a key, 43 characters of base64url."""
    return _KEY.fullmatch(value) is not None


def digest(plaintext: bytes) -> bytes:
    """Return the scrypt digest of the plaintext, 32 bytes."""
    return hashlib.scrypt(plaintext, salt=SALT, n=2**10, r=8, p=1, dklen=32)
