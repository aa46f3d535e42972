"""What a client may send in 64 KiB, in either protocol, keeps nobody waiting and writes no traceback."""

from __future__ import annotations

import gc
import random
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import trio
from h2.errors import ErrorCodes
from structlog.testing import capture_logs

from tests.serving.sockets import everything, exchange, listening
from tests.serving.transport.echo import LARGE, MEDIUM, REQUEST, Echo
from tests.serving.transport.test_http2 import Client

pytestmark = pytest.mark.anyio

SIZE = 1 << 16
LONGEST_TURN_S = 0.05
"""Of processor time, so that a busy machine does not matter. What is bounded here took 0.1 to 1 s before."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ASKED = b"\x82\x87\x84\x01\x01a"
"""The fields `:method: GET`, `:scheme: https`, `:path: /` and `:authority: a`, compressed."""

SLOW = ASKED.replace(b"\x84", b"\x04\x05/slow")


@pytest.fixture
def anyio_backend() -> str:
    """With the clock of the machine, which says how long a turn takes."""
    return "trio"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def requests(fields: bytes = ASKED, *, reset: bool) -> bytes:
    return b"".join(
        frame(1, 5, stream, fields) + (frame(3, 0, stream, bytes(4)) if reset else b"") for stream in range(1, 5000, 2)
    )


def moves() -> bytes:
    """Many streams that change their parents."""
    pick = random.Random(900)
    return b"".join(
        frame(2, 0, pick.randrange(1, 1800, 2), struct.pack(">IB", 0x80000000 | pick.randrange(2, 1800, 2), 1))
        for _ in range(5000)
    )


OPENED = frame(4, 0, 0)
FRAMES = {
    "empty settings": frame(4, 0, 0) * 8000,
    "settings": frame(4, 0, 0, struct.pack(">HI", 4, 70_000) * 50) * 300,
    "windows of many answers": frame(4, 0, 0, struct.pack(">HI", 4, 1)) + requests(reset=False),
    "pings": frame(6, 0, 0, bytes(8)) * 4000,
    "windows": frame(8, 0, 0, b"\0\0\0\1") * 6000,
    "requests": requests(reset=False),
    "rapid reset": requests(SLOW, reset=True),
    "priorities": moves(),
    "fields": b"".join(frame(1, 5, stream, ASKED + b"\x82" * 8000) for stream in range(1, 20, 2)),
    "continuations": frame(1, 1, 1, ASKED) + frame(9, 0, 1) * 8000,
    "empty data": frame(1, 4, 1, ASKED) + frame(0, 0, 1) * 8000,
    "little data": frame(1, 4, 1, ASKED) + frame(0, 0, 1, b"x") * 7000,
    "data that nobody asked for": frame(1, 5, 1, ASKED) + frame(0, 0, 1, b"x") * 7000,
    "frames that nobody knows": frame(99, 0, 0) * 8000,
}
CHUNKED = b"POST /%b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXTS = {
    "chunks": CHUNKED % b"body" + b"1\r\nx\r\n" * 12_000,
    "chunks that nobody reads": CHUNKED % b"" + b"1\r\nx\r\n" * 12_000,
    "extensions": CHUNKED % b"body" + (b"1" + b";a" * 2000 + b"\r\nx\r\n") * 20,
    "headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 16_000 + b"\r\n",
    "requests": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3000,
    "one header": b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b" \t" * 32_000,
}
FLOODS = {
    **{f"HTTP/2: {name}": PREFACE + OPENED + frames[:SIZE] for name, frames in FRAMES.items()},
    **{f"HTTP/1.1: {name}": text[:SIZE] for name, text in TEXTS.items()},
}


class Turns(trio.abc.Instrument):
    """How much processor time the longest turn of the event loop took."""

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
    gc.disable()  # a collection among all that the tests have imported takes longer than any turn
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    try:
        yield turns
    finally:
        trio.lowlevel.remove_instrument(turns)
        gc.enable()


async def flood(port: int, message: bytes) -> bytes:
    """What comes back to a flood, until the server ends it or has nothing more to say."""
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError), trio.move_on_after(20):
            await stream.send_all(message)
            await stream.send_eof()
            async for part in stream:
                answer += part
    return answer


@pytest.mark.parametrize("message", FLOODS.values(), ids=FLOODS.keys())
async def test_no_turn_of_the_event_loop_is_long(message: bytes) -> None:
    """Eight connections send it at once, and somebody else is answered meanwhile."""
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


CONTROL = ("empty settings", "pings", "windows", "rapid reset", "priorities", "empty data", "frames that nobody knows")


@pytest.mark.parametrize("name", CONTROL)
async def test_too_many_control_frames_end_the_connection(name: str) -> None:
    """The client is told so by a GOAWAY frame."""
    async with listening(Echo()) as port:
        answer = await flood(port, FLOODS[f"HTTP/2: {name}"])
    goaway = answer.rpartition(b"\0\0\x08\x07\0\0\0\0\0")[2]
    assert int.from_bytes(goaway[4:8], "big") == ErrorCodes.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(("path", "size", "window"), [("/large", len(LARGE), 65_535), ("/medium", len(MEDIUM), 1024)])
async def test_a_client_that_reads_much_may_open_as_many_windows(path: str, size: int, window: int) -> None:
    """A long answer comes to its end, however little its client permits at a time."""
    async with listening(Echo()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        client = Client(stream, window=window)
        client.ask(path)
        await client.say()
        assert len((await client.answer())[1]) == size


async def test_a_server_may_refuse_the_protocol() -> None:
    """It answers the preface as what is no request of HTTP/1.1, and goes on answering that."""
    async with listening(Echo(), http2=False) as port:
        answer = await exchange(port, PREFACE + OPENED + frame(1, 5, 1, ASKED))
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in answer
        assert (await exchange(port, REQUEST % b"")).endswith(b"well")


def conversations(pick: random.Random) -> Iterator[bytes]:
    """Frames of every kind in any order and changed anywhere, behind the preface."""
    heads = (ASKED, b"\x83\x86\x84\x01\x01a", b"\x02\x07CONNECT\x01\x01a", b"\x82\x87\x84\x01\x01a\x0f\x0d\x015")
    payloads = (b"", bytes(4), bytes(5), bytes(8), b"\0\4\0\0\0\1", b"\x82" * 90, b"\xff" * 20, b"\0\0\0\1\xff", *heads)
    while True:
        sent = b"".join(
            frame(
                pick.choice((0, 1, 1, 1, *range(11))),
                pick.choice((0, 1, 4, 5, 5, 5, 0x2D, 0x20)),
                pick.choice((0, 1, 1, 3, 3, 5, 2, 0x7FFFFFFF)),
                pick.choice(payloads),
            )
            for _ in range(pick.randrange(1, 12))
        )
        changed = bytearray(PREFACE + OPENED + frame(1, pick.choice((4, 5)), 1, pick.choice(heads)) + sent)
        for _ in range(pick.randrange(3)):
            changed[pick.randrange(20, len(changed))] = pick.randrange(256)
        yield bytes(changed)


async def test_no_frames_cause_a_traceback() -> None:
    """Whatever a stranger sends is answered or ends its own connection, without a record in the log."""
    sent = conversations(random.Random(75))
    with capture_logs() as records:
        async with listening(Echo()) as port:
            for _ in range(1000):
                message = next(sent)
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(message)
                        await stream.send_eof()
                    await everything(stream)
                assert records == [], message
            assert (await exchange(port, REQUEST % b"")).endswith(b"well")
