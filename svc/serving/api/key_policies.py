"""Policies of API keys. A policy limits the recipes and verbs that a key may use, its rate, and its lifetime.

The policies are in a YAML file (SVC_API_KEY_POLICIES), which is read again when it changes.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from svc import events, logs
from svc.asking.requests import MAX_BATCH
from svc.errors import ApiError, ConfigError, KeyNotAllowed, RateLimited, RecipeError
from svc.metrics import KEY_REFUSALS, Metrics
from svc.names import KEY_ID, did_you_mean
from svc.recipe.problems import field_path, shown
from svc.recipe.yaml_reader import parse_yaml
from svc.serving.api.authentication import RefusalThrottle
from svc.serving.api.endpoint import Endpoint

MAX_PATTERNS = 1_000
MAX_BYTES, MAX_VALUES = 8 << 20, 400_000
"""Bounds of the policy file. 10,000 keys with five fields each have 160,000 values, which take 8 s to read."""
REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S = 100.0, 200.0, 10.0
"""The first REFUSALS_AT_ONCE refusals of a key are sent at once, and further refusals at REFUSALS_PER_S a second.

A refusal takes about 0.1 ms of processor time, so a client that ignores 429 costs about 1% of a core. No refusal waits
longer than LONGEST_WAIT_S.
"""
TOO_MANY_AT_ONCE = (
    "this request counts as {count}, more than the burst of {burst:g} that the policy of this API key allows at once:"
    " ask for less in one request, or for a higher burst"
)
MAX_BURST = 1_000_000_000
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"(?P<count>[0-9]{1,9}(?:\.[0-9]{1,6})?)/(?P<unit>s|min|h)")
_KID = re.compile(KEY_ID)
# Tolerance for floating-point errors in the number of tokens. Without it, Retry-After could be a second too long.
_ROUNDING = 1e-9


def _per_s(text: object) -> float:
    """Return the requests a second that a text such as "30/min" means."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or not float(match["count"]):
        raise ValueError("is not a rate above zero such as 200/s, 30/min or 1000/h")
    return float(match["count"]) / _SECONDS[match["unit"]]


def _beginning_of(day: object) -> float:
    """Return 00:00 UTC of a day such as "2027-01-01" as Unix time in seconds, or infinity for None."""
    if day is None:
        return math.inf
    with contextlib.suppress(ValueError):
        if isinstance(day, str) and re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", day):
            return datetime.datetime.fromisoformat(f"{day}T00:00Z").timestamp()
    raise ValueError("is not a day such as 2027-01-01")


Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?-]{1,64}$")]


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: `per_s` requests a second on average, and at most `burst` requests at once."""

    per_s: float
    burst: float


class KeyPolicy(BaseModel):
    """The policy of one key, an entry of the policy file. A missing field limits nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    recipes: Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)] | None = None
    verbs: list[Literal["recommend", "recommend-related", "recommend-users", "page", "rerank"]] | None = None
    rate: Annotated[float, BeforeValidator(_per_s)] | None = None
    """Requests a second. The file has a text such as "30/min"."""
    burst: Annotated[int, Field(ge=1, le=MAX_BURST)] | None = None
    expires: Annotated[float, BeforeValidator(_beginning_of)] = math.inf
    """Unix time in seconds. The file has a day."""

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> KeyPolicy:
        if self.burst is not None and self.rate is None:
            raise ValueError("burst has no effect without rate")
        return self

    @property
    def limit(self) -> Rate | None:
        """The rate limit. By default `burst` is the number of requests in one second, at least 1."""
        return None if self.rate is None else Rate(self.rate, float(self.burst or max(1.0, self.rate)))

    @cached_property
    def _names(self) -> re.Pattern[str]:
        """Matches the names of recipes that the key may use, and no name if `recipes` is empty.

        In `recipes`, `*` stands for any characters and `?` for one character.
        """
        # `fnmatch` translates `*` to an expression without backtracking, so no name that a client invents takes long.
        any_of = "|".join(fnmatch.translate(pattern) for pattern in self.recipes or ())
        return re.compile(rf"\A(?:{any_of})" if any_of else r"(?!)")

    def may_ask(self, recipe: str) -> bool:
        """Return True if the policy permits recipes of this name. Such a recipe need not exist."""
        return self.recipes is None or self._names.fullmatch(recipe) is not None

    def allows(self, endpoint: Endpoint, recipe: str) -> bool:
        """Return True if the policy permits an endpoint. `recipe` is the name in the path, or ""."""
        if endpoint.tells_of_all and self.recipes is not None:
            return False
        if recipe and not self.may_ask(recipe):
            return False
        verb = endpoint.policy_verb
        return not verb or self.verbs is None or verb in self.verbs


def parse_policies(data: bytes, where: str) -> dict[str, KeyPolicy]:
    """Return the policies in the content of a policy file, by key id (kid).

    `where` names the file in messages. Raises ConfigError if the file is invalid. If a single policy is invalid, the
    message names its key id and field.
    """
    try:
        tree = parse_yaml(data, where, most_bytes=MAX_BYTES, most_values=MAX_VALUES) if data.strip() else None
    except RecipeError as error:
        raise ConfigError(f"SVC_API_KEY_POLICIES: {error.message}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: is not a mapping of kids to policies; {{}} limits no key")
    return {kid: _parse_one(kid, entry, where) for kid, entry in tree.items()}


def _parse_one(kid: str, entry: Any, where: str) -> KeyPolicy:
    if not _KID.fullmatch(kid):
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: {shown(kid)} is not a kid: it must match {KEY_ID}")
    try:
        return KeyPolicy.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: {kid}: {_message_of(error)}") from None


def _message_of(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        meant = did_you_mean(field, KeyPolicy.model_fields, "`")
        return f"{field}: unknown key; {meant}allowed: {', '.join(KeyPolicy.model_fields)}"
    reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return f"{field}: {shown(first['input'])}: {reason}" if field else reason


class Bucket:
    """A token bucket, which limits the rate of the requests of one key. It is full in the beginning.

    A request takes one token, or several if it is expensive. Times are on trio's clock.
    """

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self.tokens = rate.burst
        self._at_s = now_s

    def lacks_s(self, count: float, now_s: float) -> float:
        """Return the seconds until the bucket has `count` tokens, or 0 if it has them now.

        `count` is at most `burst`.
        """
        self.tokens = min(self.rate.burst, self.tokens + (now_s - self._at_s) * self.rate.per_s)
        self._at_s = now_s
        return self.time_for(count - self.tokens)

    def time_for(self, lacking: float) -> float:
        """Return the seconds in which the bucket gains `lacking` tokens, or 0 if `lacking` is not above 0."""
        return lacking / self.rate.per_s if lacking > _ROUNDING else 0.0

    def add(self, count: float) -> None:
        """Put `count` tokens into the bucket, or take tokens if `count` is negative."""
        self.tokens += count


@dataclass(slots=True, eq=False)
class Permit:
    """The permission for one request, with the tokens that the request has taken from the key's bucket."""

    _kid: str
    policy: KeyPolicy
    _bucket: Bucket | None
    _policies: KeyPolicies
    _charged: int = 0

    def require(self, count: int) -> None:
        """Raise RateLimited if the bucket has fewer than `count` tokens now. Takes no tokens."""
        if self._bucket is None:
            return
        burst = self._bucket.rate.burst
        if count > burst:
            raise self._policies.count(
                RateLimited(TOO_MANY_AT_ONCE.format(count=count, burst=burst), fields={"kid": self._kid})
            )
        wait_s = self._bucket.lacks_s(count, trio.current_time())
        if wait_s:
            retry_after = max(1, math.ceil(wait_s - _ROUNDING))
            raise self._policies.count(RateLimited(fields={"kid": self._kid, "retry_after": retry_after}))

    def charge(self, count: int, least: int | None = None) -> None:
        """Take `count` tokens for this request in total, or raise RateLimited and take none.

        An earlier charge of the same request is given back first, even if this charge is refused. Without `least`,
        `count` is a number of requests, and a `count` above the burst is always refused. With `least`, `count` is the
        cost of `least` requests. A cost above the burst is then reduced to the burst, because otherwise the requests
        could never pass. If `least` itself exceeds the burst, nothing is reduced.
        """
        if self._bucket is None:
            return
        self._bucket.add(self._charged)
        self._charged = 0
        if least is not None and least <= self._bucket.rate.burst:
            # A rate such as 3.5/s makes a burst of 3.5 tokens, and counts are whole numbers.
            count = min(count, math.floor(self._bucket.rate.burst))
        self.require(count)
        self._bucket.add(-count)
        self._charged = count


class KeyPolicies:
    """The current policies of all keys, with a token bucket and a throttle of refusals for each key."""

    def __init__(self, metrics: Metrics, policies: Mapping[str, KeyPolicy] | None = None) -> None:
        self._policies = policies or {}
        # Replaced by workers, whose buckets lie in memory that all of them share.
        self.new_bucket: Callable[[str, Rate], Bucket] = lambda _, rate: Bucket(rate, trio.current_time())
        self._metrics = metrics
        self._buckets: dict[str, Bucket] = {}
        self._throttles = defaultdict[str, RefusalThrottle](
            lambda: RefusalThrottle(REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S)
        )

    def replace(self, policies: Mapping[str, KeyPolicy]) -> None:
        """Replace the policies. A key that keeps a rate limit also keeps its tokens, so a reload fills no bucket."""
        self._policies = policies
        for kid in self._throttles.keys() - policies.keys():
            del self._throttles[kid]
        for kid in list(self._buckets):
            limit = policies[kid].limit if kid in policies else None
            if limit is None:
                del self._buckets[kid]
            else:
                self._buckets[kid].rate = limit

    def admit(self, kid: str, endpoint: Endpoint, recipe: str) -> Permit | None:
        """Return the permit of a request, or None for a key without a policy. Raises KeyNotAllowed or RateLimited.

        Takes one token for a single request. For a batch, it only checks that the bucket has a token, because a batch
        is charged after its body is read.
        """
        policy = self._policies.get(kid)
        if policy is None:
            return None
        # A day of the calendar, which trio's clock does not know.
        if time.time() >= policy.expires:
            raise self.count(KeyNotAllowed("the policy of this API key has expired", fields={"kid": kid}))
        if not policy.allows(endpoint, recipe):
            raise self.count(KeyNotAllowed(fields={"kid": kid}))
        permit = Permit(kid, policy, self._bucket(kid, policy), self)
        if endpoint.is_batch:
            permit.require(1)
        else:
            permit.charge(1)
        return permit

    def _bucket(self, kid: str, policy: KeyPolicy) -> Bucket | None:
        bucket = self._buckets.get(kid)
        if bucket is None and (limit := policy.limit) is not None:
            bucket = self._buckets[kid] = self.new_bucket(kid, limit)
        return bucket

    def next_wait_s(self, refusal: ApiError) -> float:
        """Count a refusal of a key, and return the seconds to wait before it is sent."""
        return self._throttles[refusal.fields["kid"]].next_wait_s()

    def count(self, error: ApiError) -> ApiError:
        """Count the refusal in the metrics of its key, and return the error."""
        self._metrics.of(KEY_REFUSALS, kid=error.fields["kid"], code=error.code).inc()
        return error


def elements_in(body: bytes | Mapping[str, Any]) -> int:
    """Return the number of requests in a batch that has not been validated.

    Returns 1 if the body is no JSON, or has no list `requests` of 1 to MAX_BATCH elements.
    """
    try:
        whole = from_json(body) if isinstance(body, bytes) else body
    except ValueError:
        return 1
    requests = whole.get("requests") if isinstance(whole, Mapping) else None
    return len(requests) if isinstance(requests, list) and 1 <= len(requests) <= MAX_BATCH else 1


@dataclass(slots=True, eq=False)
class PolicyFile:
    """A watcher of the policy file. It passes new policies to all functions in `uses`.

    `kids` returns the key ids of all keys. Policies for other key ids are logged.
    """

    path: Path
    uses: Sequence[Callable[[Mapping[str, KeyPolicy]], None]]
    kids: Callable[[], Collection[str]]
    interval_s: float
    _marker: tuple[int, ...] | None = None
    _error: str | None = None

    def read(self) -> None:
        """Read the file for the first time, and pass its policies on. Raises ConfigError."""
        self._use(self._read())

    async def run(self) -> None:
        """Read the file again every `interval_s` if it has changed, until cancelled.

        If the file is invalid or unreadable, the policies stay as they are. The error is logged once, and again only
        after a change of the file or of the error.
        """
        while True:
            await trio.sleep(self.interval_s)
            await self._check()

    async def _check(self) -> None:
        try:
            # Abandoned, because a file system that hangs must not hold up the end of the server.
            policies = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except ConfigError as error:
            message = error.message
        except RuntimeError as error:  # the system cannot start another thread
            self._marker, message = None, f"SVC_API_KEY_POLICIES: {self.path} cannot be read: {error}"
        else:
            self._use(policies)
            return
        # A file that cannot be read has no marker, and the same error of it is logged once.
        if self._marker is not None or message != self._error:
            self._error = message
            logs.emit(events.KEY_POLICIES_FAILED, error=message)

    def _use(self, policies: Mapping[str, KeyPolicy] | None) -> None:
        """Pass the policies on. Does nothing if `policies` is None, which means that the file has not changed."""
        if policies is None:
            return
        self._error = None
        for use in self.uses:
            use(policies)
        kids_of_keys = self.kids()
        unknown = sorted(kid for kid in policies if kid not in kids_of_keys)
        logs.emit(events.KEY_POLICIES_LOADED, policies=len(policies), unknown_kids=unknown)
        if unknown:
            logs.emit(events.KEY_POLICIES_WITHOUT_KEY, unknown_kids=unknown)

    def _read(self) -> Mapping[str, KeyPolicy] | None:
        """Return the policies, or None if the file has not changed since the last read. Raises ConfigError."""
        try:
            status = self.path.stat()  # before the read, so that the next check notices a write in between
            marker = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if marker == self._marker:
                return None
            with self.path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._marker = None  # reads again next time, because the file may become readable without a change
            raise ConfigError(f"SVC_API_KEY_POLICIES: {self.path} cannot be read: {error.strerror}") from None
        self._marker = marker
        return parse_policies(content, str(self.path))
