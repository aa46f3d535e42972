"""A small HTTP/1.1 client that keeps a server busy and measures it: requests in turn on kept connections."""

from __future__ import annotations

import itertools
import re
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import trio

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Target:
    """The address of the server. `headers` of each request are complete lines without their line ends."""

    url: str
    path: str
    headers: tuple[str, ...] = ()

    def encode(self, body: bytes) -> bytes:
        """One whole POST request with a JSON body."""
        parts = urlsplit(self.url)
        head = [
            f"POST {parts.path}{self.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *self.headers,
        ]
        return "\r\n".join(head).encode() + _HEAD_END + body


@dataclass(slots=True)
class Measured:
    """What the clients saw: seconds of each answer, answers by status, and connections that broke."""

    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    broken: int = 0

    def percentile_s(self, percent: float) -> float:
        """The smallest latency that `percent` of all answers do not exceed; 0 without answers."""
        if not self.latencies_s:
            return 0.0
        ordered = sorted(self.latencies_s)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]


async def drive(target: Target, bodies: Sequence[bytes], *, connections: int, seconds: float) -> Measured:
    """Send `bodies` in turn, over and over, on `connections` at once for `seconds`. Raises OSError if none opens."""
    requests = itertools.cycle([target.encode(body) for body in bodies])
    measured = Measured()
    (await _connect(target.url)).close_now()
    started = time.perf_counter()
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(_client, target.url, requests, measured)
    measured.seconds = time.perf_counter() - started
    return measured


async def _client(url: str, requests: Iterator[bytes], measured: Measured) -> None:
    """One connection after another until cancelled; a request that a cancel cuts off is not counted."""
    while True:
        try:
            connection = await _connect(url)
            try:
                while True:
                    started = time.perf_counter()
                    status = await connection.ask(next(requests))
                    measured.latencies_s.append(time.perf_counter() - started)
                    measured.statuses[status] += 1
            finally:
                connection.close_now()
        except (OSError, trio.BrokenResourceError, EOFError):
            measured.broken += 1
            await trio.sleep(0.05)


class _Connection:
    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def ask(self, request: bytes) -> int:
        """Send one request and return the status of its answer. Raises EOFError if the server hangs up."""
        await self._stream.send_all(request)
        while (end := self._buffer.find(_HEAD_END)) < 0:
            await self._receive()
        head = bytes(self._buffer[: end + 2])
        length = _LENGTH.search(head)
        if length is None:
            raise EOFError("an answer without Content-Length")
        total = end + len(_HEAD_END) + int(length[1])
        while len(self._buffer) < total:
            await self._receive()
        del self._buffer[:total]
        return int(head[9:12])

    async def _receive(self) -> None:
        data = await self._stream.receive_some(_CHUNK_BYTES)
        if not data:
            raise EOFError("the server closed the connection")
        self._buffer += data

    def close_now(self) -> None:
        stream = self._stream
        while isinstance(stream, trio.SSLStream):
            stream = stream.transport_stream
        if isinstance(stream, trio.SocketStream):
            stream.socket.close()


async def _connect(url: str) -> _Connection:
    parts = urlsplit(url)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        secure = await trio.open_ssl_over_tcp_stream(
            parts.hostname or "", parts.port or 443, ssl_context=context, https_compatible=True
        )
        return _Connection(secure)
    return _Connection(await trio.open_tcp_stream(parts.hostname or "", parts.port or 80))
