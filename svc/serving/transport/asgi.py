"""The application as a plain ASGI application, for servers and clients other than svc's own connections."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import trio

from svc import events, logs
from svc.errors import ApiError, HeadersTooLarge, MalformedRequest
from svc.serving.transport.connection import LINGER_S
from svc.serving.transport.http1 import MAX_HEADERS
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, Application, ClientGone, Head, Response
from svc.serving.transport.shared import READ_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PART_BYTES = 1 << 16
"""Of a body that is sent at once: a server may not be interrupted while it sends a part."""
_KINDS = {"http": "http.response", "websocket": "websocket.http.response"}
_target = re.compile(rb"[!-~]+")


class AsgiApplication:
    """Answers ASGI scopes. A handshake of WebSocket is answered as if it had not asked for an upgrade."""

    def __init__(self, application: Application, *, unread_s: float) -> None:
        self._application = application
        self._unread_s = unread_s

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Send the answer, or nothing when the client has left.

        The body is read to its end before the answer: an answer to half a request ends an HTTP/2 connection with all of
        its other streams. A client gets `unread_s` for that, and as long to take its answer.
        """
        kind = _KINDS.get(scope["type"])
        if kind is None:
            raise NotImplementedError(f"only requests are answered here, not {scope['type']}")
        body = _Body(receive)
        response = await self._answer(scope, body)
        if response is None:
            return
        with trio.move_on_after(LINGER_S if response.ends_connection else self._unread_s):
            try:
                await body.skip()
            except ClientGone:
                return
        closing = scope["http_version"] in ("1.0", "1.1") and (
            self._application.is_leaving or response.ends_connection or not body.ended
        )
        with trio.move_on_after(self._unread_s + len(response.body) / SLOWEST_BYTES_PER_S):
            for message in _messages(kind, response, closing=closing):
                await send(message)

    async def _answer(self, scope: Mapping[str, Any], body: _Body) -> Response | None:
        """Return the answer to one request. A defect is logged and raised: a server may answer 500 without a word."""
        client = (scope.get("client") or ("",))[0]
        try:
            head = _head(scope)
        except ApiError as error:
            return self._application.refused(error, client)
        try:
            return await self._application(AsgiRequest(head, client, body))
        except Exception as error:
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
            raise


def _head(scope: Mapping[str, Any]) -> Head:
    """Return the head of a request, with the bounds of svc's own parser. Raises an ApiError."""
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    if not _target.fullmatch(target):
        raise MalformedRequest("the path of the request is not visible ASCII")
    headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    if len(headers) > MAX_HEADERS:
        raise HeadersTooLarge
    return Head(scope.get("method", "GET"), target, headers, None)


def _messages(kind: str, response: Response, *, closing: bool) -> Iterator[Message]:
    """Yield an answer in parts. The server drops the body of an answer to HEAD."""
    headers = [(b"content-type", response.content_type)]
    if response.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(response.body)))
    headers += [*response.headers, *([(b"connection", b"close")] if closing else [])]
    yield {"type": f"{kind}.start", "status": response.status, "headers": headers}
    for start in range(0, len(response.body) or 1, PART_BYTES):
        end = start + PART_BYTES
        more = end < len(response.body)
        yield {"type": f"{kind}.body", "body": response.body[start:end], "more_body": more}


class AsgiRequest:
    """One request of an ASGI scope, as the application sees it (`messages.Incoming`)."""

    late_s: float = 0.0
    whole_body: bytes | None = None

    def __init__(self, head: Head, client: str, body: _Body) -> None:
        self.head = head
        self.client = client
        self.arrived_s = trio.current_time()
        self.receive = body.receive
        self.until_gone = body.until_gone


class _Body:
    """The body of a request by ASGI's `receive`, and the parts that were read ahead."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[bytes] = deque()
        self.ended = False

    async def receive(self) -> bytes:
        """Return the next part, nothing at the end. Raises ClientGone."""
        while not self._ahead and not self.ended:
            await self._read()
        return self._ahead.popleft() if self._ahead else b""

    async def until_gone(self) -> None:
        """Return when the client has left. A client that sends more than READ_BYTES stays unnoticed."""
        with suppress(ClientGone):
            while sum(map(len, self._ahead)) < READ_BYTES:
                await self._read()
            await trio.sleep_forever()

    async def skip(self) -> None:
        """Discard the rest. Raises ClientGone."""
        while not self.ended:
            await self._read()
            self._ahead.clear()

    async def _read(self) -> None:
        message = await self._receive()
        if message["type"].endswith(".disconnect"):
            raise ClientGone
        if message.get("body"):
            self._ahead.append(message["body"])
        self.ended = not message.get("more_body", False)
