"""Authentication of clients by API keys.

scrypt is slow, so a flood of wrong keys could take the processor from other clients. Measures prevent this: scrypt
runs only for values that have the form of a key, one thread of low priority runs it, accepted keys are cached, and
refusals above a rate are delayed. The thread takes the keys of clients without a wrong key first (`DigestOrder`).
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import trio

from svc import events, logs
from svc.env_file import key_list
from svc.errors import ConfigError, InvalidApiKey, MissingApiKey
from svc.lru_cache import LruCache
from svc.names import KEY_ID
from svc.serving.models.threads import lower_priority
from svc.settings import Settings

# The same salt for all keys, so that a request needs only one scrypt digest to be compared with all keys. Keys have 256
# random bits, so nobody can precompute their digests.
SALT = b"svc.api-key.v1"
# The format of SVC_API_KEYS requires this word, although the digest is scrypt.
PREFIX = "sha256:"

_KEY = re.compile(rb"[A-Za-z0-9_-]{43}")  # base64url
_ENTRY = re.compile(rf"(?P<kid>{KEY_ID}):sha256:(?P<digest>[0-9a-fA-F]{{64}})")


def new_api_key() -> str:
    """Return a new random API key: 32 bytes as 43 characters of base64url."""
    return secrets.token_urlsafe(32)


def hash_api_key(plaintext: str) -> str:
    """Return the part of an entry of SVC_API_KEYS after the key id: `sha256:` and the scrypt digest in hex."""
    return PREFIX + digest(plaintext.encode()).hex()


def parse_api_keys(text: str, name: str = "SVC_API_KEYS") -> dict[str, bytes]:
    """Return the digests of API keys by key id (kid). `text` has entries `<kid>:sha256:<hex64>`, separated by commas.

    Messages call the text `name`. Raises ConfigError for an invalid entry. The message has the number of the entry, and
    never shows the entry itself. Also raises ConfigError for a key id that occurs twice.
    """
    keys: dict[str, bytes] = {}
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for number, entry in enumerate(entries, start=1):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ConfigError(
                f"{name}: entry {number} is not <kid>:sha256:<64 hex characters>; "
                "make one with: svc keygen --type api --kid <kid>"
            )
        if match["kid"] in keys:
            raise ConfigError(f"{name}: the kid {match['kid']!r} is listed twice")
        keys[match["kid"]] = bytes.fromhex(match["digest"])
    return keys


def load_api_keys(settings: Settings) -> dict[str, bytes]:
    """Return the digests of the configured API keys by key id (kid). Raises ConfigError.

    The entries are in SVC_API_KEYS, or in the file that SVC_API_KEYS_FILE names.
    """
    return parse_api_keys(*key_list(settings.api_keys, settings.api_keys_file, "SVC_API_KEYS"))


def digest(plaintext: bytes) -> bytes:
    """Return the scrypt digest of the plaintext, 32 bytes."""
    # Low costs suffice, because keys are random: 1 MiB of memory and 3 to 6 ms a digest.
    return hashlib.scrypt(plaintext, salt=SALT, n=2**10, r=8, p=1, dklen=32)


class RefusalThrottle:
    """A delay of refusals, which keeps a flood of refused requests from using much processor time.

    The first `burst` refusals are sent at once, and further refusals at `per_s` a second. No refusal waits longer than
    `longest_s` seconds, even if refusals then exceed this rate. Each worker process counts its own refusals.
    """

    def __init__(self, per_s: float, burst: float, longest_s: float) -> None:
        self._per_s, self._burst, self._longest_s = per_s, burst, longest_s
        self._next_s = -math.inf
        """Time at which the last counted refusal is due. If it has passed, the refusal was sent at once."""

    def next_wait_s(self) -> float:
        """Count one refusal, and return the seconds to wait before it is sent."""
        now_s = trio.current_time()
        # The generic cell rate algorithm: a single time stands for the state of a whole token bucket.
        next_s = max(self._next_s, now_s - self._burst / self._per_s) + 1 / self._per_s
        self._next_s = min(next_s, now_s + self._longest_s)
        return max(self._next_s - now_s, 0.0)


FIRST_SEEN_CLIENTS = 1024
"""Maximum number of clients that a server without keys remembers, so that the log names each of them only once."""
WRONG_FOR_S = 60.0
"""Time after a wrong key in which a client's further unknown keys go behind those of other clients."""
# With these limits, a flood of wrong keys lowers the rate of answers to other clients by less than a fifth.
REFUSALS_PER_S, REFUSALS_AT_ONCE = 50.0, 50.0
LONGEST_WAIT_S = 20.0


def _find(keys: Mapping[str, bytes], plaintext: bytes) -> str | None:
    """Return the key id of a key, or None. Computes the scrypt digest at low priority."""

    lower_priority()
    computed, matching_kid = digest(plaintext), None
    for kid, entry in keys.items():  # compares all keys, so that the time does not reveal which one matched
        if hmac.compare_digest(computed, entry):
            matching_kid = kid
    return matching_kid


def key_in(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the API key of a request, from X-API-Key or else from `Authorization: Bearer`, or None without a key."""
    key = headers.get(b"x-api-key")
    if key is None:
        scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
        key = credentials if scheme.lower() == b"bearer" else None
    return key


class DigestOrder:
    """The order in which unknown keys get the one thread of scrypt.

    Keys of clients without a wrong key go first. Among the others, the newest and the oldest are taken in turns: in the
    order of arrival 450 wrong keys a second held up a good key from the same address for 1.5 s, and newest first 31 of
    50 good keys were still waiting after 5 s.
    """

    def __init__(self) -> None:
        self._waiting = deque[trio.Event](), deque[trio.Event]()
        """Those that wait: of clients without and with a wrong key, in the order of arrival."""
        self._takes_oldest = self._busy = False
        self._wrong: LruCache[str, float] = LruCache(FIRST_SEEN_CLIENTS)

    def note_wrong(self, client: str) -> None:
        """Note that a client has sent a wrong key."""
        self._wrong.put(client, trio.current_time())

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until this client may compute a digest."""
        if self._busy:
            wrong_at = self._wrong.get(client)
            waiting = self._waiting[wrong_at is not None and trio.current_time() < wrong_at + WRONG_FOR_S]
            turn = trio.Event()
            waiting.append(turn)
            try:
                await turn.wait()
            except trio.Cancelled:
                # A turn that was given before the cancellation goes to the next one.
                if turn in waiting:
                    waiting.remove(turn)
                else:
                    self._next()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        waiting = self._waiting[0] or self._waiting[1]
        # Stays true for the one that is woken, so that nobody overtakes before its task runs.
        self._busy = bool(waiting)
        if len(waiting) > 1:
            turn = waiting.popleft() if self._takes_oldest else waiting.pop()
            self._takes_oldest = not self._takes_oldest
            turn.set()
        elif waiting:
            waiting.pop().set()


class Authenticator:
    """A checker of API keys with a cache of accepted keys. Without configured keys every request passes.

    With `log_each_bypass` each request to a server without keys is logged, not only the first request of a client.
    """

    def __init__(self, keys: dict[str, bytes], *, log_each_bypass: bool = False) -> None:
        self._keys = keys
        self._hashing = trio.CapacityLimiter(1)
        self._log_each_bypass = log_each_bypass
        self._secret = secrets.token_bytes(32)
        # Has at most one entry for each configured key, because only those are accepted.
        self._accepted: dict[bytes, tuple[str, bytes]] = {}
        self._order = DigestOrder()
        self._seen: LruCache[str, bool] = LruCache(FIRST_SEEN_CLIENTS)
        self.refusals = RefusalThrottle(REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S)

    @property
    def required(self) -> bool:
        """True if clients need a key."""
        return bool(self._keys)

    def kids(self) -> Collection[str]:
        """Return the key ids of all keys."""
        return self._keys.keys()

    def replace(self, keys: dict[str, bytes]) -> None:
        """Replace the keys. Accepted keys whose digest is still listed stay accepted, under their present key id."""
        self._keys = keys
        kids = {digest: kid for kid, digest in keys.items()}
        self._accepted = {
            mark: (kids[digest], digest) for mark, (_, digest) in self._accepted.items() if digest in kids
        }

    def kid_of(self, value: bytes) -> str | None:
        """Return the key id of an accepted key, or None if the key was not accepted so far."""
        accepted = self._accepted.get(self._fingerprint(value))
        return None if accepted is None else accepted[0]

    def note_bypass(self, client: str) -> None:
        """Log the first request of a client to a server without keys, and each request with `log_each_bypass`."""
        if self._seen.get(client) is None:
            self._seen.put(client, True)
            logs.emit(events.AUTH_ANONYMOUS_BYPASS_FIRST_SEEN, client=client)
        if self._log_each_bypass:
            logs.emit(events.AUTH_ANONYMOUS_BYPASS, client=client)

    async def check(self, value: bytes | None, client: str) -> str:
        """Return the key id of a key. Raises MissingApiKey or InvalidApiKey, after the delay of `refusals`.

        Cancellation does not wait for the thread that computes the digest.
        """
        if value is not None and _KEY.fullmatch(value):
            async with self._order.turn(client):
                if (kid := self.kid_of(value)) is not None:  # another request with this key was first
                    return kid
                keys = self._keys
                kid = await trio.to_thread.run_sync(_find, keys, value, limiter=self._hashing, abandon_on_cancel=True)
            if kid is not None:
                if keys is self._keys:  # else the keys were replaced meanwhile, and this key may be revoked
                    self._accepted[self._fingerprint(value)] = kid, keys[kid]
                return kid
            self._order.note_wrong(client)
        if wait_s := self.refusals.next_wait_s():
            await trio.sleep(wait_s)
        logs.emit(events.AUTH_INVALID_KEY, client=client, reason="missing" if value is None else "wrong")
        if value is None:
            raise MissingApiKey
        raise InvalidApiKey

    def _fingerprint(self, value: bytes) -> bytes:
        """Return a fast keyed hash, under which the cache finds a key without holding its plaintext."""
        return hashlib.blake2b(value, key=self._secret, digest_size=16).digest()
