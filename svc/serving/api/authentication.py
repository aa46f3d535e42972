"""Checks the API keys of clients.

Floods of wrong keys must stay cheap: scrypt runs only for values in the form of a key, in a thread of its own, and only
once for each accepted key. Refusals above a rate are delayed.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Collection, Mapping

import trio

from svc import events, logs
from svc.env_file import key_list
from svc.errors import ConfigError, InvalidApiKey, MissingApiKey
from svc.lru_cache import LruCache
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


class RefusalThrottle:
    """A throttle of refusals.

    The first `burst` refusals are answered at once, and further refusals at `per_s` a second. No refusal waits longer
    than `longest_s`, so a flood has no effect later than `longest_s` after its end.
    """

    def __init__(self, per_s: float, burst: float, longest_s: float) -> None:
        self.per_s, self.burst, self.longest_s = per_s, burst, longest_s
        self._next_s = -math.inf

    def next_wait_s(self) -> float:
        """Count one refusal, and return the seconds to wait before its answer."""
        now_s = trio.current_time()
        self._next_s = self.next_time(self._next_s, now_s)
        return max(self._next_s - now_s, 0.0)

    def next_time(self, last_s: float, now_s: float) -> float:
        """Return the time of the next refusal after one at `last_s`."""
        return min(max(last_s, now_s - self.burst / self.per_s) + 1 / self.per_s, now_s + self.longest_s)


FIRST_SEEN_CLIENTS = 1024
ACCEPTED_KEYS = 1024
# A flood of wrong keys then costs known clients less than a fifth of their rate.
REFUSALS_PER_S, REFUSALS_AT_ONCE = 50.0, 50.0
LONGEST_WAIT_S = 20.0


def _digest_nicely(plaintext: bytes) -> bytes:
    from svc.serving.models.threads import lower_priority

    lower_priority()
    return digest(plaintext)


def key_in(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the API key in X-API-Key, or else in `Authorization: Bearer`, or None."""
    key = headers.get(b"x-api-key")
    if key is None:
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        key = credentials if scheme.lower() == b"bearer" else None
    return key


class Authenticator:
    """Checks API keys. Without configured keys every request passes.

    `log_each_bypass` logs every anonymous request at level debug.
    """

    def __init__(self, keys: dict[str, bytes], *, log_each_bypass: bool = False) -> None:
        self._keys = keys
        self._hashing = trio.CapacityLimiter(1)
        self._log_each_bypass = log_each_bypass
        self._secret = secrets.token_bytes(32)
        self._accepted: LruCache[bytes, str] = LruCache(ACCEPTED_KEYS)
        self._seen: LruCache[str, bool] = LruCache(FIRST_SEEN_CLIENTS)
        self.refusals = RefusalThrottle(REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S)

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def kids(self) -> Collection[str]:
        """Return the kids of all keys."""
        return self._keys.keys()

    def replace(self, keys: dict[str, bytes]) -> None:
        """Replace the keys. Each accepted key is checked again at its next use."""
        self._keys = keys
        self._accepted = LruCache(ACCEPTED_KEYS)

    def kid_of(self, value: bytes) -> str | None:
        """Return the kid of an accepted key, or None if the key was not accepted or has left the cache."""
        return self._accepted.get(self._fingerprint(value))

    def passes(self, value: bytes | None, client: str) -> bool:
        """Return True if no keys are configured, or if this key was accepted before."""
        if not self._keys:
            self._note_bypass(client)
            return True
        return value is not None and self._accepted.get(self._fingerprint(value)) is not None

    async def check(self, value: bytes | None, client: str) -> str:
        """Return the kid of the key, or raise MissingApiKey or InvalidApiKey.

        All refusals share one throttle, so that a flood leaves the event loop to clients with keys. Cancellation
        abandons the hashing thread, because no other request needs its result.
        """
        if value is not None and is_well_formed(value):
            keys = self._keys
            kid = await self._kid_among(keys, value)
            if kid is not None:
                if keys is self._keys:  # an old key must not enter the cache after a replacement during the hashing
                    self._accepted.put(self._fingerprint(value), kid)
                return kid
        if wait_s := self.refusals.next_wait_s():
            await trio.sleep(wait_s)
        logs.emit(events.AUTH_INVALID_KEY, client=client, reason="missing" if value is None else "wrong")
        if value is None:
            raise MissingApiKey
        raise InvalidApiKey

    async def _kid_among(self, keys: Mapping[str, bytes], value: bytes) -> str | None:
        digest = await trio.to_thread.run_sync(_digest_nicely, value, limiter=self._hashing, abandon_on_cancel=True)
        matching_kid = None
        for kid, entry in keys.items():  # compares all keys, so that the time does not reveal which one matched
            if hmac.compare_digest(digest, entry):
                matching_kid = kid
        return matching_kid

    def _fingerprint(self, value: bytes) -> bytes:
        return hashlib.blake2b(value, key=self._secret, digest_size=16).digest()

    def _note_bypass(self, client: str) -> None:
        if self._seen.get(client) is None:
            self._seen.put(client, True)
            logs.emit(events.AUTH_ANONYMOUS_BYPASS_FIRST_SEEN, client=client)
        if self._log_each_bypass:
            logs.emit(events.AUTH_ANONYMOUS_BYPASS, client=client)
