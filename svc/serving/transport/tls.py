"""TLS connections. hypercorn reads and writes HTTP/1.1 and HTTP/2 on them.

svc uses only hypercorn's `TCPServer`, which serves one accepted connection. hypercorn's accept loop would ignore the
load of other workers, reset queued connections at the end, and end the whole server if one connection fails.
"""

from __future__ import annotations

import re
import socket
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from priority.priority import PriorityError

from svc import events, logs
from svc.errors import ApiError, HeadersTooLarge, MalformedRequest
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import LINGER_S, ConnectionLimits, Shared, run_until
from svc.serving.transport.http1 import MAX_HEAD_BYTES, MAX_HEADERS
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S, ClientGone, Head, RequestHandler, Response
from svc.serving.transport.pacing import Rank

HANDSHAKE_S = 10.0
"""Longest time for a TLS handshake. A client that connects and sends nothing can delay a drain by this time."""

PREFACE_BYTES, FRAME_HEAD_BYTES = 24, 9
"""Sizes of the connection preface and of the head of a frame in HTTP/2 (RFC 9113, 3.4 and 4.1)."""
FRAMES_A_PIECE, PIECE_BYTES = 16, 4096
"""Maximum number of HTTP/2 frames, and of bytes of HTTP/1.1, that hypercorn gets from one connection in a turn.

If four clients flood PING, SETTINGS or empty DATA frames, the longest turn takes 2 ms. It takes 56 to 71 ms if
hypercorn gets 64 KiB at once."""
HEADERS, CONTINUATION = 1, 9
"""Types of the frames that carry a header block (RFC 9113, 6.2 and 6.10)."""
PADDED, PRIORITY = 0x8, 0x20
BLOCK_START_BYTES = 40
"""Number of bytes at the beginning of a header block that are checked for updates of the table size."""
# RFC 7541, 4.2 allows two updates. A block that consists of updates takes 1 µs a byte, five times as long as others.
_size_updates = re.compile(rb"(?:[\x20-\x3e]|\x3f[\x80-\xff]{0,10}[\x00-\x7f]){3}")
MOST_KEYLESS = 1024
"""Maximum number of open requests without an accepted key, on all TLS connections of a process (`Keyless`).

An open request takes 12 KB, and up to 100 KB if its client sends a body before its key is known."""
AHEAD_BYTES = 1 << 14
"""Number of bytes of a body from which a request that waits for its key does not read on."""
LAST_FRAME_S = 0.05
"""Pause before an idle connection ends, so that hypercorn can still send the last frame of an answer."""
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
PART_BYTES = 1 << 16
"""Maximum number of bytes of an answer in one ASGI message."""
_KINDS = {"http": "http.response", "websocket": "websocket.http.response"}
_target = re.compile(rb"[!-~]+")


class AsgiApplication:
    """The ASGI application that hypercorn calls. It passes each request to svc's application.

    A WebSocket handshake gets the answer that a GET without the upgrade would get.
    """

    def __init__(self, application: RequestHandler, *, unread_s: float, caller: Caller | None = None) -> None:
        self._application = application
        self._unread_s = unread_s
        self._caller = caller or Caller(Keyless(), lambda: None)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request. Sends nothing if the client has disconnected.

        Reads the rest of the body before it sends the answer. In HTTP/2, an answer to an incomplete request would end
        the connection, and with it the requests on all other streams. The client has `unread_s` to send
        the rest, or LINGER_S before an answer that ends the connection. It has `unread_s` to read the answer, and a
        second more for each MiB.
        """
        kind = _KINDS.get(scope["type"])
        if kind is None:
            raise NotImplementedError(f"only requests are answered here, not {scope['type']}")
        incoming = AsgiRequest(receive, (scope.get("client") or ("",))[0], self._caller)
        try:
            response = await self._answer(scope, incoming)
            if response is not None:
                with self._application.unsent.hold(response.size):
                    await self._send(kind, scope, incoming, response, send)
        finally:
            incoming.leave()

    async def _send(
        self, kind: str, scope: Mapping[str, Any], incoming: AsgiRequest, response: Response, send: Send
    ) -> None:
        with trio.move_on_after(LINGER_S if response.ends_connection else self._unread_s):
            try:
                await incoming.skip()
            except ClientGone:
                return
        closing = scope["http_version"] in ("1.0", "1.1") and (
            self._application.is_leaving or response.ends_connection or not incoming.ended
        )
        messages = _messages(kind, response, closing=closing)

        async def send_all() -> None:
            for message in messages:
                await send(message)

        with trio.move_on_after(self._unread_s + response.size / SLOWEST_BYTES_PER_S):
            if response.size > PART_BYTES:
                # In HTTP/2, hypercorn would hold the answer until the deadline if the client leaves.
                await run_until(incoming.until_gone, send_all)
            else:
                await send_all()

    async def _answer(self, scope: Mapping[str, Any], incoming: AsgiRequest) -> Response | None:
        """Return the answer to one request, or None if the client has disconnected.

        Logs an unexpected exception before raising it, because hypercorn may not log it.
        """
        try:
            incoming.head = _head(scope)
        except ApiError as error:
            return self._application.refuse(error, incoming.client)
        try:
            return await self._application(incoming)
        except Exception as error:
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}", exc_info=error)
            raise


def _head(scope: Mapping[str, Any]) -> Head:
    """Return the head of a request.

    Raises an ApiError if the target is not visible ASCII, or if there are more than MAX_HEADERS headers.
    """
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    if not _target.fullmatch(target):
        raise MalformedRequest("the path of the request is not visible ASCII")
    headers = [(bytes(name).lower(), bytes(value)) for name, value in scope["headers"]]
    if len(headers) > MAX_HEADERS:
        raise HeadersTooLarge
    return Head(scope.get("method", "GET"), target, headers, None)


def _messages(kind: str, response: Response, *, closing: bool) -> Iterator[Message]:
    """Yield the ASGI messages of an answer. Their types begin with `kind`.

    hypercorn drops the body if the request is HEAD.
    """
    headers = [(b"content-type", response.content_type)]
    if response.status != HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", b"%d" % response.size))
    headers += [*response.headers, *([(b"connection", b"close")] if closing else [])]
    yield {"type": f"{kind}.start", "status": response.status, "headers": headers}
    for part in response.parts:
        for start in range(0, len(part), PART_BYTES):
            yield {"type": f"{kind}.body", "body": part[start : start + PART_BYTES], "more_body": True}
    yield {"type": f"{kind}.body", "body": b"", "more_body": False}


class AsgiRequest:
    """One ASGI request as the application sees it (`messages.Incoming`).

    `AsgiApplication` sets `head` before it passes the request on. Parts of the body that arrive while `until_gone`
    waits are kept for `receive`.
    """

    late_s: float = 0.0
    whole_body: bytes | None = None
    head: Head

    def __init__(self, receive: Receive, client: str, caller: Caller | None = None) -> None:
        self.client = client
        self._caller = caller
        self.arrived_s = trio.current_time()
        self._receive = receive
        self._ahead: deque[bytes] = deque()
        self.ended = self._is_gone = False
        if caller is not None:
            caller.count(1)

    def note_kid(self, kid: str) -> None:
        """Take note of the id of the request's accepted key. The request then counts as keyless no longer."""
        if self._caller is not None:
            self._caller.kid = kid
            self._caller.count(-1)
            self._caller = None

    def leave(self) -> None:
        """Stop counting the request, unless its body has not ended. Then it keeps its stream, and still counts."""
        if self._caller is not None and (self.ended or self._is_gone):
            self._caller.count(-1)

    async def receive(self) -> bytes:
        """Return the next part of the body, or empty bytes after the last part. Raises ClientGone."""
        while not self._ahead and not self.ended:
            await self._read()
        return self._ahead.popleft() if self._ahead else b""

    async def until_gone(self) -> None:
        """Return when the client has disconnected. Never returns once AHEAD_BYTES or more wait for `receive`."""
        with suppress(ClientGone):
            while sum(map(len, self._ahead)) < AHEAD_BYTES:
                await self._read()
            await trio.sleep_forever()

    async def skip(self) -> None:
        """Discard the rest of the body. Raises ClientGone."""
        while not self.ended:
            await self._read()
            self._ahead.clear()

    async def _read(self) -> None:
        message = await self._receive()
        if message["type"].endswith(".disconnect"):
            self._is_gone = True
            raise ClientGone
        if message.get("body"):
            self._ahead.append(message["body"])
        self.ended = not message.get("more_body", False)


class Keyless:
    """The numbers of open requests without an accepted key, for all TLS connections of a process.

    Above MOST_KEYLESS, the connection with the most ends. So clients without a key cannot fill the memory, and need
    as many connections as requests to keep out a client with a few.
    """

    def __init__(self) -> None:
        self._counts = Counter[Caller]()
        self._total = 0

    def count(self, caller: Caller, change: int) -> None:
        """Add `change`, and end a connection if there are too many requests."""
        if change < 0 and not self._counts[caller]:
            return  # the connection has ended
        self._counts[caller] += change
        self._total += change
        if self._total > MOST_KEYLESS:
            ((most, _),) = self._counts.most_common(1)
            self.forget(most)
            most.end()

    def forget(self, caller: Caller) -> None:
        """Stop counting the requests of a connection that ends."""
        self._total -= self._counts.pop(caller, 0)


class Caller:
    """The client of one TLS connection. `end` ends the connection, `kid` is the id of its last accepted key."""

    def __init__(self, keyless: Keyless, end: Callable[[], None]) -> None:
        self.end = end
        self.kid: str | None = None
        self._keyless = keyless

    def count(self, change: int) -> None:
        """Add `change` to the number of open requests without an accepted key."""
        self._keyless.count(self, change)


class TlsServer:
    """A server of accepted TLS connections, which share one hypercorn configuration and one certificate."""

    def __init__(self, tls: Tls, shared: Shared) -> None:
        self._tls = tls
        self._shared = shared
        self._config = _config(shared.limits)
        self._context = WorkerContext(None)
        self._context.terminated = _Leaving()
        self._keyless = Keyless()

    async def run(self, connected: socket.socket) -> None:
        """Serve one connection until the client or the server ends it.

        An unexpected exception is logged and ends this connection only.
        """
        scope = trio.CancelScope()
        caller = Caller(self._keyless, scope.cancel)
        shared = self._shared
        stream = _Stream(trio.socket.from_stdlib_socket(connected), self._tls, shared, caller)
        application: Any = AsgiApplication(shared.application, unread_s=shared.limits.unread_s, caller=caller)
        try:
            with scope:
                # hypercorn declares trio.SSLStream here, but calls only methods that `_Stream` has too.
                await TCPServer(ASGIWrapper(application), self._config, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
        except* (KeyError, UnicodeDecodeError, UnboundLocalError, PriorityError):
            # hypercorn 0.18: KeyError for bytes after a refused body, UnicodeDecodeError for non-ASCII headers,
            # UnboundLocalError for CONNECT without a path, PriorityError for a flood of PRIORITY or reset streams
            pass
        except* Exception as group:
            error = group.exceptions[0]
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
        finally:
            self._keyless.forget(caller)
            connected.close()
            shared.spread.show(-1)

    async def end(self) -> None:
        """End idle connections now, and busy ones when they become idle."""
        await self._context.terminated.set()


class _Leaving(EventWrapper):
    """The event that makes hypercorn end idle connections, and busy connections once they are idle.

    hypercorn waits for this event in idle connections. It also asks `is_set` in busy connections. If the result were
    True, it would reset new requests, and close an HTTP/2 connection before the last frame of an answer.
    """

    async def wait(self) -> None:
        await super().wait()
        await trio.sleep(LAST_FRAME_S)

    def is_set(self) -> bool:
        return False


async def _stay_in_http1(_protocol: H11Protocol, _request: Any) -> None:
    """Ignore a request to change to HTTP/2. Only ALPN chooses it (RFC 9113, 3.2)."""


# hypercorn would obey `Upgrade: h2c` and the preface of HTTP/2. `Frames` would not see the frames that follow.
H11Protocol._check_protocol = _stay_in_http1  # type: ignore[assignment, method-assign]


def _config(limits: ConnectionLimits) -> Config:
    config = Config()
    # svc logs answers itself, and hypercorn's access log adds 64 µs to the 331 of a request.
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = limits.idle_s
    config.keep_alive_max_requests = sys.maxsize  # at this count hypercorn's HTTP/2 loses requests in flight
    config.h11_max_incomplete_size = config.h2_max_header_list_size = MAX_HEAD_BYTES
    config.max_app_queue_size = 4  # frames of a body, of at most 16 KiB, that wait for a request that does not read
    config.ssl_handshake_timeout = HANDSHAKE_S
    # Closes connections that hypercorn never closes itself, such as after a failed WebSocket handshake.
    config.read_timeout = round(limits.idle_s + limits.unread_s)
    return config


class Frames:
    """A splitter of received HTTP/2 bytes into pieces in which at most FRAMES_A_PIECE frames begin."""

    def __init__(self) -> None:
        self._data = b""
        self._left = PREFACE_BYTES
        """Number of bytes until the current frame or the preface ends."""
        self._block_bytes, self._block_start = 0, b""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def take(self) -> bytes:
        """Return the next piece, or empty bytes if more bytes must arrive first.

        Raises HeadersTooLarge if a header block has more than MAX_HEAD_BYTES, and MalformedRequest if three
        updates of the table size begin it.
        """
        end = self._left
        for _ in range(FRAMES_A_PIECE):
            if end + FRAME_HEAD_BYTES > len(self._data):
                break
            length = int.from_bytes(self._data[end : end + 3])
            # Waits for the first bytes of a block, so that `_check_block` sees them.
            if end + FRAME_HEAD_BYTES + min(length, BLOCK_START_BYTES) > len(self._data):
                break
            self._check_block(end, length)
            end += FRAME_HEAD_BYTES + length
        piece, self._data = self._data[:end], self._data[end:]
        self._left = end - len(piece)
        return piece

    def _check_block(self, frame: int, length: int) -> None:
        """Count the bytes of a frame that belong to a header block, and check the block's size and beginning."""
        kind, flags = self._data[frame + 3], self._data[frame + 4]
        if kind == HEADERS:
            self._block_bytes, self._block_start = 0, b""
        elif kind != CONTINUATION:
            return
        if len(self._block_start) < BLOCK_START_BYTES:  # an attacker can divide the updates among several frames
            skipped = (1 if flags & PADDED else 0) + (5 if flags & PRIORITY else 0) if kind == HEADERS else 0
            start = frame + FRAME_HEAD_BYTES
            self._block_start += self._data[start + skipped : start + min(length, BLOCK_START_BYTES)]
            if _size_updates.match(self._block_start):
                raise MalformedRequest("a header block begins with too many updates of its table")
        self._block_bytes += length
        if self._block_bytes > MAX_HEAD_BYTES:
            raise HeadersTooLarge


class _Stream:
    """A TLS stream for hypercorn that waits for its turn before each read, and sets a deadline for each send.

    hypercorn has neither: a flood of frames would block the event loop, and a client that reads nothing would keep its
    connection.
    """

    def __init__(self, connected: trio.socket.SocketType, tls: Tls, shared: Shared, caller: Caller) -> None:
        stream = trio.SocketStream(connected)
        self._stream = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
        self._shared, self._caller = shared, caller
        self._frames = Frames()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive_some(self, most: int) -> bytes:
        """Wait for this connection's turn, and return the next bytes, or empty bytes at the end of the stream."""
        if self._stream.selected_alpn_protocol() != "h2":
            data = bytes(await self._stream.receive_some(min(most, PIECE_BYTES)))
            await self._shared.turns.enter(Rank.KNOWN, self._caller.kid)
            return data
        rank = Rank.GOING_ON
        try:
            while not (piece := self._frames.take()):
                rank = Rank.KNOWN
                data = bytes(await self._stream.receive_some(most))
                if not data:
                    return data
                self._frames.feed(data)
        except ApiError as error:
            # Counts and logs the refusal. The client gets no answer, only the end of its connection.
            client = ""
            with suppress(OSError):  # the client may have reset the connection, which then has no address
                client = str(self._stream.transport_stream.socket.getpeername()[0])
            self._shared.application.refuse(error, client)
            return b""
        await self._shared.turns.enter(rank, self._caller.kid)
        return piece

    async def send_all(self, data: bytes) -> None:
        """Send all bytes. Raises BrokenResourceError if the client does not read in time."""
        with trio.move_on_after(self._shared.limits.unread_s + len(data) / SLOWEST_BYTES_PER_S) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not take its answer")
