"""Connections over TLS, on which hypercorn speaks HTTP/1.1 and HTTP/2.

Only the part of hypercorn that serves one connection is used. Its own loop would accept without regard to other
workers, reset connections in the kernel's queue at the end, and end the whole server with an error of one connection.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState

from svc import events, logs
from svc.serving.transport.asgi import AsgiApplication
from svc.serving.transport.certificate import Tls
from svc.serving.transport.http1 import MAX_HEAD_BYTES
from svc.serving.transport.messages import SLOWEST_BYTES_PER_S
from svc.serving.transport.pacing import Rank
from svc.serving.transport.shared import Limits, Shared

HANDSHAKE_S = 10.0
"""Time for the handshake: a client that never begins it delays a drain by this."""

PREFACE_BYTES, FRAME_HEAD_BYTES = 24, 9
"""Sizes of HTTP/2 (RFC 9113, 3.4 and 4.1)."""
FRAMES_A_PIECE, PIECE_BYTES = 16, 4096
"""Frames and bytes that hypercorn gets at once.

Beside four clients that send nothing but PING, SETTINGS or empty DATA the longest turn of the event loop takes 2 ms.
With 64 KiB at once it took 56 to 71 ms."""
LAST_FRAME_S = 0.05
"""Pause between the last bytes of an answer and the end of its connection: hypercorn sends the last frame meanwhile."""


class TlsServer:
    """The server of connections over TLS."""

    def __init__(self, tls: Tls, shared: Shared) -> None:
        self._tls = tls
        self._shared = shared
        self._config = _config(shared.limits)
        self._context = WorkerContext(None)
        self._context.terminated = _Leaving()
        application: Any = AsgiApplication(shared.application, unread_s=shared.limits.unread_s)
        self._application = ASGIWrapper(application)

    async def run(self, connected: socket.socket) -> None:
        """Serve one connection until either side has ended it.

        An error ends this connection only, and is logged.
        """
        stream = _Stream(trio.socket.from_stdlib_socket(connected), self._tls, self._shared)
        try:
            # hypercorn's types want trio's own stream, but it uses only methods that `_Stream` has.
            await TCPServer(self._application, self._config, self._context, ConnectionState({}), stream)  # type: ignore[arg-type]
        except* (KeyError, UnicodeDecodeError):
            pass  # hypercorn's answer to bytes behind a body that was refused, and to text that is not ASCII
        except* Exception as group:
            error = group.exceptions[0]
            logs.emit(events.CONNECTION_FAILED, error=f"{type(error).__name__}: {error}")
        finally:
            connected.close()
            self._shared.spread.closed()

    async def end(self) -> None:
        """End idle connections, and busy ones once they are idle."""
        await self._context.terminated.set()


class _Leaving(EventWrapper):
    """An event that ends idle connections when it is set, and busy ones as soon as they are idle.

    To hypercorn it never looks set. If it did, hypercorn would reset new requests, and close an HTTP/2 connection
    between the last bytes of an answer and the frame that ends it.
    """

    async def wait(self) -> None:
        await super().wait()
        await trio.sleep(LAST_FRAME_S)

    def is_set(self) -> bool:
        return False


def _config(limits: Limits) -> Config:
    config = Config()
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = limits.idle_s
    config.keep_alive_max_requests = sys.maxsize  # at this count hypercorn's HTTP/2 loses requests in flight
    config.h11_max_incomplete_size = config.h2_max_header_list_size = MAX_HEAD_BYTES
    config.ssl_handshake_timeout = HANDSHAKE_S
    # For connections that hypercorn forgets, such as a failed handshake of WebSocket.
    config.read_timeout = round(limits.idle_s + limits.unread_s)
    return config


class Frames:
    """A divider of HTTP/2 input into pieces of a few frames."""

    def __init__(self) -> None:
        self._data = b""
        self._left = PREFACE_BYTES
        """Bytes that are missing of the current frame or of the preface."""

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def take(self) -> bytes:
        """Return the next piece, or no bytes while the head of the next frame is incomplete."""
        end = self._left
        for _ in range(FRAMES_A_PIECE):
            if end + FRAME_HEAD_BYTES > len(self._data):
                break
            end += FRAME_HEAD_BYTES + int.from_bytes(self._data[end : end + 3])
        piece, self._data = self._data[:end], self._data[end:]
        self._left = end - len(piece)
        return piece


class _Stream:
    """The TLS of one connection, with bounds that hypercorn does not have."""

    def __init__(self, connected: trio.socket.SocketType, tls: Tls, shared: Shared) -> None:
        stream = trio.SocketStream(connected)
        self._stream = trio.SSLStream(stream, tls.context, server_side=True, https_compatible=True)
        self._turns = shared.turns
        self._unread_s = shared.limits.unread_s
        self._frames = Frames()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive_some(self, most: int) -> bytes:
        """Return the next bytes in their turn, or no bytes at the end."""
        if self._stream.selected_alpn_protocol() != "h2":
            data = bytes(await self._stream.receive_some(min(most, PIECE_BYTES)))
            await self._turns.enter(Rank.KNOWN)
            return data
        rank = Rank.GOING_ON
        while not (piece := self._frames.take()):
            rank = Rank.KNOWN
            data = bytes(await self._stream.receive_some(most))
            if not data:
                return data
            self._frames.feed(data)
        await self._turns.enter(rank)
        return piece

    async def send_all(self, data: bytes) -> None:
        """Send all bytes. Raises BrokenResourceError if the client does not read.

        Without the timeout hypercorn would wait for ever.
        """
        with trio.move_on_after(self._unread_s + len(data) / SLOWEST_BYTES_PER_S) as scope:
            await self._stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not take its answer")
