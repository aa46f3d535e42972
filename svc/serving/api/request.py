"""A request as the application handles it, with the checks of its head and its key, and the state of the server."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from svc import events, logs
from svc.errors import AmbiguousLength, ApiError, EncodingNotSupported
from svc.metrics import AUTH_FAILURES, Metrics
from svc.serving.admission import TIMEOUT_HEADER, Admission, WaitBudget
from svc.serving.api.authentication import Authenticator, key_in
from svc.serving.api.bodies.reading import Bodies, Body
from svc.serving.api.endpoint import Endpoint, Route
from svc.serving.api.endpoints import Router
from svc.serving.api.experiments import Shadows
from svc.serving.api.headers import PREFLIGHT_HEADERS, HostRules, Origins, Target, parse_host, parse_target, parse_trace
from svc.serving.api.key_policies import KeyPolicies, Permit, PolicyFile
from svc.serving.models.console import ReadVersions
from svc.serving.models.registry import Registry
from svc.serving.precedence import Precedence
from svc.serving.served_log import ServedLogs
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import run_until
from svc.serving.transport.messages import ClientGone, Head, Headers, Incoming, Response
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.spans import Spans  # needs the extra "otel"


REPORT_S = 10.0
"""Seconds that one summary of refused requests covers."""


class Refusals:
    """Counts of refusals for the event `requests_refused`, by error code and key id (kid).

    Counts only errors with `ApiError.protects_others`. They may be very frequent, and logging each of them would cost
    too much. The key id is None unless the policy of a key refused the request.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._some = trio.Event()

    def note(self, error: ApiError) -> None:
        """Count one refusal. `fields` of the error has the key id if a policy refused the request."""
        self._counts[error.code, error.fields.get("kid")] += 1
        self._some.set()

    async def run(self) -> None:
        """Log the counts every REPORT_S while requests are refused, until cancelled. Then logs the last counts."""
        while True:
            await self._some.wait()
            began = trio.current_time()
            try:
                await trio.sleep(REPORT_S)
            finally:
                self._report(trio.current_time() - began)

    def _report(self, seconds: float) -> None:
        counts, self._counts = self._counts, Counter()
        self._some = trio.Event()
        for (code, kid), count in counts.items():
            logs.emit(events.REQUESTS_REFUSED, code=code, kid=kid, count=count, seconds=round(seconds, 1))


@dataclass
class ServerState:
    """The state that all requests to a server process share. It is created when the process starts."""

    registry: Registry
    settings: Settings
    metrics: Metrics
    auth: Authenticator
    draining: bool = False
    """True from the beginning of the drain. `/v1/health/ready` then answers 503."""
    spans: Spans | None = None
    policies: KeyPolicies | None = None
    policy_file: PolicyFile | None = None
    refusals: Refusals = field(default_factory=Refusals)
    versions: ReadVersions | None = None
    tls: Tls | None = None
    served_logs: ServedLogs = field(init=False)
    shadows: Shadows = field(init=False)
    admission: Admission = field(init=False)
    precedence: Precedence = field(default_factory=Precedence)
    origins: Origins = field(init=False)
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.served_logs, self.shadows = ServedLogs(self.metrics), Shadows(self.metrics)
        self.origins, self.bodies = Origins(self.settings), Bodies(self.settings, self.precedence)
        self.admission = Admission(
            self.settings.max_queue_s, self.settings.max_answer_bytes, self.settings.max_unsent_bytes
        )

    @cached_property
    def hosts(self) -> HostRules:
        """The host names under which clients may address the server."""
        # Made for the first request, because a worker has its keys only after its start.
        return HostRules(self.settings, has_keys=self.auth.required)

    async def run(self) -> None:
        """Report refusals, write served logs and rank shadows, until cancelled."""
        async with trio.open_nursery() as nursery:
            for task in (self.refusals.run, self.served_logs.run, self.shadows.run):
                nursery.start_soon(task)


T = TypeVar("T")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,128}")


def new_request_id() -> str:
    """Return twelve random hexadecimal digits."""
    # `secrets` would be slower, and request ids are not secret.
    return f"{random.getrandbits(48):012x}"


class Admitted(NamedTuple):
    """The result of the checks that depend only on the head of a request.

    `route` is None if no endpoint has the path. `preflight` is the answer to a CORS preflight from an allowed origin,
    and None for all other requests.
    """

    target: Target
    route: Route | None
    origin_headers: Headers
    preflight: Response | None


class ParsedHead:
    """The values that the application derives from a head. Requests that share `Head.notes` share one instance.

    A shared instance contains no API key, because the transport keeps the key apart (`Head.credential`). `request_id`
    is "" if the client sent none or an invalid one.
    """

    __slots__ = ("admitted", "headers", "request_id", "trace")

    def __init__(self, head: Head) -> None:
        self.headers = dict(head.headers)
        request_id = self.headers.get(b"x-request-id", b"")
        self.request_id = request_id.decode() if _REQUEST_ID.fullmatch(request_id) else ""
        self.trace = parse_trace(self.headers.get(b"traceparent"))
        self.admitted: Admitted | None = None

    @classmethod
    def of(cls, head: Head) -> ParsedHead:
        """Return the instance for this head, and create it for the first request with this head."""
        parsed: ParsedHead | None = head.notes.get("parsed")
        if parsed is None:
            parsed = head.notes["parsed"] = cls(head)
        return parsed


class Request:
    """A request whose head is parsed, with methods that check it and read its body.

    `headers` maps header names in lower case to values. The API key is in `key` (None without a key). Its header may be
    missing from `headers`. `route` and `origin_headers` are set by `admit`, and `permit` by `authenticate`.
    """

    __slots__ = (
        "_parsed", "_state", "headers", "incoming", "key", "method", "origin_headers", "permit", "request_id", "route",
        "trace",
    )  # fmt: skip

    def __init__(self, incoming: Incoming, state: ServerState) -> None:
        head = incoming.head
        self._parsed = parsed = ParsedHead.of(head)
        self.key = key_in(parsed.headers if head.credential is None else dict([head.credential]))
        self.incoming = incoming
        self.headers = parsed.headers
        self.trace = parsed.trace
        self._state = state
        self.method = head.method
        self.request_id = parsed.request_id or new_request_id()
        self.origin_headers: Headers = ()
        self.route: Route | None = None
        self.permit: Permit | None = None

    def budget(self) -> WaitBudget:
        """Return the time that the request may wait. Raises ValidationFailed if X-Request-Timeout-Ms is invalid."""
        # The queue of a model shares its turns among keys. If no keys are configured, every key passes, and a client
        # could invent several keys to get more turns. So all clients then share the key None.
        key = self.key if self._state.auth.required else None
        incoming = self.incoming
        return WaitBudget(
            self._state.admission, self.headers.get(TIMEOUT_HEADER), incoming.arrived_s, incoming.late_s, key
        )

    def may_ask(self, recipe: str) -> bool:
        """Return True if the policy of the key permits the recipe of this name, or if the key has no policy."""
        return self.permit is None or self.permit.policy.may_ask(recipe)

    def admit(self, router: Router) -> Admitted:
        """Run the checks that depend only on the head, or return their cached result.

        Raises an ApiError if the request is refused.
        """
        admitted = self._parsed.admitted
        if admitted is None:
            admitted = self._parsed.admitted = self._admit(router)
        self.route, self.origin_headers = admitted.route, admitted.origin_headers
        return admitted

    def _admit(self, router: Router) -> Admitted:
        headers = self.headers
        target = parse_target(self.incoming.head.target, self.method)
        # Set before the checks, so that the log of a refused request names its endpoint.
        self.route = route = router.find(target.path)
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy in front may trust Content-Length and split the bytes into other requests (request smuggling).
            raise AmbiguousLength
        host = parse_host(headers.get(b"host", b"") if target.host is None else target.host)
        if route is None or not route.row.any_host:
            self._state.hosts.check(host)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise EncodingNotSupported
        origin_headers = self._state.origins.headers(headers.get(b"origin"))
        asks_first = self.method == "OPTIONS" and b"access-control-request-method" in headers
        preflight = Response(204, headers=PREFLIGHT_HEADERS) if origin_headers and asks_first else None
        return Admitted(target, route, origin_headers, preflight)

    async def authenticate(self, endpoint: Endpoint, recipe: str) -> None:
        """Check that the request has a valid key, and that the key's policy permits the endpoint and the recipe.

        Raises MissingApiKey, InvalidApiKey, KeyNotAllowed or RateLimited. A refusal may be delayed. Raises ClientGone
        if the client disconnects while the key is checked or the refusal is delayed.
        """
        auth, key, client, policies = self._state.auth, self.key, self.incoming.client, self._state.policies
        if not auth.required:
            auth.note_bypass(client)
            return
        # Accepted keys need neither the thread nor the nursery of `unless_gone`.
        kid = None if key is None else auth.kid_of(key)
        if kid is None:
            try:
                kid = await self.unless_gone(lambda: auth.check(key, client))
            except ApiError as error:
                self._state.metrics.of(AUTH_FAILURES, code=error.code).inc()
                raise
        self.incoming.note_kid(kid)
        if policies is not None:
            self.permit = await self._delay_refusal(policies, partial(policies.admit, kid, endpoint, recipe))

    async def charge(self, count: int, least: int | None = None) -> None:
        """Charge `count` requests to the key's rate limit (see `Permit.charge`).

        Raises RateLimited, perhaps after a delay, or ClientGone if the client disconnects during the delay.
        """
        if self.permit is not None and self._state.policies is not None:
            await self._delay_refusal(self._state.policies, partial(self.permit.charge, count, least))

    async def _delay_refusal(self, policies: KeyPolicies, decide: Callable[[], T]) -> T:
        """Return the result of `decide`. If `decide` raises a refusal, the refusal waits for the key's throttle.

        Raises ClientGone if the client disconnects during this wait.
        """
        try:
            return decide()
        except ApiError as refusal:
            if wait_s := policies.next_wait_s(refusal):
                await self.unless_gone(partial(trio.sleep, wait_s))
            raise

    async def body(self) -> Body:
        """Return the body. Raises the errors of `Bodies.take`.

        The body is read as JSON for every Content-Type, because many clients do not set this header.
        """
        incoming = self.incoming
        return await self._state.bodies.take(incoming.receive, self.headers, incoming.whole_body)

    async def unless_gone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, or cancel `work` and raise ClientGone if the client disconnects.

        Raises an exception of `work` as it is, not in an exception group.
        """
        results = await run_until(self.incoming.until_gone, work)
        if not results:
            raise ClientGone
        return results[0]
