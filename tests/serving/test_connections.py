"""Connections over real sockets: what one of them does, and what is done to it, stays with it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from hypercorn.config import Config
from structlog.testing import capture_logs

from svc.serving import connections
from svc.serving.limits import SLOWEST_BYTES_PER_S

pytestmark = pytest.mark.anyio

REQUEST = b"GET /%b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LARGE = bytes(12 << 20)
Connect = Callable[[], Awaitable[trio.SocketStream]]


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/` answers a word, `/large` more than the kernel keeps for a client that does not read."""
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": message["type"] + ".complete"})
        return
    body = LARGE if scope["path"] == "/large" else b"well"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(unread_timeout_s: float = 30.0) -> AsyncIterator[tuple[Connect, Callable[[], None]]]:
    """How to connect to a server of `application`, and to begin its drain, which the end of the block also does."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    over = trio.Event()
    config = Config()
    config.graceful_timeout = 5
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await connections.serve(application, listener, config, until=over.wait, unread_timeout_s=unread_timeout_s)

        nursery.start_soon(serve)
        yield partial(trio.open_tcp_stream, "127.0.0.1", port), over.set
        over.set()


async def everything(stream: trio.SocketStream) -> bytes:
    return b"".join([part async for part in stream])


async def ask(connect: Connect, path: bytes = b"") -> bytes:
    async with await connect() as stream:
        await stream.send_all(REQUEST % path)
        return await everything(stream)


async def test_a_defect_in_one_connection_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that nobody foresaw closes its connection and is logged once; others, open or new, go on."""
    handle = connections.Http1.handle

    async def stumbling(self: connections.Http1, event: Any) -> None:
        if b"stumble" in getattr(event, "data", b""):
            raise KeyError("unforeseen")
        await handle(self, event)

    monkeypatch.setattr(connections.Http1, "handle", stumbling)
    with capture_logs() as records:
        async with served() as (connect, _), await connect() as other:
            await other.send_all((REQUEST % b"")[:10])
            async with await connect() as stream:
                await stream.send_all(b"stumble")
                assert await stream.receive_some() == b""
            await other.send_all((REQUEST % b"")[10:])
            assert (await everything(other)).endswith(b"well")
            assert (await ask(connect)).endswith(b"well")
    assert [record["event"] for record in records] == ["connection_failed"]
    assert records[0]["error"] == "KeyError: 'unforeseen'"


@pytest.mark.parametrize("taken", [0, 1000], ids=["nothing", "a little now and then"])
async def test_an_answer_that_is_not_taken_in_time_ends_its_connection(taken: int) -> None:
    """The time is the client timeout and a second for each MiB, however steadily the client reads."""
    async with served(unread_timeout_s=5) as (connect, _), await connect() as stream:
        await stream.send_all(REQUEST % b"large")
        read = len(await stream.receive_some(1000))
        for _ in range(5 + len(LARGE) // SLOWEST_BYTES_PER_S + 1):
            await trio.sleep(1)
            read += len(await stream.receive_some(taken)) if taken else 0
        assert read + len(await everything(stream)) < len(LARGE)
        assert (await ask(connect)).endswith(b"well")


async def test_a_client_that_has_said_all_is_still_answered() -> None:
    """Half of a connection may be closed: whoever shut its sending side still reads its answer."""
    async with served() as (connect, _), await connect() as stream:
        await stream.send_all((REQUEST % b"large").replace(b"Connection: close", b"X-Padding: 1"))
        await stream.send_eof()
        assert len(await everything(stream)) > len(LARGE)


@pytest.mark.parametrize(
    ("opening", "status"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
    ],
    ids=["HTTP/2", "a version to come", "two lengths"],
)
async def test_what_is_not_plain_http_1_is_refused(opening: bytes, status: bytes) -> None:
    """An answer that says so, and the end of the connection; nothing is logged as a defect."""
    with capture_logs() as records:
        async with served() as (connect, _), await connect() as stream:
            await stream.send_all(opening)
            assert (await everything(stream)).split()[1] == status
    assert records == []


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_an_upgrade_is_answered_in_http_1(protocol: bytes) -> None:
    """The offer is passed over, with and without the headers and bodies that would belong to it."""
    offer = b"Connection: close, Upgrade\r\nUpgrade: %b\r\nHTTP2-Settings: AAM\r\n" % protocol
    for more in (b"", b"Content-Length: 5\r\n"):
        async with served() as (connect, _), await connect() as stream:
            head = (REQUEST % b"").replace(b"Connection: close\r\n", offer + more)
            await stream.send_all(head + (b"hello" if more else b""))
            answer = await everything(stream)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"well")


async def test_a_drain_ends_idle_connections_and_lets_busy_ones_finish() -> None:
    """`serve` returns once the last answer is out."""
    with trio.fail_after(5):
        async with served() as (connect, drain):
            idle, busy = await connect(), await connect()
            await busy.send_all(REQUEST % b"large")
            await busy.receive_some(1)
            drain()
            assert await idle.receive_some() == b""
            assert len(await everything(busy)) >= len(LARGE)
            await idle.aclose()
            await busy.aclose()
