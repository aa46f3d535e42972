"""The measuring client, against a small server of its own."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from svc.cli.load_generator import Measured, Target, drive

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """Sockets of the kernel need real time."""
    return "trio"


@asynccontextmanager
async def server(answer: Callable[[int], bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answers each request with `answer(its number)`; yields the URL and the heads it received."""
    heads: list[bytes] = []

    async def handle(stream: trio.SocketStream) -> None:
        pending = b""
        async for data in stream:
            pending += data
            while b"}" in pending:
                request, pending = pending.split(b"}", 1)
                heads.append(request.partition(b"\r\n\r\n")[0])
                reply = answer(len(heads))
                if not reply:
                    return
                await stream.send_all(reply)

    async with trio.open_nursery() as nursery:
        serve = functools.partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
        listener = (await nursery.start(serve))[0]
        yield f"http://127.0.0.1:{listener.socket.getsockname()[1]}", heads
        nursery.cancel_scope.cancel()


def reply(status: int) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\nContent-Length: 2\r\n\r\n{]" % status


async def test_answers_are_counted_by_status() -> None:
    """Every answer has a latency; those that are not 200 are seen as such."""
    async with server(lambda n: reply(404 if n == 3 else 200)) as (url, heads):
        measured = await drive(Target(url, "/x", ("X-API-Key: k",)), [b"{}"], connections=2, seconds=0.3)
    assert measured.statuses[404] == 1
    assert measured.statuses[200] > 10
    assert len(measured.latencies_s) == sum(measured.statuses.values())
    assert heads[0].startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1")
    assert b"X-API-Key: k" in heads[0]


async def test_a_broken_connection_is_counted_and_opened_again() -> None:
    """One hang-up does not end the measurement."""
    async with server(lambda n: b"" if n == 2 else reply(200)) as (url, _):
        measured = await drive(Target(url, "/x"), [b"{}"], connections=1, seconds=0.5)
    assert measured.broken == 1
    assert measured.statuses[200] > 2


async def test_no_server_is_an_oserror() -> None:
    """The command turns it into one line."""
    with pytest.raises(OSError, match=r"."):
        await drive(Target("http://127.0.0.1:1", "/x"), [b"{}"], connections=1, seconds=1)


def test_percentiles_are_values_that_were_measured() -> None:
    """No interpolation: each percentile is a latency that somebody waited."""
    measured = Measured(latencies_s=[i / 100 for i in range(1, 101)])
    assert (measured.percentile_s(50), measured.percentile_s(99)) == (0.51, 1.0)
    assert Measured().percentile_s(99) == 0
