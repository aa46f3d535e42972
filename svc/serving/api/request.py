"""One request: what it names, whether it may pass, and its body."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from svc.errors import AmbiguousLength, ApiError
from svc.metrics import AUTH_FAILURES
from svc.serving.api.authentication import key_in
from svc.serving.api.bodies import Bodies, Body
from svc.serving.api.cors import PREFLIGHT_HEADERS, Origins
from svc.serving.api.endpoint import Endpoint, Route
from svc.serving.api.hosts import HostRules, parse_host
from svc.serving.api.key_policies import KeyPolicies, Permit
from svc.serving.api.state import ServerState
from svc.serving.api.targets import Target, parse_target
from svc.serving.transport.messages import ClientGone, Headers, Incoming, Response

T = TypeVar("T")
MayAsk = Callable[[str], bool]
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,128}")


def new_request_id() -> str:
    """Twelve hex digits. They are no secret, so a generator without system calls is good enough."""
    return f"{random.getrandbits(48):012x}"


def _anything(_recipe: str) -> bool:
    return True


class Checks:
    """What the requests of one server are checked against."""

    def __init__(self, state: ServerState) -> None:
        self.auth = state.auth
        self.policies = state.policies
        self.metrics = state.metrics
        self.hosts = HostRules(state.settings, has_keys=state.auth.required)
        self.origins = Origins(state.settings)
        self.bodies = Bodies(state.settings)


class Request:
    """A request that has come, with its headers by name in lower case."""

    __slots__ = ("_checks", "_incoming", "headers", "method", "origin_headers", "permit", "request_id", "route")

    def __init__(self, incoming: Incoming, checks: Checks) -> None:
        self._incoming = incoming
        self._checks = checks
        self.method = incoming.method
        self.headers = dict(incoming.headers)
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else new_request_id()
        self.origin_headers: Headers = ()
        self.route: Route | None = None
        self.permit: Permit | None = None

    @property
    def client(self) -> str:
        """Address of the client, or of the balancer in front."""
        return self._incoming.client

    @property
    def arrived_s(self) -> float:
        """When it came, in trio's time."""
        return self._incoming.arrived_s

    @property
    def late_s(self) -> float:
        """Above 0: it would wait so many seconds before anything is done for it, which is too long."""
        return self._incoming.late_s

    @property
    def may_ask(self) -> MayAsk:
        """A function that says whether the key may know of a recipe, by its name."""
        return _anything if self.permit is None else self.permit.policy.may_ask

    @property
    def key(self) -> bytes | None:
        """The API key that it brings."""
        return key_in(self.headers)

    def target(self) -> Target:
        """The path and query, decoded once from what the client sent. Raises MalformedRequest."""
        return parse_target(self._incoming.target, self.method)

    def admit(self, target: Target, route: Route | None) -> Response | None:
        """Check the host, and answer a preflight. Raises the ApiError that refuses the request."""
        headers = self.headers
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy in front may have used the other one, and would see different requests in the following bytes.
            raise AmbiguousLength
        host = parse_host(headers.get(b"host", b"") if target.host is None else target.host)
        if route is None or not route.any_host:
            self._checks.hosts.check(host)
        if b"origin" in headers:
            self.origin_headers = self._checks.origins.headers(headers[b"origin"])
            if self.origin_headers and self.method == "OPTIONS" and b"access-control-request-method" in headers:
                return Response(204, headers=PREFLIGHT_HEADERS)
        return None

    async def authenticate(self, endpoint: Endpoint, recipe: str) -> None:
        """Check the key, and what its policy says of this row and recipe.

        Raises MissingApiKey, InvalidApiKey, KeyNotAllowed or RateLimited, and ClientGone when the client does not wait
        for its refusal.
        """
        auth, key, client, policies = self._checks.auth, self.key, self.client, self._checks.policies
        if auth.passes(key, client):
            kid = None if policies is None or key is None else auth.kid_of(key)
        else:
            try:
                kid = await self._unless_gone(lambda: auth.check(key, client))
            except ApiError as error:
                self._checks.metrics.of(AUTH_FAILURES, code=error.code).inc()
                raise
        if policies is not None and kid is not None:
            self.permit = await self._slowly(policies, partial(policies.admit, kid, endpoint, recipe))

    async def charge(self, count: int) -> None:
        """Count a batch of so many requests. Raises RateLimited, and ClientGone as `authenticate` does."""
        if self.permit is not None and self._checks.policies is not None:
            await self._slowly(self._checks.policies, partial(self.permit.charge, count))

    async def _slowly(self, policies: KeyPolicies, decide: Callable[[], T]) -> T:
        """What the policies decide. A refusal is raised when its turn has come."""
        try:
            return decide()
        except ApiError as refusal:
            if wait_s := policies.next_wait_s(refusal):
                await self._unless_gone(partial(trio.sleep, wait_s))
            raise

    async def body(self) -> Body:
        """The body, taken for JSON whatever Content-Type says: many clients forget to set it.

        Raises what `Bodies.take` raises.
        """
        incoming = self._incoming
        return await self._checks.bodies.take(incoming.receive, self.headers, incoming.whole_body)

    async def _unless_gone(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`. Cancels it and raises ClientGone as soon as the client disconnects."""
        refusal: ApiError | None = None
        found: list[T] = []

        async def watch() -> None:
            await self._incoming.until_gone()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                found.append(await work())
            except ApiError as error:
                refusal = error
            nursery.cancel_scope.cancel()
        if refusal is not None:
            raise refusal
        if not found:
            raise ClientGone
        return found[0]
