"""HTTP/2, by hypercorn: the one place that knows how hypercorn serves a connection.

What is assumed of hypercorn, each with a test in `tests/serving/transport/test_http2.py`: `TCPServer(app, config,
context, state, stream).run()` serves one stream until it ends; it calls `app(scope, receive, send, ...)` for each
request; it times idle connections by `idle_task` alone; it shields a send, so the stream must end one that hangs.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import LifespanState

from svc.errors import MalformedRequest
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, ClientGone, Head, Response
from svc.serving.transport.pacing import Rank
from svc.serving.transport.shared import Shared

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

FLUSH_S = 0.2
"""Hypercorn sends the last frames of an answer from a task of its own, after the answer counts as sent."""
EARLY_MESSAGES = 3
"""Parts of a body that are taken before they are asked for, to see the client leave."""


async def serve(connected: socket.socket, opening: bytes, shared: Shared) -> None:
    """Serve a connection that began with `opening` to its end."""
    config = Config()
    config.errorlog = logging.getLogger("hypercorn.error")
    config.include_server_header = False
    config.keep_alive_max_requests = sys.maxsize
    stream, requests = _Stream(connected, opening, shared.limits.unread_s), _Requests(connected, shared)
    server = TCPServer(requests.answer, config, WorkerContext(None), LifespanState(), stream)  # type: ignore[arg-type]
    server.idle_task = _NoTimer()  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        requests.life = nursery.cancel_scope
        requests.rest()
        try:
            await server.run()
        finally:
            shared.idle.pop(connected, None)


class _NoTimer:
    """Hypercorn's timer takes for busy what only began to be something, and would never end that. See `watch`."""

    async def restart(self, *_: object) -> None:
        pass

    async def stop(self) -> None:
        pass


class _Stream:
    """The socket as hypercorn reads and writes it, with the bytes first that were read already."""

    def __init__(self, connected: socket.socket, opening: bytes, unread_s: float) -> None:
        self.socket = trio.socket.from_stdlib_socket(connected)
        self._opening = opening
        self._unread_s = unread_s

    async def receive_some(self, most: int) -> bytes:
        opening, self._opening = self._opening, b""
        try:
            return opening or await self.socket.recv(most)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            with trio.fail_after(self._unread_s + len(data) / SLOWEST_BYTES_PER_S):
                while left:
                    left = left[await self.socket.send(left) :]
        except (OSError, trio.TooSlowError) as error:
            await self.send_eof()
            raise trio.BrokenResourceError from error

    async def send_eof(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """Wake whoever reads. The connection closes the socket itself."""
        await self.send_eof()


class _Requests:
    """The requests of one connection, which is idle while none is answered."""

    life: trio.CancelScope

    def __init__(self, connected: socket.socket, shared: Shared) -> None:
        self._connected = connected
        self._shared = shared
        self._running = 0

    def rest(self) -> None:
        """Nothing is answered: the connection waits, or ends with the server once its last frames are out."""
        if self._shared.ending:
            self.life.deadline = trio.current_time() + FLUSH_S
        else:
            self._shared.idle[self._connected] = trio.current_time()

    async def answer(self, scope: Any, receive: Receive, send: Send, *_: object) -> None:
        """Called by hypercorn for each request."""
        self._running += 1
        self._shared.idle.pop(self._connected, None)
        try:
            exchange, turns = _Exchange(scope, receive), self._shared.turns
            exchange.late_s = self._shared.application.late_s(exchange, turns.expected_wait_s(Rank.KNOWN))
            await turns.enter(Rank.REFUSED if exchange.late_s else Rank.KNOWN)
            response = await self._response(exchange)
            if response is not None:
                await self._send(response, send)
        finally:
            self._running -= 1
            if not self._running:
                self.rest()

    async def _response(self, exchange: _Exchange) -> Response | None:
        application = self._shared.application
        if len({value for name, value in exchange.head.headers if name == b"host"}) > 1:
            return application.refused(MalformedRequest("the request names two hosts"))
        return await application(exchange)

    async def _send(self, response: Response, send: Send) -> None:
        """Send, in time: a client may take bytes and still never open the flow-control window for an answer."""
        headers = [
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            *response.headers,
        ]
        with trio.move_on_after(self._shared.limits.unread_s + len(response.body) / SLOWEST_BYTES_PER_S):
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            await send({"type": "http.response.body", "body": response.body})
            return
        self.life.cancel()


class _Exchange:
    """One request of HTTP/2, as the application sees it (`messages.Incoming`)."""

    whole_body: bytes | None = None
    late_s = 0.0

    def __init__(self, scope: Any, receive: Receive) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        self.head = Head(scope["method"], target, scope["headers"])
        self.client = str(scope["client"][0]) if scope["client"] else ""
        self.arrived_s = trio.current_time()
        self._receive = receive
        self._early: list[dict[str, Any]] = []
        self._ended = False

    def method_and_target(self) -> tuple[bytes, bytes]:
        return self.head.method.encode(), self.head.target

    def timeout(self) -> bytes | None:
        return dict(self.head.headers).get(b"x-request-timeout-ms")

    async def receive(self) -> bytes:
        while not self._ended:
            message = self._early.pop(0) if self._early else await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self._ended = not message.get("more_body")
            if message.get("body"):
                return bytes(message["body"])
        return b""

    async def until_gone(self) -> None:
        while len(self._early) < EARLY_MESSAGES:
            self._early.append(await self._receive())
            if self._early[-1]["type"] == "http.disconnect":
                return
        await trio.sleep_forever()
