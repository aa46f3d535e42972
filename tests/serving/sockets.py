"""The application behind a real port, and a client that sends any bytes there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

from svc.serving.transport import server
from svc.serving.transport.certificate import Tls
from svc.serving.transport.connection import ConnectionLimits, Spread
from svc.serving.transport.messages import RequestHandler
from svc.serving.transport.server import BACKLOG


@asynccontextmanager
async def listening(
    application: RequestHandler,
    *,
    idle_s: float = 30.0,
    unread_s: float = 30.0,
    drain_s: float = 5.0,
    tls: Tls | None = None,
    spread: Spread | None = None,
) -> AsyncIterator[int]:
    """Serve `application` during the block, and yield its port. Leaving the block drains the server."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as in `bind`: virtual time jumps over delays
    over = trio.Event()
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            limits = ConnectionLimits(idle_s, unread_s, drain_s)
            await server.serve(application, listener, limits, until=over.wait, tls=tls, spread=spread)

        nursery.start_soon(serve)
        yield listener.getsockname()[1]
        over.set()


async def everything(stream: trio.SocketStream) -> bytes:
    """Return all bytes until the server closes the connection."""
    found = b""
    with suppress(trio.BrokenResourceError):
        async for part in stream:
            found += part
    return found


async def exchange(port: int, sent: bytes) -> bytes:
    """Send these bytes, and return all bytes until the server closes the connection."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):  # the server may close the connection before all bytes are sent
            await stream.send_all(sent)
        return await everything(stream)
