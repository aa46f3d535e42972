"""The keys of artifacts, and whether an artifact was signed with one of them.

`SVC_SIGNING_KEYS` holds secrets that sign and verify: as HMAC keys for format version 1, as seeds of Ed25519 keys for
version 2. `SVC_VERIFY_KEYS` holds public halves of the latter: they verify version 2 and nothing else.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from svc.artifact import ed25519
from svc.artifact.layout import HMAC_VERSION, Parsed, Signature
from svc.errors import ConfigError, SignatureMismatch, UnknownKid
from svc.key_files import key_list
from svc.names import KEY_ID
from svc.settings import Settings

KEY_BYTES: Final = 32
DEVELOPMENT_KID: Final = "dev"
_DEVELOPMENT_KEY = hashlib.sha256(b"svc: the development key, known to everyone").digest()
KID = re.compile(KEY_ID)
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_SIGNED_BY = re.compile(rb'"fingerprint":"([0-9a-f]{8})"')
_FORM = "give <kid>:<64 hex characters>, several separated by commas; `svc keygen` prints one"


_PUBLIC_FORM = "give <kid>:ed25519:<64 hex characters>, several separated by commas; `svc keygen` prints one"
_PUBLIC_MARK = "ed25519:"


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """(kid, 32 bytes) pairs in the order of the setting: the first one signs, all of them verify.

    `public` are (kid, 32 bytes) pairs that only verify Ed25519 signatures.
    """

    entries: tuple[tuple[str, bytes], ...] = field(repr=False)
    public: tuple[tuple[str, bytes], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entries or self.public)

    @property
    def active(self) -> tuple[str, bytes]:
        """The pair that signs. Raises ConfigError when there is none."""
        if not self.entries:
            raise ConfigError("SVC_SIGNING_KEYS is empty: make a key with `svc keygen --type signing --kid <kid>`")
        return self.entries[0]

    def get(self, kid: str) -> bytes | None:
        return next((key for name, key in self.entries if name == kid), None)

    def public_of(self, kid: str) -> bytes | None:
        """The Ed25519 public key of that kid, be it listed or half of a listed secret."""
        secret = self.get(kid)
        if secret is not None:
            return ed25519.public_half(secret)
        return next((key for name, key in self.public if name == kid), None)

    def kids(self) -> list[str]:
        return list(dict.fromkeys(kid for kid, _ in (*self.entries, *self.public)))

    def fingerprints(self) -> list[dict[str, str]]:
        """What `security.posture` shows of each key that can sign."""
        return [{"kid": kid, "fingerprint": fingerprint(key)} for kid, key in self.entries]

    def public_fingerprints(self) -> list[dict[str, str]]:
        """What `security.posture` shows of each key that only verifies."""
        return [{"kid": kid, "fingerprint": fingerprint(key)} for kid, key in self.public]

    def with_development(self) -> SigningKeys:
        """These keys, and after them the development key unless its kid is taken."""
        if self.get(DEVELOPMENT_KID) is not None:
            return self
        return SigningKeys((*self.entries, *development_keys().entries), self.public)


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


def load_signing_keys(settings: Settings) -> SigningKeys:
    """The keys that the settings hold, or the file that they name, with those of `SVC_VERIFY_KEYS`.

    Raises ConfigError, also for a kid that has one key to sign with and another to verify with.
    """
    secret = parse_signing_keys(key_list(settings.signing_keys, settings.signing_keys_file, "SVC_SIGNING_KEYS"))
    public: dict[str, bytes] = {}
    for kid, key in _public_entries(settings.verify_keys) if settings.verify_keys.strip() else ():
        if kid in public:
            raise ConfigError(f"SVC_VERIFY_KEYS: the kid {kid!r} stands twice")
        if secret.public_of(kid) not in (None, key):
            raise ConfigError(f"SVC_VERIFY_KEYS: the kid {kid!r} has another key in SVC_SIGNING_KEYS: rename one")
        public[kid] = key
    return SigningKeys(secret.entries, tuple(public.items()))


def _public_entries(text: str) -> Iterator[tuple[str, bytes]]:
    for place, entry in enumerate(text.split(","), start=1):
        kid, separator, rest = entry.strip().partition(":")
        if not separator or not KID.fullmatch(kid):
            raise ConfigError(f"SVC_VERIFY_KEYS: entry {place} has no valid kid; {_PUBLIC_FORM}")
        if not rest.startswith(_PUBLIC_MARK) or not _HEX.fullmatch(rest.removeprefix(_PUBLIC_MARK)):
            raise ConfigError(f"SVC_VERIFY_KEYS: entry {place} is no public key; {_PUBLIC_FORM}")
        key = bytes.fromhex(rest.removeprefix(_PUBLIC_MARK))
        if ed25519.is_weak(key):
            raise ConfigError(f"SVC_VERIFY_KEYS: entry {place} is a weak key, whose signatures anybody can make")
        if key == ed25519.public_half(_DEVELOPMENT_KEY):
            raise ConfigError(f"SVC_VERIFY_KEYS: the key of entry {place} is the development key, which everyone knows")
        yield kid, key


def public_entry(kid: str, key: bytes) -> str:
    """The entry of `SVC_VERIFY_KEYS` for a signing key."""
    return f"{kid}:{_PUBLIC_MARK}{ed25519.public_half(key).hex()}"


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


def signer_fingerprint(key: bytes, signature: Signature) -> str:
    """The fingerprint that a header names: of the secret for HMAC, of the public half for Ed25519.

    Each is the one that every reader of that kind of signature has.
    """
    return fingerprint(key if signature == "hmac" else ed25519.public_half(key))


def verify(parsed: Parsed, keys: SigningKeys) -> None:
    """Return when the artifact was signed with the key that its kid names, in the way of its format version.

    Raises UnknownKid or SignatureMismatch. Takes about as long as one sha256 of the file, without the GIL. A public
    key is never used as a secret: then whoever knows it could sign.
    """
    if parsed.format_version == HMAC_VERSION:
        key = keys.get(parsed.kid)
        holds = key is not None and _has_hmac(parsed, key)
    else:
        key = keys.public_of(parsed.kid)
        digest = hashlib.sha256(parsed.signed).digest() if key is not None else b""
        holds = key is not None and ed25519.is_signed(key, parsed.signature, ed25519.ARTIFACT, digest)
    if key is None:
        raise UnknownKid(f"unknown kid: {parsed.kid}; {_known(parsed, keys)}")
    if not holds:
        raise SignatureMismatch(f"signature mismatch: {_why_not(parsed, key)}")


def _has_hmac(parsed: Parsed, key: bytes) -> bool:
    return hmac.compare_digest(hmac.new(key, parsed.signed, "sha256").digest(), parsed.signature)


def _known(parsed: Parsed, keys: SigningKeys) -> str:
    if parsed.kid in keys.kids():
        return "its key here only verifies format version 2 (Ed25519), and the artifact has version 1 (HMAC)"
    return f"the kids here are {', '.join(keys.kids())}"


def _why_not(parsed: Parsed, key: bytes) -> str:
    """What the fingerprint in the header suggests. It is only read to help whoever looks for the right key."""
    here = fingerprint(key)
    found = _SIGNED_BY.search(parsed.header_json)
    if found is None:
        return f"another key of the kid {parsed.kid} signed it (here: fingerprint {here}), or the file was changed"
    signer = found[1].decode()
    if signer == here:
        return f"the file was changed after the key {here} of the kid {parsed.kid} signed it"
    return f"another key of the kid {parsed.kid} signed it: fingerprint {signer}, the key here has {here}"
