"""What every request passes, whichever part answers it: its id, host, origin and key; and how answers leave."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

import trio
from pydantic_core import to_json

from svc import events, logs
from svc.errors import AmbiguousLength, ApiError, InternalError, ValidationFailed
from svc.metrics import AUTH_FAILURES
from svc.serving.bodies import Bodies, Body, ClientGone
from svc.serving.limits import PREFLIGHT_HEADERS, HostRules, Origins, Pairs, Receive
from svc.serving.state import ServerState

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LINGER_S = 2.0
EARLY_MESSAGES = 3
"""Parts of a body that are taken before its reader asks; the end of a small one, and the leaving after it, are seen."""
JSON = b"application/json"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,128}")
_PROBED = frozenset({"/v1/health", "/v1/health/live", "/v1/health/ready"})
_PROTECTED = frozenset({"/v1/recipes", "/v1/health/details", "/v1/metrics"})


def needs_key(path: str) -> bool:
    """True for the endpoints that ask for a key when keys are configured."""
    return path in _PROTECTED or path.startswith("/v1/recipes/")


def new_request_id() -> str:
    """Twelve digits that tell requests apart. They are no secret, so no system call is spent on them."""
    return f"{random.getrandbits(48):012x}"


class Reply(NamedTuple):
    """An answer before it is sent."""

    status: int
    body: bytes
    headers: Pairs
    content_type: bytes = JSON


class Call:
    """One HTTP request on its way through the gate."""

    __slots__ = ("headers", "origin_headers", "receive", "request_id", "scope", "send", "unread")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(b"x-request-id", b"")
        self.request_id = given.decode() if _REQUEST_ID.fullmatch(given) else new_request_id()
        self.origin_headers: Pairs = []
        self.unread = self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers

    @property
    def client(self) -> str:
        """Address of the client, or of the balancer in front."""
        address = self.scope.get("client")
        return str(address[0]) if address else ""


class Gate:
    """The checks before an answer, in their order, and the sending of every answer."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._hosts = HostRules(state.settings, has_keys=state.auth.required)
        self._origins = Origins(state.settings)
        self._bodies = Bodies(state.settings)

    def admit(self, call: Call) -> Reply | None:
        """Let a request pass, or answer a preflight. Raises the ApiError that refuses it."""
        logs.bind(request_id=call.request_id)
        headers = call.headers
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy in front may have believed the other one, and see other requests in what follows.
            raise AmbiguousLength("the request has both Content-Length and Transfer-Encoding")
        if call.scope["path"] not in _PROBED:  # orchestrators probe by address, and these say nothing of a recipe
            self._hosts.check(headers.get(b"host"))
        if b"origin" in headers:
            call.origin_headers = self._origins.headers(headers[b"origin"])
            if (
                call.origin_headers
                and call.scope["method"] == "OPTIONS"
                and b"access-control-request-method" in headers
            ):
                return Reply(204, b"", PREFLIGHT_HEADERS)
        return None

    async def authenticate(self, call: Call) -> None:
        """Raises MissingApiKey or InvalidApiKey, and ClientGone when the client does not wait for its refusal."""
        key = call.headers.get(b"x-api-key")
        if self._state.auth.passes(key, call.client):
            return
        try:
            await _unless_gone(call, partial(self._state.auth.check, key, call.client))
        except ApiError as error:
            self._state.metrics.of(AUTH_FAILURES, code=error.code).inc()
            raise

    async def body(self, call: Call) -> Body:
        """The body, taken for JSON whatever type is declared: a forgotten header must not cost a debugging session.

        Raises what `Bodies.take` raises.
        """
        try:
            body = await self._bodies.take(call.receive, call.headers)
        except ValidationFailed:
            call.unread = False
            raise
        call.unread = False
        return body

    async def reply(self, call: Call, reply: Reply) -> None:
        """Send an answer. One that does not wait for the body of its request ends the connection."""
        headers = [
            (b"content-type", reply.content_type),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", call.request_id.encode()),
            *reply.headers,
            *call.origin_headers,
        ]
        if call.unread:
            await _reply_and_linger(call, reply, headers)
            return
        if self._state.draining and call.scope["http_version"].startswith("1"):
            headers.append((b"connection", b"close"))  # so that the client does not send its next request here
        await call.send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await call.send({"type": "http.response.body", "body": reply.body})


def error_reply(call: Call, error: Exception) -> Reply:
    """The body that says what went wrong; anything that is not an ApiError is logged and says nothing of its inside."""
    if not isinstance(error, ApiError):
        logs.emit(events.REQUEST_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
        error = InternalError("the server failed to answer; its log has the request id")
    body: dict[str, Any] = {"request_id": call.request_id, "detail": error.message, "code": error.code}
    headers: Pairs = []
    if isinstance(error, ValidationFailed):
        body["errors"] = error.errors
    if "allow" in error.fields:
        headers.append((b"allow", ", ".join(error.fields["allow"]).encode()))
    return Reply(error.http_status, to_json(body), headers)


async def _unless_gone(call: Call, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`, and raise ClientGone as soon as the client leaves: what waits for it would only be kept for nobody.

    What has come of a body until then is given to its reader afterwards. Raises the ApiError of `work`.
    """
    early: list[MutableMapping[str, Any]] = []
    receive, refusal = call.receive, None

    async def watch() -> None:
        while len(early) < EARLY_MESSAGES:
            early.append(await receive())
            if early[-1]["type"] == "http.disconnect":
                nursery.cancel_scope.cancel()

    async def replay() -> MutableMapping[str, Any]:
        return early.pop(0) if early else await receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        try:
            await work()
        except ApiError as error:
            refusal = error
        nursery.cancel_scope.cancel()
    if early and early[-1]["type"] == "http.disconnect":
        raise ClientGone
    call.receive = replay
    if refusal is not None:
        raise refusal


async def _reply_and_linger(call: Call, reply: Reply, headers: Pairs) -> None:
    """Answer before the body was read, and take what still comes for a moment.

    Closing at once would reset the connection, and a client that is still sending would never see the answer.
    """
    if call.scope["http_version"].startswith("1"):
        headers.append((b"connection", b"close"))
    await call.send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await call.send({"type": "http.response.body", "body": reply.body, "more_body": True})
    whole = trio.Event()

    async def discard() -> None:
        while True:
            if not (await call.receive()).get("more_body"):
                whole.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(discard)
        with trio.move_on_after(LINGER_S):
            await whole.wait()
        # The server may be waiting to hand over more of the body: `discard` takes it until the answer is out.
        await call.send({"type": "http.response.body", "body": b""})
        nursery.cancel_scope.cancel()
