"""One request: its route, the checks that it must pass, and its body."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from svc import __version__, events, logs
from svc.errors import AmbiguousLength, ApiError, EncodingNotSupported
from svc.metrics import AUTH_FAILURES, Metrics
from svc.serving.admission import TIMEOUT_HEADER, Admission, WaitBudget
from svc.serving.api.authentication import Authenticator, key_in
from svc.serving.api.bodies.reading import Bodies, Body
from svc.serving.api.endpoint import Endpoint, Route
from svc.serving.api.endpoints import Router
from svc.serving.api.headers import PREFLIGHT_HEADERS, HostRules, Origins, Target, parse_host, parse_target, parse_trace
from svc.serving.api.key_policies import KeyPolicies, Permit, PolicyFile
from svc.serving.models.console import ReadVersions
from svc.serving.models.registry import Registry
from svc.serving.transport.certificate import Tls
from svc.serving.transport.messages import ClientGone, Head, Headers, Incoming, Response
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.spans import Spans  # needs an extra


REPORT_S = 10.0


class Refusals:
    """Refusals since the last report by code and kid, which is None for refusals without a policy."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str | None]] = Counter()
        self._some = trio.Event()

    def note(self, error: ApiError) -> None:
        """Count one refusal, for the kid in its `fields` if there is one."""
        self._counts[error.code, error.fields.get("kid")] += 1
        self._some.set()

    async def run(self) -> None:
        """Log the totals REPORT_S after the first refusal, again and again until cancelled."""
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


@dataclass(slots=True)
class ServerState:
    """The shared state of a server process.

    It is created when the server starts, and passed to the application. `draining` is True from the beginning of the
    drain, and `/v1/health/ready` then answers 503.
    """

    registry: Registry
    settings: Settings
    metrics: Metrics
    auth: Authenticator
    draining: bool = False
    spans: Spans | None = None
    policies: KeyPolicies | None = None
    policy_file: PolicyFile | None = None
    refusals: Refusals = field(default_factory=Refusals)
    versions: ReadVersions | None = None
    tls: Tls | None = None
    version: str = __version__
    admission: Admission = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.settings.max_queue_s)


T = TypeVar("T")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,128}")


def new_request_id() -> str:
    """Return twelve random hex digits, from a fast generator because request ids are no secret."""
    return f"{random.getrandbits(48):012x}"


class Checks:
    """The rules that every request to one server must satisfy."""

    def __init__(self, state: ServerState) -> None:
        self.auth = state.auth
        self.policies = state.policies
        self.metrics = state.metrics
        self.hosts = HostRules(state.settings, has_keys=state.auth.required)
        self.origins = Origins(state.settings)
        self.bodies = Bodies(state.settings)


class Admitted(NamedTuple):
    """The route of a request whose head has passed all checks that need only the head."""

    target: Target
    route: Route | None
    origin_headers: Headers
    preflight: Response | None


class ParsedHead:
    """A parsed head without its credential, made once for all requests with equal heads."""

    __slots__ = ("admitted", "headers", "request_id", "trace")

    def __init__(self, head: Head) -> None:
        self.headers = dict(head.headers)
        request_id = self.headers.get(b"x-request-id", b"")
        self.request_id = request_id.decode() if _REQUEST_ID.fullmatch(request_id) else ""
        self.trace = parse_trace(self.headers.get(b"traceparent"))
        self.admitted: Admitted | None = None

    @classmethod
    def of(cls, head: Head) -> ParsedHead:
        """Return the instance of the head. The first request with this head makes it."""
        parsed: ParsedHead | None = head.notes.get("parsed")
        if parsed is None:
            parsed = head.notes["parsed"] = cls(head)
        return parsed


class Request:
    """A request of a client, with its headers by name in lower case."""

    __slots__ = (
        "_checks", "_parsed", "headers", "incoming", "key", "method", "origin_headers", "permit", "request_id", "route",
        "trace",
    )  # fmt: skip

    def __init__(self, incoming: Incoming, checks: Checks) -> None:
        head = incoming.head
        self._parsed = parsed = ParsedHead.of(head)
        self.key = key_in(parsed.headers if head.credential is None else dict([head.credential]))
        self.incoming = incoming
        self.headers = parsed.headers
        self.trace = parsed.trace
        self._checks = checks
        self.method = head.method
        self.request_id = parsed.request_id or new_request_id()
        self.origin_headers: Headers = ()
        self.route: Route | None = None
        self.permit: Permit | None = None

    def budget(self, admission: Admission) -> WaitBudget:
        """Return the wait limit of the request. Raises ValidationFailed for an invalid X-Request-Timeout-Ms header."""
        # Without configured keys any key passes, and a client could invent several to get the turns of several clients.
        key = self.key if self._checks.auth.required else None
        incoming = self.incoming
        return WaitBudget(admission, self.headers.get(TIMEOUT_HEADER), incoming.arrived_s, incoming.late_s, key)

    def may_ask(self, recipe: str) -> bool:
        """Return True if the key may use the recipe of this name."""
        return self.permit is None or self.permit.policy.may_ask(recipe)

    def admit(self, router: Router) -> Admitted:
        """Return the route of the request, and the answer if it is a preflight.

        Raises the ApiError that refuses the request.
        """
        admitted = self._parsed.admitted
        if admitted is None:
            admitted = self._parsed.admitted = self._admit(router)
        self.route, self.origin_headers = admitted.route, admitted.origin_headers
        return admitted

    def _admit(self, router: Router) -> Admitted:
        headers = self.headers
        target = parse_target(self.incoming.head.target, self.method)
        self.route = route = router.find(target.path)
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # Request smuggling: a proxy in front may use the other header and split the bytes into other requests.
            raise AmbiguousLength
        host = parse_host(headers.get(b"host", b"") if target.host is None else target.host)
        if route is None or not route.any_host:
            self._checks.hosts.check(host)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise EncodingNotSupported
        origin_headers = self._checks.origins.headers(headers.get(b"origin"))
        asks_first = self.method == "OPTIONS" and b"access-control-request-method" in headers
        preflight = Response(204, headers=PREFLIGHT_HEADERS) if origin_headers and asks_first else None
        return Admitted(target, route, origin_headers, preflight)

    async def authenticate(self, endpoint: Endpoint, recipe: str) -> None:
        """Check the key and its policy for the endpoint and the recipe.

        Raises MissingApiKey, InvalidApiKey, KeyNotAllowed or RateLimited, or ClientGone if the client disconnects
        before the refusal.
        """
        auth, key, client, policies = self._checks.auth, self.key, self.incoming.client, self._checks.policies
        if auth.passes(key, client):
            kid = None if policies is None or key is None else auth.kid_of(key)
        else:
            try:
                kid = await self.unless_gone(lambda: auth.check(key, client))
            except ApiError as error:
                self._checks.metrics.of(AUTH_FAILURES, code=error.code).inc()
                raise
        if policies is not None and kid is not None:
            self.permit = await self._delay_refusal(policies, partial(policies.admit, kid, endpoint, recipe))

    async def charge(self, count: int, least: int | None = None) -> None:
        """Charge the key `count` requests in total, as `Permit.charge` does.

        Raises RateLimited, and ClientGone as `authenticate` does.
        """
        if self.permit is not None and self._checks.policies is not None:
            await self._delay_refusal(self._checks.policies, partial(self.permit.charge, count, least))

    async def _delay_refusal(self, policies: KeyPolicies, decide: Callable[[], T]) -> T:
        """Return the result of `decide`, or raise its refusal after a delay that slows floods down."""
        try:
            return decide()
        except ApiError as refusal:
            if wait_s := policies.next_wait_s(refusal):
                await self.unless_gone(partial(trio.sleep, wait_s))
            raise

    async def body(self) -> Body:
        """Return the body. Raises the errors of `Bodies.take`.

        Reads JSON whatever the Content-Type, because many clients do not set it.
        """
        incoming = self.incoming
        return await self._checks.bodies.take(incoming.receive, self.headers, incoming.whole_body)

    async def unless_gone(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. If the client disconnects, cancels `work` and raises ClientGone."""
        failed: Exception | None = None
        results: list[T] = []

        async def watch() -> None:
            await self.incoming.until_gone()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                results.append(await work())
            except Exception as error:
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if not results:
            raise ClientGone
        return results[0]
