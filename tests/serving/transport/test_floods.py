"""Floods of 64 KiB, which neither delay other clients nor write tracebacks."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from structlog.testing import capture_logs

from tests.serving.sockets import exchange, listening
from tests.serving.transport.echo import REQUEST, Echo

pytestmark = pytest.mark.anyio

SIZE = 1 << 16
LONGEST_TURN_S = 0.05
"""Bound of a turn in processor time, which a busy machine does not affect. Without limits, turns took 0.1 to 1 s."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    """Use the clock of the machine, because the test measures turns."""
    return "trio"


CHUNKED = b"POST /%b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
FLOODS = {
    "chunks": CHUNKED % b"body" + b"1\r\nx\r\n" * 12_000,
    "chunks that nobody reads": CHUNKED % b"" + b"1\r\nx\r\n" * 12_000,
    "extensions": CHUNKED % b"body" + (b"1" + b";a" * 2000 + b"\r\nx\r\n") * 20,
    "headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 16_000 + b"\r\n",
    "requests": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3000,
    "frames of HTTP/2": PREFACE + bytes(9) * 7000,
    "one header": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b" \t" * 32_000,
}


class Turns(trio.abc.Instrument):
    """Measures the processor time of the longest turn of the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began_s)

    def after_io_wait(self, timeout: float) -> None:
        self._began_s = time.thread_time()


@contextmanager
def measured() -> Iterator[Turns]:
    gc.collect()
    gc.disable()  # a full collection of the tests' objects takes longer than any turn
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
        gc.enable()


async def flood(port: int, message: bytes) -> bytes:
    """Return the answers to a flood, read until the server closes the connection or is silent."""
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError), trio.move_on_after(20):
            await stream.send_all(message)
            await stream.send_eof()
            async for part in stream:
                answer += part
    return answer


@pytest.mark.parametrize("message", [text[:SIZE] for text in FLOODS.values()], ids=FLOODS.keys())
async def test_no_turn_of_the_event_loop_is_long(message: bytes) -> None:
    """Eight connections flood at once. Another client is answered meanwhile."""
    with capture_logs() as records:
        async with listening(Echo()) as port:
            with measured() as turns:
                async with trio.open_nursery() as nursery:
                    for _ in range(8):
                        nursery.start_soon(flood, port, message)
                    assert (await exchange(port, REQUEST % b"")).endswith(b"well")
            assert (await exchange(port, REQUEST % b"")).endswith(b"well")
    assert turns.longest_s < LONGEST_TURN_S
    assert records == []


async def test_http2_without_tls_is_refused() -> None:
    """The preface of HTTP/2 gets an answer of HTTP/1.1, and the connection ends."""
    async with listening(Echo()) as port:
        answer = await exchange(port, PREFACE + bytes(9))
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in answer
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")
