"""Signing and verification keys of artifacts, and the check of an artifact's signature.

`SVC_SIGNING_KEYS` has secrets that sign and verify. A secret is the HMAC key in format version 1, and the seed of an
Ed25519 key in version 2. `SVC_VERIFY_KEYS` has public halves of Ed25519 keys, which only verify version 2.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from svc.artifact import ed25519
from svc.artifact.layout import HMAC_VERSION, Parsed, Signature
from svc.env_file import key_list
from svc.errors import ConfigError, SignatureMismatch, UnknownKid
from svc.names import KEY_ID
from svc.settings import Settings

DEVELOPMENT_KID: Final = "dev"
# A constant, so that trainings and servers in unsigned mode agree without sharing a file.
_DEVELOPMENT_KEY = hashlib.sha256(b"svc: the development key, known to everyone").digest()
KID = re.compile(KEY_ID)
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_KEY_LIKE = re.compile(r"[0-9a-fA-F]{32,}")
# A pattern over bytes: the header of an artifact that failed its check is not decoded as JSON.
_SIGNED_BY = re.compile(rb'"fingerprint":"([0-9a-f]{8})"')
_PUBLIC_MARK = "ed25519:"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """The keys of this process for signing and verification, 32 bytes each, by kid.

    `entries` are secrets in the order of SVC_SIGNING_KEYS. The first entry signs, and every entry verifies. `public`
    keys only verify Ed25519 signatures.
    """

    entries: Mapping[str, bytes] = field(repr=False)
    public: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.entries or self.public)

    @property
    def active(self) -> tuple[str, bytes]:
        """Return the pair that signs.

        Raises ConfigError if there is none, or if its kid looks like a key. Artifacts and logs show the kid.
        """
        if not self.entries:
            raise ConfigError("SVC_SIGNING_KEYS is empty: make a key with `svc keygen --type signing --kid <kid>`")
        kid, key = next(iter(self.entries.items()))
        if looks_like_key(kid):
            raise ConfigError(
                "SVC_SIGNING_KEYS: the kid of entry 1 looks like a key, and artifacts show the kid: if it is one, "
                "make another key; else put a key with a short kid first, and keep this key for verification"
            )
        return kid, key

    def public_of(self, kid: str) -> bytes | None:
        """Return the Ed25519 public key of `kid`, listed or derived from its secret, or None for an unknown kid."""
        secret = self.entries.get(kid)
        return self.public.get(kid) if secret is None else ed25519.public_half(secret)

    def kids(self) -> list[str]:
        return [*{**self.entries, **self.public}]

    def with_development(self) -> SigningKeys:
        """Return these keys, followed by the development key unless its kid is taken."""
        development = {DEVELOPMENT_KID: self.entries.get(DEVELOPMENT_KID, _DEVELOPMENT_KEY)}
        return SigningKeys({**self.entries, **development}, self.public)


def looks_like_key(kid: str) -> bool:
    """Return whether `kid` is 32 or more hex digits, so that it may be a secret in the wrong place."""
    return _KEY_LIKE.fullmatch(kid) is not None


def fingerprint(key: bytes) -> str:
    """Return the first 8 hex characters of the key's sha256, which distinguish keys without revealing them."""
    return hashlib.sha256(key).hexdigest()[:8]


def fingerprints(keys: Mapping[str, bytes]) -> list[dict[str, str]]:
    """Return the kid and fingerprint of each key, for the event `security.posture`."""
    return [{"kid": kid, "fingerprint": fingerprint(key)} for kid, key in keys.items()]


def parse_signing_keys(text: str, name: str = "SVC_SIGNING_KEYS") -> SigningKeys:
    """Parse keys in the format of `SVC_SIGNING_KEYS`. An empty text gives no keys. Messages call the text `name`.

    Raises ConfigError, which names the number of the faulty entry or the repeated kid, but never a key.
    """
    return SigningKeys(_parse(text, name))


def load_signing_keys(settings: Settings) -> SigningKeys:
    """Return the signing keys from the settings or from the file they name, and the keys of `SVC_VERIFY_KEYS`.

    Raises ConfigError, also for a kid whose signing key and verification key do not match.
    """
    secret = parse_signing_keys(*key_list(settings.signing_keys, settings.signing_keys_file, "SVC_SIGNING_KEYS"))
    public = _parse(settings.verify_keys, "SVC_VERIFY_KEYS", _PUBLIC_MARK)
    for kid, key in public.items():
        # `public_of` would prefer the secret, and refuse all that the listed public key verifies.
        if secret.public_of(kid) not in (None, key):
            raise ConfigError(f"SVC_VERIFY_KEYS: the kid {kid!r} has another key in SVC_SIGNING_KEYS: rename one")
    return SigningKeys(secret.entries, public)


def public_entry(kid: str, key: bytes) -> str:
    """Return the entry of `SVC_VERIFY_KEYS` for a signing key."""
    return f"{kid}:{_PUBLIC_MARK}{ed25519.public_half(key).hex()}"


def _parse(text: str, name: str, mark: str = "") -> dict[str, bytes]:
    """Return the keys of a list by kid. Keys with `mark` in front are public ones. Raises ConfigError."""
    form = f"give <kid>:{mark}<64 hex characters>, several separated by commas; `svc keygen` prints one"
    keys: dict[str, bytes] = {}
    for number, entry in enumerate(text.split(",") if text.strip() else (), start=1):
        kid, separator, marked = entry.strip().partition(":")
        if not separator or not KID.fullmatch(kid):
            raise ConfigError(f"{name}: entry {number} has no valid kid; {form}")
        if not marked.startswith(mark) or not _HEX.fullmatch(marked.removeprefix(mark)):
            fault = f"the key of entry {number} is not 64 hex characters"
            fault = f"entry {number} is not a public key" if mark else fault
            raise ConfigError(f"{name}: {fault}; {form}")
        key = bytes.fromhex(marked.removeprefix(mark))
        if mark and ed25519.is_weak(key):
            raise ConfigError(f"{name}: entry {number} is a weak key, whose signatures anybody can make")
        if key == (ed25519.public_half(_DEVELOPMENT_KEY) if mark else _DEVELOPMENT_KEY):
            raise ConfigError(f"{name}: the key of entry {number} is the development key, which everyone knows")
        if kid in keys:
            raise ConfigError(f"{name}: the kid {kid!r} is listed twice")
        keys[kid] = key
    return keys


def development_keys() -> SigningKeys:
    """Return the development key, with which unsigned mode signs. Everyone knows it, so signatures prove nothing."""
    return SigningKeys({DEVELOPMENT_KID: _DEVELOPMENT_KEY})


def is_development(kid: str, keys: SigningKeys) -> bool:
    """Return whether the key of `kid` is the development key, which everyone knows."""
    return keys.entries.get(kid) == _DEVELOPMENT_KEY


def signer_fingerprint(key: bytes, signature: Signature) -> str:
    """Return the signer's fingerprint for the header: that of the secret for HMAC, or of the public key for Ed25519.

    Every reader that can verify the signature has the key with this fingerprint.
    """
    return fingerprint(key if signature == "hmac" else ed25519.public_half(key))


def verify(parsed: Parsed, keys: SigningKeys) -> None:
    """Check the signature by the key of the artifact's kid and the algorithm of its format version.

    Raises UnknownKid or SignatureMismatch. Takes about as long as one sha256 of the file and releases the GIL. A
    public key is never used as an HMAC secret, because everyone who knows it could then sign.
    """
    if parsed.format_version == HMAC_VERSION:
        key = keys.entries.get(parsed.kid)
        holds = key is not None and _has_hmac(parsed, key)
    else:
        key = keys.public_of(parsed.kid)
        # An unknown kid is refused without hashing the file, which takes 0.4 s for 650 MiB.
        digest = hashlib.sha256(parsed.signed).digest() if key is not None else b""
        holds = key is not None and ed25519.is_signed(key, parsed.signature, ed25519.ARTIFACT, digest)
    if key is None:
        raise UnknownKid(f"unknown kid: {parsed.kid}; {_unknown_kid_hint(parsed, keys)}")
    if not holds:
        raise SignatureMismatch(f"signature mismatch: {_mismatch_reason(parsed, key)}")


def _has_hmac(parsed: Parsed, key: bytes) -> bool:
    return hmac.compare_digest(hmac.new(key, parsed.signed, "sha256").digest(), parsed.signature)


def _unknown_kid_hint(parsed: Parsed, keys: SigningKeys) -> str:
    if parsed.kid in keys.kids():
        return "its key here only verifies format version 2 (Ed25519), and the artifact has version 1 (HMAC)"
    return f"the kids here are {', '.join(keys.kids())}: add {parsed.kid}:<64 hex characters>"


def _mismatch_reason(parsed: Parsed, key: bytes) -> str:
    """Explain a mismatch by the fingerprint in the header. The header is unverified, so this is only a hint."""
    own = fingerprint(key)
    match = _SIGNED_BY.search(parsed.header_json)
    if match is None:
        return f"another key of the kid {parsed.kid} signed it (here: fingerprint {own}), or the file was changed"
    signer = match[1].decode()
    if signer == own:
        return f"the file was changed after the key {own} of the kid {parsed.kid} signed it"
    return f"another key of the kid {parsed.kid} signed it: fingerprint {signer}, the key here has {own}"
