"""Policies of API keys: the recipes and verbs that a key may use, its rate, and its expiry."""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import math
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from svc import events, logs
from svc.errors import ApiError, ConfigError, KeyNotAllowed, RateLimited, RecipeError
from svc.metrics import KEY_REFUSALS, Metrics
from svc.names import KEY_ID
from svc.recipe.problems import field_path, nearest, shown
from svc.recipe.yaml_reader import MAX_BYTES, parse_yaml
from svc.serving.api.authentication import RefusalThrottle
from svc.serving.api.bodies.fields import MAX_BATCH
from svc.serving.api.endpoint import Endpoint

MAX_PATTERNS = 1_000
REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S = 100.0, 200.0, 10.0
"""Throttle of refusals for each key.

A refusal takes about 0.1 ms, so a key that ignores 429 costs about 1% of a core. A key with fewer than 1,000 requests
in flight gets each refusal within LONGEST_WAIT_S.
"""
TOO_MANY_AT_ONCE = (
    "this request counts {count}, more than the burst of {burst:g} that the policy of this API key allows at once:"
    " ask for less in one request, or for a higher burst"
)
MAX_BURST = 1_000_000_000
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"(?P<count>[0-9]{1,9}(?:\.[0-9]{1,6})?)/(?P<unit>s|min|h)")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_KID = re.compile(KEY_ID)
# Sums of charges are inexact: without this, a wait of n seconds could be answered as n + 1.
_ROUNDING = 1e-9


def _rate(text: str) -> str:
    match = _RATE.fullmatch(text)
    if match is None or not float(match["count"]):
        raise ValueError("is not a rate above zero such as 200/s, 30/min or 1000/h")
    return text


def _day(text: str) -> str:
    with contextlib.suppress(ValueError):
        if _DAY.fullmatch(text) and datetime.date.fromisoformat(text):
            return text
    raise ValueError("is not a day such as 2027-01-01")


Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?-]{1,64}$")]


class PolicySpec(BaseModel):
    """One entry of the file. A missing field sets no bound."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    recipes: Annotated[list[Pattern], Field(max_length=MAX_PATTERNS)] | None = None
    verbs: list[Literal["recommend", "recommend-related", "recommend-users"]] | None = None
    rate: Annotated[str, AfterValidator(_rate)] | None = None
    burst: Annotated[int, Field(ge=1, le=MAX_BURST)] | None = None
    expires: Annotated[str, AfterValidator(_day)] | None = None

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> PolicySpec:
        if self.burst is not None and self.rate is None:
            raise ValueError("burst says nothing without rate")
        return self


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate limit: `per_s` requests a second on average, and at most `burst` at once."""

    per_s: float
    burst: float


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Permissions and rate of one key. None sets no bound. `expires_at` is Unix time in seconds."""

    recipes: re.Pattern[str] | None = None
    verbs: frozenset[str] | None = None
    rate: Rate | None = None
    expires_at: float = math.inf

    @classmethod
    def of(cls, spec: PolicySpec) -> KeyPolicy:
        return cls(
            recipes=None if spec.recipes is None else _names(spec.recipes),
            verbs=None if spec.verbs is None else frozenset(spec.verbs),
            rate=None if spec.rate is None else _rate_of(spec.rate, spec.burst),
            expires_at=math.inf if spec.expires is None else _beginning_of(spec.expires),
        )

    def may_ask(self, recipe: str) -> bool:
        """Return True if the key may use a recipe of this name, whether it exists or not."""
        return self.recipes is None or self.recipes.fullmatch(recipe) is not None

    def allows(self, endpoint: Endpoint, recipe: str) -> bool:
        """Return True if the key may use an endpoint. `recipe` is the name in the path, or ""."""
        if endpoint.tells_of_all and self.recipes is not None:
            return False
        if recipe and not self.may_ask(recipe):
            return False
        verb = endpoint.policy_verb
        return not verb or self.verbs is None or verb in self.verbs


def _names(patterns: list[str]) -> re.Pattern[str]:
    """Return a regular expression that matches any of the patterns, or nothing for an empty list.

    `*` stands for any characters and `?` for one. `fnmatch` never backtracks into a `*`, so clients cannot choose names
    that take long.
    """
    any_of = "|".join(fnmatch.translate(pattern) for pattern in patterns)
    return re.compile(rf"\A(?:{any_of})" if any_of else r"(?!)")


def _rate_of(text: str, burst: int | None) -> Rate:
    match = _RATE.fullmatch(text)
    assert match is not None, "the specification was validated"
    per_s = float(match["count"]) / _SECONDS[match["unit"]]
    return Rate(per_s, float(max(1.0, per_s) if burst is None else burst))


def _beginning_of(day: str) -> float:
    """Return 00:00 UTC of the day, as Unix time in seconds."""
    return datetime.datetime.combine(datetime.date.fromisoformat(day), datetime.time(), datetime.UTC).timestamp()


def parse_policies(data: bytes, where: str) -> dict[str, KeyPolicy]:
    """Return the policies of a file by kid. Raises ConfigError with the kid and the field."""
    try:
        tree = parse_yaml(data, where) if data.strip() else None
    except RecipeError as error:
        raise ConfigError(f"SVC_API_KEY_POLICIES: {error.message}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: holds no mapping of kids to policies; {{}} bounds no key")
    return {kid: _parse_one(kid, entry, where) for kid, entry in tree.items()}


def _parse_one(kid: str, entry: Any, where: str) -> KeyPolicy:
    if not _KID.fullmatch(kid):
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: {shown(kid)} is no kid: it must match {KEY_ID}")
    try:
        return KeyPolicy.of(PolicySpec.model_validate(entry))
    except ValidationError as error:
        raise ConfigError(f"SVC_API_KEY_POLICIES: {where}: {kid}: {_message_of(error)}") from None


def _message_of(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = field_path(first["loc"])
    if first["type"] == "extra_forbidden":
        near = nearest(field, PolicySpec.model_fields)
        meant = f"did you mean `{near}`? " if near else ""
        return f"{field}: unknown key; {meant}allowed: {', '.join(PolicySpec.model_fields)}"
    reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return f"{field}: {shown(first['input'])}: {reason}" if field else reason


class Bucket:
    """A token bucket for the requests of one key, full at the beginning."""

    def __init__(self, rate: Rate, now_s: float) -> None:
        self.rate = rate
        self.tokens = rate.burst
        self._at_s = now_s

    def lacks_s(self, count: float, now_s: float) -> float:
        """Return the seconds until `count` requests, at most `burst`, can pass, or 0 if they can now."""
        self.tokens = min(self.rate.burst, self.tokens + (now_s - self._at_s) * self.rate.per_s)
        self._at_s = now_s
        return self.time_for(count - self.tokens)

    def time_for(self, lacking: float) -> float:
        """Return the seconds until the bucket gains `lacking` tokens, or 0 if none are lacking."""
        return lacking / self.rate.per_s if lacking > _ROUNDING else 0.0

    def add(self, count: float) -> None:
        """Return `count` tokens to the bucket, or charge a negative `count`."""
        self.tokens += count


class Permit:
    """One request that the policy of its key allows."""

    __slots__ = ("_bucket", "_charged", "_kid", "_policies", "policy")

    def __init__(self, kid: str, policy: KeyPolicy, bucket: Bucket | None, policies: KeyPolicies) -> None:
        self._kid = kid
        self.policy = policy
        self._bucket = bucket
        self._charged = 0
        self._policies = policies

    def require(self, count: int) -> None:
        """Raise RateLimited unless `count` requests can pass now."""
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
        """Charge the key `count` requests in total, or raise RateLimited and charge nothing.

        `least` is the number of queries in `count`, and the rest estimates their costs. With `least`, a `count` above
        the burst is cut to the burst, so that no estimate refuses a request for good.
        """
        if self._bucket is None:
            return
        self._bucket.add(self._charged)
        self._charged = 0
        if least is not None and least <= self._bucket.rate.burst:
            count = min(count, math.floor(self._bucket.rate.burst))
        self.require(count)
        self._bucket.add(-count)
        self._charged = count


class KeyPolicies:
    """The current policies, and the bucket of each key."""

    def __init__(self, metrics: Metrics, policies: Mapping[str, KeyPolicy] | None = None) -> None:
        self._policies = policies or {}
        self.new_bucket: Callable[[str, Rate], Bucket] = lambda _, rate: Bucket(rate, trio.current_time())
        self.new_throttle: Callable[[str], RefusalThrottle] = lambda _: RefusalThrottle(
            REFUSALS_PER_S, REFUSALS_AT_ONCE, LONGEST_WAIT_S
        )
        self._metrics = metrics
        self._buckets: dict[str, Bucket] = {}
        self._throttles: dict[str, RefusalThrottle] = {}

    def replace(self, policies: Mapping[str, KeyPolicy]) -> None:
        """Replace the policies. Charged requests of a key stay charged."""
        self._policies = policies
        self._throttles = {kid: throttle for kid, throttle in self._throttles.items() if kid in policies}
        for kid in list(self._buckets):
            policy = policies.get(kid)
            if policy is None or policy.rate is None:
                del self._buckets[kid]
            else:
                self._buckets[kid].rate = policy.rate

    def admit(self, kid: str, endpoint: Endpoint, recipe: str) -> Permit | None:
        """Return the permit of a request, or None for a key without a policy. Raises KeyNotAllowed or RateLimited.

        A batch is charged when its body is parsed. Here its key only needs one token.
        """
        policy = self._policies.get(kid)
        if policy is None:
            return None
        if time.time() >= policy.expires_at:
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
        if policy.rate is None:
            return None
        bucket = self._buckets.get(kid)
        if bucket is None:
            bucket = self._buckets[kid] = self.new_bucket(kid, policy.rate)
        return bucket

    def next_wait_s(self, refusal: ApiError) -> float:
        """Return the seconds to wait before a refusal by these policies is sent."""
        kid = refusal.fields["kid"]
        throttle = self._throttles.get(kid)
        if throttle is None:
            throttle = self._throttles[kid] = self.new_throttle(kid)
        return throttle.next_wait_s()

    def count(self, error: ApiError) -> ApiError:
        """Count the error for its kid, and return it."""
        self._metrics.of(KEY_REFUSALS, kid=error.fields["kid"], code=error.code).inc()
        return error


def elements_in(body: bytes | Mapping[str, Any]) -> int:
    """Return the number of requests in a batch before its validation, or 1 if the batch is invalid."""
    try:
        whole = from_json(body) if isinstance(body, bytes) else body
    except ValueError:
        return 1
    requests = whole.get("requests") if isinstance(whole, Mapping) else None
    return len(requests) if isinstance(requests, list) and 1 <= len(requests) <= MAX_BATCH else 1


class PolicyFile:
    """Watches the file, and calls each of `uses` with its policies.

    `kids` returns the kids of all keys. Policies for other kids are logged.
    """

    def __init__(
        self,
        path: str,
        *uses: Callable[[Mapping[str, KeyPolicy]], None],
        kids: Callable[[], Collection[str]],
        interval_s: float,
    ) -> None:
        self._path = Path(path)
        self._uses = uses
        self._kids = kids
        self._interval_s = interval_s
        self._marker: tuple[int, ...] | None = None
        self._error: str | None = None

    def read(self) -> None:
        """Read the file at the start. Raises ConfigError."""
        self._use(self._read())

    async def run(self) -> None:
        """Check for changes every `interval_s`, until cancelled.

        An unusable file changes nothing, and is logged once for each change. Waits for a read that hangs. Repeats a
        read that fails.
        """
        while True:
            await trio.sleep(self._interval_s)
            await self._check()

    async def _check(self) -> None:
        try:
            policies = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except ConfigError as error:
            message = error.message
        except RuntimeError as error:  # the system cannot start another thread
            self._marker, message = None, f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error}"
        else:
            self._use(policies)
            return
        if self._marker is not None or message != self._error:
            self._error = message
            logs.emit(events.KEY_POLICIES_FAILED, error=message)

    def _use(self, policies: Mapping[str, KeyPolicy] | None) -> None:
        """Pass the policies on, if the file has changed."""
        if policies is None:
            return
        self._error = None
        for use in self._uses:
            use(policies)
        kids_of_keys = self._kids()
        unknown = sorted(kid for kid in policies if kid not in kids_of_keys)
        logs.emit(events.KEY_POLICIES_LOADED, policies=len(policies), unknown_kids=unknown)
        if unknown:
            logs.emit(events.KEY_POLICIES_WITHOUT_KEY, unknown_kids=unknown)

    def _read(self) -> Mapping[str, KeyPolicy] | None:
        """Return the policies, or None if the file is unchanged. Raises ConfigError."""
        try:
            status = self._path.stat()  # before the read, so that the next check notices a write in between
            marker = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if marker == self._marker:
                return None
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            self._marker = None  # the file may become readable without a change
            raise ConfigError(f"SVC_API_KEY_POLICIES: {self._path} cannot be read: {error.strerror}") from None
        self._marker = marker
        return parse_policies(content, str(self._path))
