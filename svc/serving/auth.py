"""Client keys: making, hashing and checking them.

A key is 256 random bits, so stretching protects nothing and only feeds floods: scrypt runs once an attempt,
only for values that could be a key, in a thread of its own small limiter, and never again for a key that
was accepted.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

from svc import events, logs
from svc.errors import ConfigError, InvalidApiKey, MissingApiKey

if TYPE_CHECKING:
    import trio

SALT = b"svc.api-key.v1"
PREFIX = "sha256:"
FIRST_SEEN_CLIENTS = 1024
ACCEPTED_KEYS = 1024
HASHING_THREADS = 1
REFUSALS_PER_S = 50.0
REFUSAL_BURST_S = 1.0
LONGEST_WAIT_S = 20.0

_KEY = re.compile(rb"[A-Za-z0-9_-]{43}")
_ENTRY = re.compile(r"(?P<kid>[A-Za-z0-9_.-]{1,64}):sha256:(?P<digest>[0-9a-fA-F]{64})")

Value = TypeVar("Value")


def new_api_key() -> str:
    """43 characters of base64url from 32 random bytes."""
    return secrets.token_urlsafe(32)


def hash_api_key(plaintext: str) -> str:
    """What the server's list holds for this key: `sha256:<hex64>`, a scrypt digest behind a fixed prefix."""
    return PREFIX + _digest(plaintext.encode()).hex()


def parse_api_keys(text: str) -> dict[str, bytes]:
    """Digest by kid from `<kid>:sha256:<hex64>` entries separated by commas.

    Raises ConfigError that names the entry by its place, never by its value.
    """
    keys: dict[str, bytes] = {}
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for place, entry in enumerate(entries, start=1):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"SVC_API_KEYS: entry {place} is not <kid>:sha256:<64 hex characters>; "
                "make one with: svc keygen --type api --kid <kid>"
            )
        if match["kid"] in keys:
            raise ConfigError(f"SVC_API_KEYS: the kid {match['kid']!r} is there twice")
        keys[match["kid"]] = bytes.fromhex(match["digest"])
    return keys


def _digest(plaintext: bytes) -> bytes:
    return hashlib.scrypt(plaintext, salt=SALT, n=2**10, r=8, p=1, dklen=32)


def _digest_nicely(plaintext: bytes) -> bytes:
    from svc.serving.threads import be_nice

    be_nice()
    return _digest(plaintext)


class Recent(Generic[Value]):
    """A mapping of bounded size that forgets what was longest unused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[bytes | str, Value] = OrderedDict()

    def get(self, key: bytes | str) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: bytes | str, value: Value) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)


class Authenticator:
    """Decides whether a request may pass. Without keys everyone may.

    `log_each_bypass` writes the debug record of every anonymous request; it is off unless such records are kept.
    """

    def __init__(self, keys: dict[str, bytes], limiter: trio.CapacityLimiter, *, log_each_bypass: bool = False) -> None:
        self._digests = tuple(keys.values())
        self._limiter = limiter
        self._log_each_bypass = log_each_bypass
        self._secret = secrets.token_bytes(32)
        self._accepted: Recent[bool] = Recent(ACCEPTED_KEYS)
        self._seen: Recent[bool] = Recent(FIRST_SEEN_CLIENTS)
        self._next_refusal = -math.inf

    @property
    def required(self) -> bool:
        return bool(self._digests)

    def passes(self, value: bytes | None, client: str) -> bool:
        """True when the request needs no further check: no keys are configured, or this key was accepted before."""
        if not self._digests:
            self._note_bypass(client)
            return True
        return value is not None and self._accepted.get(self._fingerprint(value)) is not None

    async def check(self, value: bytes | None, client: str) -> None:
        """Hash the key, at most once, and compare it with every entry. Raises MissingApiKey or InvalidApiKey.

        A flood of refusals is slowed down as a whole, so that it leaves the event loop to clients with keys. The
        hashing thread is abandoned on cancel: its result concerns nobody else.
        """
        if value is not None and _KEY.fullmatch(value) and await self._is_known(value):
            self._accepted.put(self._fingerprint(value), True)
            return
        await self._pace_refusals()
        logs.emit(events.AUTH_INVALID_KEY, client=client, reason="missing" if value is None else "wrong")
        if value is None:
            raise MissingApiKey("this endpoint needs the header X-API-Key")
        raise InvalidApiKey("the value of X-API-Key is not a valid key")

    async def _pace_refusals(self) -> None:
        import trio

        now = trio.current_time()
        turn = max(self._next_refusal, now - REFUSAL_BURST_S) + 1 / REFUSALS_PER_S
        self._next_refusal = min(turn, now + LONGEST_WAIT_S)  # so that a flood is forgotten soon after it ends
        if self._next_refusal > now:
            await trio.sleep(self._next_refusal - now)

    async def _is_known(self, value: bytes) -> bool:
        import trio

        digest = await trio.to_thread.run_sync(_digest_nicely, value, limiter=self._limiter, abandon_on_cancel=True)
        known = False
        for entry in self._digests:  # all of them, so that time tells nothing about which one matched
            known |= hmac.compare_digest(digest, entry)
        return known

    def _fingerprint(self, value: bytes) -> bytes:
        return hashlib.blake2b(value, key=self._secret, digest_size=16).digest()

    def _note_bypass(self, client: str) -> None:
        if self._seen.get(client) is None:
            self._seen.put(client, True)
            logs.emit(events.AUTH_ANONYMOUS_BYPASS_FIRST_SEEN, client=client)
        if self._log_each_bypass:
            logs.emit(events.AUTH_ANONYMOUS_BYPASS, client=client)
