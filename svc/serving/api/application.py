"""The application, which looks up each request in the table of endpoints, calls its handler, and logs the answer.

Health probes and recommendation verbs are answered directly, all other endpoints by quart. Through quart, a request
takes more task switches, and each waits for a turn of the event loop. A busy server has long turns, but its health
probes must not time out.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import trio
from pydantic_core import to_json

from svc import events, logs
from svc.asking import hints
from svc.asking.parsing import refuse_unknown_parameters
from svc.errors import ApiError, NotFound
from svc.metrics import HEAD_REFUSALS
from svc.serving.admission import UnsentBytes
from svc.serving.api.authentication import Authenticator
from svc.serving.api.endpoint import PARAMETER, Endpoint, Route
from svc.serving.api.endpoints import PROBES, VERBS, Router, served_with
from svc.serving.api.failures import failure
from svc.serving.api.headers import Target, parse_target
from svc.serving.api.pages.routes import FAILURE, REQUEST, build_routes
from svc.serving.api.request import Request, ServerState, new_request_id
from svc.serving.api.verbs import Verbs
from svc.serving.transport.messages import JSON, ClientGone, Headers, Incoming, Opening, Response
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.serving.api.spans import Spans  # needs the extra "otel"

Document = tuple[Mapping[str, Any], int]


def _health(state: ServerState) -> Document:
    return state.registry.health()


def _live(_state: ServerState) -> Document:
    return {"status": "ok"}, 200


def _ready(state: ServerState) -> Document:
    if state.draining:
        return {"status": "draining", "detail": "the server is stopping"}, 503
    # Probes are public, so only a server whose details are public too names its recipes.
    reason = state.registry.unready_reason(names_recipes=not state.auth.required)
    return ({"status": "ok"}, 200) if reason is None else ({"status": "loading", "detail": reason}, 503)


DOCUMENTS: Mapping[str, Callable[[ServerState], Document]] = {"health": _health, "live": _live, "ready": _ready}
"""Functions that return the document and the HTTP status of a health probe, by the name of its endpoint."""


_PROBE_TARGETS = frozenset(row.path.encode() for row in PROBES)
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_SUCCESS = range(200, 300)


class AccessLog:
    """The access log. `SVC_ACCESS_LOG` selects its lines: one for each answer (`all`), one for each failure, or none.

    A line has the recipe and the verb of a request, but no path, query or body. Two kinds of failures are logged only
    with `all`: failed health probes, and refusals that the event `requests_refused` counts. Orchestrators repeat health
    probes every second, and other events say why the probes fail.
    """

    def __init__(self, settings: Settings, auth: Authenticator) -> None:
        self.writes = settings.access_log != "off"
        self._all = settings.access_log == "all"
        self._auth = auth

    def note(
        self, began: float, response: Response, client: str, request: Request | None = None, *, is_summed: bool = False
    ) -> None:
        """Write the line of one answer, unless the setting excludes it. The caller has bound the request id to the log.

        `began` is the time at which the work on the answer began, a value of `time.perf_counter`. `client` is the
        client's address. `request` is None if the client sent no valid HTTP request. `is_summed` is True for a refusal
        that the event `requests_refused` counts. Such a refusal is logged only with `all`.
        """
        route = None if request is None else request.route
        status = response.status
        if not self._all and (status in _SUCCESS or is_summed or (route is not None and route.row.any_host)):
            return
        method, key = ("", None) if request is None else (request.method, request.key)
        target = {} if route is None else {"recipe": route.name or None, "verb": route.label}
        logs.emit(
            events.REQUEST_ANSWERED,
            method=method,
            status=status,
            ms=round((time.perf_counter() - began) * 1e3, 2),
            client=client,
            kid=None if key is None else self._auth.kid_of(key),
            **{"recipe": None, "verb": None, **target},
        )


class Application:
    """The application of one server, which the transport calls for each request (`messages.RequestHandler`)."""

    urgent = tuple(f"{row.method} {row.path} ".encode() for row in PROBES)

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._verbs = Verbs(state)
        self._router = Router(served_with(state.settings))
        self._quart: Any = build_routes(state, self._verbs.popular)
        self._access = AccessLog(state.settings, state.auth)

    @property
    def unsent(self) -> UnsentBytes:
        """The count of unsent bytes, which limits the answers that are encoded."""
        return self._state.admission.unsent

    @property
    def is_leaving(self) -> bool:
        """True during the drain. Each answer then announces the end of its connection."""
        return self._state.draining

    def late_s(self, opening: Opening, turn_s: float) -> float:
        """Return the expected wait in seconds if it is too long for an unparsed request, else 0.

        See `Admission.late_s` for the limit. `turn_s` is the expected wait before the request is parsed. The result is
        0 for a request that needs no model. It is also 0 if `turn_s` is 0 and `Admission.is_crowded` is False. This
        saves the look-up of the endpoint.
        """
        if not (turn_s or self._state.admission.is_crowded):
            return 0.0
        method, target = opening.method_and_target()
        endpoint, name = self._look_up(method.decode("latin-1"), target)
        if endpoint is None or not endpoint.asks_model:
            return 0.0
        # Not `require`, which logs unknown names. `_respond` does so once the key is checked.
        entry = self._state.registry.get(name)
        queue = None if entry is None or entry.served is None else entry.served.lane
        return self._state.admission.late_s(queue, turn_s, opening.timeout(), is_batch=endpoint.is_batch)

    def _look_up(self, method: str, target: bytes) -> tuple[Endpoint | None, str]:
        """Return the endpoint of a request, and the name of the recipe in its path, or "".

        The endpoint is None if the target is invalid, or if no endpoint has this path and method.
        """
        try:
            route = self._router.find(parse_target(target, method).path)
            return (None, "") if route is None else (route.endpoint(method), route.name)
        except ApiError:  # `_respond` finds this error again, and answers with it
            return None, ""

    async def __call__(self, incoming: Incoming) -> Response | None:
        """Return the complete answer, or None if the client has disconnected. Raises nothing."""
        request = Request(incoming, self._state)
        logs.bind(request_id=request.request_id)
        trace = request.trace
        if self._state.spans is not None and incoming.head.target not in _PROBE_TARGETS:
            return await self._answer_in_span(self._state.spans, incoming, request)
        if trace is None:
            return await self._answer(request)
        logs.bind(trace_id=trace.trace_id.decode())
        try:
            response = await self._answer(request)
        finally:
            logs.unbind("trace_id")  # the next request of this connection runs in the same task
        return response and _with_header(response, trace.step().header())

    async def _answer_in_span(self, spans: Spans, incoming: Incoming, request: Request) -> Response | None:
        """Answer a request as `__call__`, and record a span.

        The answer has the header `traceparent` if the request has a valid one.
        """
        trace = request.trace
        scheme = "http" if self._state.tls is None else "https"
        with spans.request(incoming.head, incoming.client, scheme, trace) as span:
            logs.bind(trace_id=span.trace.trace_id.decode())
            try:
                response = await self._answer(request)
            finally:
                logs.unbind("trace_id")
            span.record_answer(request.request_id, request.route, self._recipe_of(request.route), response)
        return response if response is None or trace is None else _with_header(response, span.trace.header())

    def _recipe_of(self, route: Route | None) -> str | None:
        """Return the recipe in the path, or None if the path names none or no such recipe exists."""
        name = route.name if route is not None else ""
        return name if name and self._state.registry.get(name) is not None else None

    async def _answer(self, request: Request) -> Response | None:
        """Answer a request, log the answer, and turn an exception into an error answer.

        Returns None if the client has disconnected.
        """
        began = time.perf_counter()
        is_summed = False
        try:
            response = await self._respond(request)
        except ClientGone:
            return None
        except Exception as error:
            response = failure(request.request_id, error)
            if isinstance(error, ApiError) and error.protects_others:
                is_summed = True
                self._state.refusals.note(error)
        if self._access.writes:
            self._access.note(began, response, request.incoming.client, request, is_summed=is_summed)
        return _complete(response, request.request_id, request.origin_headers)

    def refuse(self, error: ApiError, client: str) -> Response:
        """Return the answer to input that is not a valid HTTP request. `client` is the address of its sender."""
        began, request_id = time.perf_counter(), new_request_id()
        logs.bind(request_id=request_id)
        self._state.metrics.of(HEAD_REFUSALS, code=error.code).inc()
        response = failure(request_id, error)
        # No other event logs a client that sends only invalid requests.
        if self._access.writes:
            self._access.note(began, response, client)
        return _complete(response, request_id, ())

    async def _respond(self, request: Request) -> Response:
        """Return the answer of the request's endpoint, or the answer to a CORS preflight.

        Raises an ApiError if the request is refused, and ClientGone if the client disconnects.
        """
        try:
            target, route, _, preflight = request.admit(self._router)
        except ApiError as error:
            self._state.metrics.of(HEAD_REFUSALS, code=error.code).inc()
            raise
        # Browsers send preflights without the key, so no key is checked.
        if preflight is not None:
            return preflight
        if route is None:
            raise NotFound(hints.unknown_path(target.path, (row.verb for row in VERBS)))
        if route.verb:
            return await self._verbs.answer(request, route, target.query)
        return await self._from_row(request, route, target)

    async def _from_row(self, request: Request, route: Route, target: Target) -> Response:
        """Return the answer of an endpoint that is not a verb. Raises as `_respond`."""
        endpoint = route.endpoint(request.method)
        if endpoint.name in DOCUMENTS:
            document, status = DOCUMENTS[endpoint.name](self._state)
            return Response(status, to_json(document))
        if not endpoint.public:
            await request.authenticate(endpoint, route.name)
        # After the check of the key, so that nobody learns the settings without a key (`served_with`).
        if not endpoint.is_served(self._state.settings):
            raise NotFound
        if target.query and endpoint.refuses_unknown_parameters:
            refuse_unknown_parameters(target.query, endpoint.query, endpoint.request)
        path = endpoint.path.replace(PARAMETER, route.name)
        return await self._from_quart(request, path, target.query)

    async def _from_quart(self, request: Request, path: str, query: bytes) -> Response:
        """Return the answer of a quart handler, or raise the handler's error.

        `path` is the path of the endpoint with the name of the recipe, and `query` the raw query string. quart gets
        neither the body nor the headers of the client, so it cannot interpret them in a different way than the checks
        that the request has passed.
        """
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"localhost")],
            "client": None,
            "server": None,
            "extensions": {},
            REQUEST: request,
        }
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self._quart(scope, _no_body(), send)
        if FAILURE in scope:
            raise scope[FAILURE]
        headers = dict(sent[0]["headers"])
        body = b"".join(message.get("body", b"") for message in sent[1:])
        headers.pop(b"content-length", None)  # the connection adds it
        content_type = headers.pop(b"content-type", JSON)
        return Response(sent[0]["status"], body, list(headers.items()), content_type)


def _with_header(response: Response, header: tuple[bytes, bytes]) -> Response:
    return response._replace(headers=[*response.headers, header])


def _complete(response: Response, request_id: str, origin_headers: Headers) -> Response:
    """Return the answer with X-Request-ID, the CORS headers in `origin_headers`, and a line end after a JSON body.

    Answers with items already have the line end, because adding it here copies the body. A copy of 20 MB blocks the
    event loop for 8 ms.
    """
    headers = [(b"x-request-id", request_id.encode()), *response.headers, *origin_headers]
    body = response.body
    if isinstance(body, bytes) and body and response.content_type == JSON and not body.endswith(b"\n"):
        body += b"\n"  # so that a terminal begins a new line, and `while read` in a shell gets the last line
    return response._replace(body=body, headers=headers)


def _no_body() -> Receive:
    """Return an ASGI `receive` for a request that has no body and whose client never disconnects."""
    messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        for message in messages:
            return message
        return await trio.sleep_forever()

    return receive
