"""Connections over real sockets: what one of them does, and what is done to it, stays with it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import h2.connection
import h2.settings
import pytest
import trio
import trio.testing
from hypercorn.config import Config
from structlog.testing import capture_logs

from svc.serving import connections
from svc.serving.bind import BACKLOG
from svc.serving.bodies import SLOWEST_BYTES_PER_S

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
async def served(
    *, idle_timeout_s: float = 30.0, unread_timeout_s: float = 30.0
) -> AsyncIterator[tuple[Connect, Callable[[], None]]]:
    """How to connect to a server of `application`, and to begin its drain, which the end of the block also does."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    port = listener.getsockname()[1]
    over = trio.Event()
    config = Config()
    config.graceful_timeout = 5
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await connections.serve(
                application,
                listener,
                config,
                until=over.wait,
                idle_timeout_s=idle_timeout_s,
                unread_timeout_s=unread_timeout_s,
            )

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
    receive_some = connections.Wire.receive_some

    async def stumbling(self: connections.Wire, max_bytes: int | None = None) -> bytes:
        data = await receive_some(self, max_bytes)
        if b"stumble" in data:
            raise KeyError("unforeseen")
        return data

    monkeypatch.setattr(connections.Wire, "receive_some", stumbling)
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
    "opening",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
        b"\x00" * 64,
    ],
    ids=["noise as HTTP/2", "an upgrade without its settings", "noise"],
)
async def test_nonsense_ends_its_own_connection_only(opening: bytes) -> None:
    """Whatever hypercorn makes of it, and soon after the client has said all."""
    async with served(unread_timeout_s=1) as (connect, _):
        async with await connect() as stream:
            await stream.send_all(opening)
            await stream.send_eof()
            await everything(stream)
        assert (await ask(connect)).endswith(b"well")


async def test_a_small_answer_comes_in_one_piece() -> None:
    """Head and body together: whoever reads once has both."""
    async with served() as (connect, _), await connect() as stream:
        await stream.send_all(REQUEST % b"")
        assert (await stream.receive_some()).endswith(b"\r\n\r\nwell")


async def test_an_idle_connection_is_closed_and_a_used_one_is_not() -> None:
    """The time begins anew with every answer."""
    async with served(idle_timeout_s=0.5) as (connect, _), await connect() as used, await connect() as idle:
        for _ in range(3):
            await trio.sleep(0.3)
            await used.send_all((REQUEST % b"").replace(b"Connection: close\r\n", b""))
            assert (await used.receive_some()).endswith(b"well")
        assert await idle.receive_some() == b""


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


async def test_what_has_come_before_a_drain_is_answered() -> None:
    """However many speak at the last moment: on connections that were idle, or silent, or not accepted yet."""
    ask = (REQUEST % b"").replace(b"Connection: close\r\n", b"")
    with trio.fail_after(20):
        async with served() as (connect, drain), AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(await connect()) for _ in range(300)]
            for stream in streams[::2]:
                await stream.send_all(ask)
                assert (await stream.receive_some()).endswith(b"well")
            for stream in streams:  # in one turn, so that nothing of it is answered before the drain
                assert os.write(stream.socket.fileno(), ask) == len(ask)
            for _ in range(100):
                late = socket.create_connection(streams[0].socket.getpeername())
                late.sendall(ask)
                streams.append(trio.SocketStream(trio.socket.from_stdlib_socket(late)))
                stack.push_async_callback(streams[-1].aclose)
            drain()
            for stream in streams:
                assert (await everything(stream)).endswith(b"well")


def http2(window: int, *, asks: bool) -> bytes:
    """The opening of HTTP/2 by a client that grants each answer `window` bytes, and its request for a large one."""
    client = h2.connection.H2Connection()
    client.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
    )
    client.initiate_connection()
    if asks:
        names = {":method": "GET", ":path": "/large", ":scheme": "http", ":authority": "localhost"}
        client.send_headers(1, names.items(), end_stream=True)
    return client.data_to_send()


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        http2(1, asks=False),
        http2(1, asks=True),
    ],
    ids=["a handshake without its key", "a handshake in HTTP/1.0", "HTTP/2 and nothing", "HTTP/2 without permission"],
)
async def test_what_never_becomes_a_request_or_an_answer_is_closed(opening: bytes) -> None:
    """Nobody holds a connection for ever, whatever it pretends to become."""
    with trio.fail_after(20):
        async with served(idle_timeout_s=5, unread_timeout_s=5) as (connect, _), await connect() as stream:
            await stream.send_all(opening)
            await everything(stream)
            assert (await ask(connect)).endswith(b"well")


async def test_sends_of_one_connection_never_overlap() -> None:
    """The lock costs no task switch when it is free, and queues whoever comes meanwhile in their order."""
    lock = connections.SendLock()
    order: list[str] = []

    async def send(name: str) -> None:
        async with lock:
            order.append(f"{name} begins")
            await trio.lowlevel.checkpoint()
            order.append(f"{name} ends")

    async with trio.open_nursery() as nursery, lock:
        for name in ("first", "second"):
            nursery.start_soon(send, name)
            await trio.testing.wait_all_tasks_blocked()
        assert not order
    assert order == ["first begins", "first ends", "second begins", "second ends"]
