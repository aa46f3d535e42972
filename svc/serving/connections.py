"""The connections of the server: HTTP/1.1 on hypercorn, each of them a stranger that can harm none but itself.

Hypercorn also speaks HTTP/2 and WebSocket to whoever asks for them. Nothing here is served that way, so both are
left out: a request to upgrade is answered in HTTP/1.1, and the opening of HTTP/2 with 505.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Request
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIFramework, ConnectionState, H11SendableEvent, LifespanState
from hypercorn.utils import parse_socket_addr

from svc import events, logs
from svc.serving.limits import SLOWEST_BYTES_PER_S

VERSIONS = (b"1.1", b"1.0")
BOTH_LENGTHS = {b"content-length", b"transfer-encoding"}
MAX_RECV = 1 << 16
JOINED_BYTES = 1 << 16
"""Up to this size a body leaves in one piece with its head; a larger one is not copied for that."""


def single(error: BaseException) -> BaseException:
    """The one error that a group of nurseries is about, or the group when it is about several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Refused(Exception):
    """The request is not one that this server reads. The client has been told so."""


class Http1(H11Protocol):
    """HTTP/1.1 and nothing that a client would like it to become."""

    _head = b""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        """Hold a head back until its body comes: each piece costs system calls and task switches here and there."""
        try:
            data = self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is h11.ERROR:
                return
            raise
        if isinstance(event, h11.Response):
            self._head = data
            return
        pieces = (self._head, data) if len(data) > JOINED_BYTES else (self._head + data,)
        self._head = b""
        for piece in filter(None, pieces):
            await self.send(RawData(data=piece))

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.http_version not in VERSIONS:
            await self._refuse(505)
        if {name for name, _ in event.headers} >= BOTH_LENGTHS:
            await self._refuse(400)  # a proxy in front may have believed the other one, and see other requests in it

    async def _refuse(self, status: int) -> None:
        await self._send_error_response(status)
        raise Refused

    async def _create_stream(self, request: h11.Request) -> None:
        self.stream = HTTPStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode().upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1


class Connection(TCPServer):
    """One accepted connection. `run()` ends with it, and raises nothing but Cancelled."""

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        stream: trio.SocketStream,
        unread_timeout_s: float,
    ) -> None:
        super().__init__(app, config, context, LifespanState(), stream)  # type: ignore[arg-type]  # plain, not TLS
        self._unread_timeout_s = unread_timeout_s
        self._idle_since: float | None = trio.current_time()

    async def run(self) -> None:
        try:
            await self._speak()
        except* (Refused, OSError):
            pass
        except* Exception as group:
            error = single(group)
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
        finally:
            await trio.aclose_forcefully(self.stream)

    async def _speak(self) -> None:
        connected = self.stream.socket
        client = parse_socket_addr(connected.family, connected.getpeername())
        server = parse_socket_addr(connected.family, connected.getsockname())
        async with TaskGroup() as tasks:
            self._task_group = tasks
            state = ConnectionState(self.state)
            self.protocol = Http1(  # type: ignore[assignment]  # in place of the wrapper that changes protocols
                self.app, self.config, self.context, tasks, state, False, client, server, self.protocol_send
            )
            idleness = trio.CancelScope()
            tasks.spawn(self._end_idleness, idleness)
            await self._read_data()
            idleness.cancel()
        await self._close()

    async def _read_data(self) -> None:
        while True:
            try:
                data = await self.stream.receive_some(MAX_RECV)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            await self.protocol.handle(RawData(bytes(data)))
            if not data:
                break
        await self.protocol.handle(Closed())

    async def _end_idleness(self, scope: trio.CancelScope) -> None:
        """Close the connection once it has been idle for too long, or is when the server ends.

        One task a connection: to start and cancel one a request, as hypercorn does, is a fifth of a request's cost.
        """
        with scope:
            await self._until_stale()
            if self._idle_since is not None:
                await self._initiate_server_close()

    async def _until_stale(self) -> None:
        while True:
            now = trio.current_time()
            left_s = self.config.keep_alive_timeout - (now - (self._idle_since or now))
            if left_s <= 0:
                return
            with trio.move_on_after(left_s):
                await self.context.terminated.wait()
                return

    async def protocol_send(self, event: Event) -> None:
        """Send, and close the connection of a client that does not take what it asked for.

        Raises nothing when the client is gone.
        """
        if isinstance(event, Updated):
            self._idle_since = trio.current_time() if event.idle else None
        elif isinstance(event, RawData):
            await self._send(event.data)
        else:
            await super().protocol_send(event)

    async def _send(self, data: bytes) -> None:
        patience_s = self._unread_timeout_s + len(data) / SLOWEST_BYTES_PER_S
        async with self.send_lock:
            try:
                with trio.fail_after(patience_s, shield=True):
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError, trio.TooSlowError):
                await trio.aclose_forcefully(self.stream)
                await self.protocol.handle(Closed())


async def serve(
    app: ASGIFramework,
    listener: socket.socket,
    config: Config,
    *,
    until: Callable[[], Awaitable[None]],
    unread_timeout_s: float,
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns; then close it.

    Idle connections end at once then, busy ones with their answer or after `config.graceful_timeout`.
    """
    wrapped, context = ASGIWrapper(app), WorkerContext(None)
    lifespan = Lifespan(wrapped, config, LifespanState())

    async def answer(stream: trio.SocketStream) -> None:
        await Connection(wrapped, config, context, stream, unread_timeout_s).run()

    async with trio.open_nursery() as process:
        await process.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        async with trio.open_nursery() as connections:
            try:
                await _accept(answer, listener, connections, until)
            finally:
                await context.terminated.set()
                connections.cancel_scope.deadline = trio.current_time() + config.graceful_timeout
        await lifespan.wait_for_shutdown()
        process.cancel_scope.cancel()


async def _accept(
    answer: Callable[[trio.SocketStream], Awaitable[None]],
    listener: socket.socket,
    connections: trio.Nursery,
    until: Callable[[], Awaitable[None]],
) -> None:
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, answer, [accepting], handler_nursery=connections))
        await until()
        nursery.cancel_scope.cancel()
