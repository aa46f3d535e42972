"""How many requests a second does a running server answer, and how fast? `python -m benchmarks load URL`.

The users must be known to the model: ids of the training data. Without `--users` the first items that the server lists
are the seeds of related items. Run it on another machine, or it takes a core from the server. A repeated question is
answered from memory: a server with SVC_CACHED_ANSWERS=0 shows the cost of ranking.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import re
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import trio

SEED = 1
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


def get_json(url: str, path: str, headers: dict[str, str]) -> Any:
    """GET `path` and return its JSON. Ends the program if the server refuses."""
    answer = httpx.get(url + path, headers=headers, timeout=10.0)
    if answer.status_code != 200:
        sys.exit(f"{url}{path} answers {answer.status_code}: {answer.text}")
    return answer.json()


def only_recipe(url: str, headers: dict[str, str]) -> str:
    """Return the name of the only recipe with a model. Ends the program if there is not exactly one."""
    names = [recipe["name"] for recipe in get_json(url, "/v1/recipes", headers)["recipes"] if recipe["loaded"]]
    if len(names) != 1:
        sys.exit(f"--recipe: name one; models there are: {', '.join(names) or 'none'}")
    return str(names[0])


def shuffled_ids(path: Path, column: str) -> list[str]:
    """Return the distinct ids of a CSV with `column`, or of a file with one id a line, in random order."""
    with path.open(newline="", encoding="utf-8") as file:
        ids = [row[column] for row in csv.DictReader(file)] if path.suffix == ".csv" else file.read().split("\n")
    distinct = sorted({one.strip() for one in ids} - {""})
    random.Random(SEED).shuffle(distinct)
    return distinct


def requests(options: argparse.Namespace, headers: dict[str, str]) -> tuple[str, list[bytes]]:
    """Return the path of the verb and the bodies to send."""
    recipe = options.recipe or only_recipe(options.url, headers)
    asked: list[dict[str, Any]]
    if options.users is not None:
        verb, asked = "recommend", [{"user_id": user} for user in shuffled_ids(options.users, options.column)]
    else:
        items = get_json(options.url, f"/v1/recipes/{quote(recipe)}/items", headers)["items"]
        verb, asked = "recommend-related", [{"seed_items": [item["item_id"]]} for item in items]
    bodies = [json.dumps({**request, "limit": options.limit, **options.fields}).encode() for request in asked]
    return f"/v1/recipes/{recipe}:{verb}", bodies


def figures(measured: Measured) -> dict[str, Any]:
    """Return the figures to print, by name; latencies in milliseconds."""
    answered = sum(measured.statuses.values())
    errors = {str(status): n for status, n in sorted(measured.statuses.items()) if status != 200}
    if measured.broken:
        errors["broken connections"] = measured.broken
    percentiles = {f"p{percent:g}_ms": round(measured.percentile_s(percent) * 1e3, 3) for percent in (50, 90, 99, 99.9)}
    return {
        "requests": answered,
        "seconds": round(measured.seconds, 3),
        "requests_per_s": round(answered / measured.seconds, 1),
        **percentiles,
        "max_ms": round(max(measured.latencies_s, default=0.0) * 1e3, 3),
        "errors": errors,
    }


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", type=lambda text: text.rstrip("/"), help="such as http://127.0.0.1:8080")
    parser.add_argument("--recipe", help="needed if the server has several")
    parser.add_argument("--users", type=Path, help="user ids: a CSV with --column, or one a line")
    parser.add_argument("--column", default="user_id")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--limit", type=int, default=10)
    parser.add_argument("--with", dest="fields", type=json.loads, default={}, help="JSON object of further fields")
    options = parser.parse_args()
    key = os.environ.get("SVC_CLIENT_KEY")
    headers = {"X-API-Key": key} if key else {}
    path, bodies = requests(options, headers)
    target = Target(options.url, path, tuple(f"{name}: {value}" for name, value in headers.items()))

    async def measure() -> Measured:
        return await drive(target, bodies, connections=options.connections, seconds=options.seconds)

    result = {"asked": path, **figures(trio.run(measure))}
    print("\n".join(f"{name:<16} {value}" for name, value in result.items()))
    sys.exit(1 if result["errors"] or not result["requests"] else 0)
