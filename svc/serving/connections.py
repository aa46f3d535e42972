"""The connections of the server: hypercorn on streams of our own, each a stranger that can harm none but itself.

Hypercorn's parts are used as they are. What the server adds stands around them: `Wire`, the stream that hypercorn
reads and writes, `Idleness`, which tells it when a connection has been idle too long, and `serve`, which accepts
connections and contains what goes wrong in one of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import TrioSingleTask, WorkerContext
from hypercorn.typing import AppWrapper, ASGIFramework, LifespanState, TaskGroup

from svc import events, logs
from svc.serving.bodies import SLOWEST_BYTES_PER_S
from svc.serving.entrance import Entrance
from svc.serving.reception import Desk, Reception
from svc.serving.signals import run_until

Send = Callable[[Any], Awaitable[None]]

JOINED_BYTES = 1 << 16
"""Up to this size a body leaves in one piece with its head; a larger one is not copied for that."""


def single(error: BaseException) -> BaseException:
    """The one error that a group of nurseries is about, or the group when it is about several."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class Wire(trio.abc.Stream):
    """A socket stream that gives up on clients which do not take their answers, and sends head and body as one.

    Each piece sent costs system calls and task switches here and at the client. So the head of a final answer, which
    hypercorn sends by itself, waits for the piece after it; hypercorn always sends one, if only an empty one.
    """

    def __init__(
        self, stream: trio.SocketStream, desk: Desk, unread_timeout_s: float, at_end: Callable[[], None]
    ) -> None:
        self.socket = stream.socket
        self._stream = stream
        self._desk = desk
        self._unread_timeout_s = unread_timeout_s
        self._at_end = at_end
        self._head = b""

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As of any stream. The first empty answer is the end: `at_end` is then told."""
        try:
            data = await self._desk.receive(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._at_end()
            raise
        if not data:
            self._at_end()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, within the client timeout and a second for each MiB. Raises BrokenResourceError of a lost client."""
        if self._head:
            data = await self._joined(bytes(data))
        elif _is_head(data):
            self._head = bytes(data)
            return
        if data:
            await self._send(data)

    async def _joined(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        if len(data) <= JOINED_BYTES:
            return head + data
        await self._send(head)
        return data

    async def _send(self, data: bytes | bytearray | memoryview) -> None:
        self._desk.answered()
        rest = memoryview(data)[self._send_now(data) :]
        if not rest:
            return
        try:
            with trio.fail_after(self._unread_timeout_s + len(data) / SLOWEST_BYTES_PER_S):
                await self._stream.send_all(rest)
        except (trio.TooSlowError, trio.BusyResourceError):
            await trio.aclose_forcefully(self)
            raise trio.BrokenResourceError("the client does not take its answer") from None

    def _send_now(self, data: bytes | bytearray | memoryview) -> int:
        """How many bytes the kernel takes at once: of most answers all, which saves a deadline and a task switch."""
        try:
            return os.write(self.socket.fileno(), data)
        except OSError:  # it is full, or nobody is there: the stream tells which
            return 0

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        self._desk.close()
        await self._stream.aclose()


def _is_head(data: bytes | bytearray | memoryview) -> bool:
    """True for the head of a final answer in HTTP/1; interim ones, such as 100, have to leave at once."""
    start = bytes(data[:10])
    return start.startswith(b"HTTP/1.") and start[9:10] != b"1"


class SendLock:
    """Hypercorn's lock around a send, taken without a task switch when it is free: an answer takes it three times."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class Idleness(TrioSingleTask):
    """Hypercorn's idle timer as one task a connection: one a request would be a fifth of a request's cost.

    A connection is idle when the application answers nothing on it. Hypercorn also takes for busy what only began to
    be something, such as a failed handshake of a WebSocket or HTTP/2 without a request, and would never end that.
    """

    def __init__(self, timeout_s: float, over: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._over = over
        self._calls = 0
        self._since = trio.current_time()
        self._scope: trio.CancelScope | None = None

    async def restart(self, task_group: TaskGroup, action: Callable[..., Any]) -> None:
        """Watch from now on; `action` ends the connection that was idle too long, or is when the server ends."""
        if self._scope is None:
            self._scope = trio.CancelScope()
            task_group.spawn(self._watch, self._scope, action)

    async def stop(self) -> None:
        """Nothing: a call begins."""

    def begin(self) -> None:
        """The application answers a request from now on."""
        self._calls += 1

    def finish(self) -> None:
        """The application has answered a request."""
        self._calls -= 1
        self._since = trio.current_time()

    def end(self) -> None:
        """The connection is over: nobody needs to watch it."""
        if self._scope is not None:
            self._scope.cancel()

    async def _watch(self, scope: trio.CancelScope, action: Callable[..., Any]) -> None:
        with scope:
            await self._until_stale()
            if not self._calls:
                await action()

    async def _until_stale(self) -> None:
        while True:
            now = trio.current_time()
            deadline = (now if self._calls else self._since) + self._timeout_s
            if deadline <= now:
                return
            with trio.CancelScope(deadline=deadline):
                await self._over()
                return


async def serve(
    app: ASGIFramework,
    listener: socket.socket,
    config: Config,
    *,
    until: Callable[[], Awaitable[None]],
    idle_timeout_s: float,
    unread_timeout_s: float,
) -> None:
    """Accept from `listener`, which is listening, until `until()` returns; then close it.

    Idle connections end at once then, busy ones with their answer or after `config.graceful_timeout`.
    """
    wrapped, context = ASGIWrapper(app), WorkerContext(None)
    reception = Reception()
    lifespan = Lifespan(wrapped, config, LifespanState())
    config.keep_alive_timeout = 0  # when hypercorn is told that a connection is stale, it has waited long enough

    async def answer(stream: trio.SocketStream, desk: Desk) -> None:
        idleness = Idleness(idle_timeout_s, context.terminated.wait)

        def end() -> None:
            idleness.end()
            life.deadline = trio.current_time() + unread_timeout_s

        async def call(scope: Any, receive: Any, send: Any, sync_spawn: Any, call_soon: Any) -> None:
            alone = scope["http_version"] in ("1.0", "1.1")
            if not alone:
                send = _patient(send, wire, unread_timeout_s)
            idleness.begin()
            try:
                await wrapped(scope, receive, send, sync_spawn, call_soon)
            finally:
                idleness.finish()
            if alone and scope["type"] == "websocket":
                life.cancel()  # it was refused; hypercorn would keep one whose handshake had a body

        with trio.CancelScope() as life:
            wire = Wire(stream, desk, unread_timeout_s, end)
            await _converse(call, config, context, wire, idleness)

    async with trio.open_nursery() as process:
        await process.start(lifespan.handle_lifespan)
        await lifespan.wait_for_startup()
        process.start_soon(reception.run)
        async with trio.open_nursery() as connections:

            def begin(stream: trio.SocketStream, desk: Desk) -> None:
                connections.start_soon(answer, stream, desk)

            entrance = Entrance(listener, reception, begin, idle_timeout_s)
            try:
                with listener:
                    await run_until(until, entrance.run)
                    entrance.let_all_in()
                with trio.move_on_after(config.graceful_timeout):
                    await reception.calm()
                await entrance.close()
            finally:
                await context.terminated.set()
                connections.cancel_scope.deadline = trio.current_time() + config.graceful_timeout
        await lifespan.wait_for_shutdown()
        process.cancel_scope.cancel()


async def _converse(app: AppWrapper, config: Config, context: WorkerContext, wire: Wire, idleness: Idleness) -> None:
    """Serve one connection to its end. A defect ends this connection and is logged: no other notices."""
    server = TCPServer(app, config, context, LifespanState(), wire)  # type: ignore[arg-type]  # any stream does
    server.idle_task = idleness
    server.send_lock = SendLock()  # type: ignore[assignment]  # it is only entered and left
    try:
        await server.run()
    except* OSError:
        pass
    except* Exception as group:
        error = single(group)
        logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
    finally:
        await trio.aclose_forcefully(wire)


def _patient(send: Send, wire: Wire, unread_timeout_s: float) -> Send:
    """`send` of a stream in HTTP/2, whose client may take bytes and still let the answer wait for its permission."""

    async def send_in_time(message: Any) -> None:
        with trio.move_on_after(unread_timeout_s + len(message.get("body", b"")) / SLOWEST_BYTES_PER_S):
            await send(message)
            return
        await trio.aclose_forcefully(wire)

    return send_in_time
