"""What becomes of three times the load that a server can answer, with SVC_MAX_QUEUE_SECONDS and without it?

    python -m benchmarks overload                         # both shapes, some three minutes
    python -m benchmarks overload --shapes a --limit 0.5 --seconds 10

For each shape: the capacity of a server without the limit (64 clients that wait for their answers), then three times as
much, by an open loop (requests leave at a fixed rate, whatever comes back) and by a closed one (so many clients that
a server without the limit keeps each waiting for three times the limit; who is refused rests for Retry-After). Both
are asked of a server with the limit and of one without. `in time` are answers that came within the limit. The last
column is the rate of 64 waiting clients in the second after the load. At last four clients ask for batches of 256
without pause beside 16 with single requests.

The generator is one process on the same machine: on two cores it takes its share from the server, more of it the more
it sends. `generator` says how much of a core it used. `CPU of alone` does not depend on what else the machine does: the
processor time of the server for an answer at its capacity, as a share of its time for an answer under the load with
all that was refused meanwhile. A server that has a core to itself answers that share of its capacity.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import multiprocessing
import random
import select
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import SHAPES, Shape, origin
from benchmarks.http import BATCH
from benchmarks.servers import ENV, Address, Running, address_of, connect, free_port, p99, prepare, probing, running

TIMES = 3
CLIENTS = 64
MOST_CONNECTIONS = 6_000
BATCH_CLIENTS, SINGLE_CLIENTS = 4, 16
WARM_S = 1.0
COLUMNS = (
    *("load", "limit", "answered/s", "of capacity", "in time/s", "p99 ms", "refused/s", "median ms", "p99 ms"),
    *("health p99 ms", "a second after", "CPU of alone", "generator"),
)


class Seen(NamedTuple):
    """Of one load: seconds that each answer and each refusal took, and for how long it was measured."""

    answered: list[float]
    refused: list[float]
    seconds: float
    unsent: int

    @property
    def rate(self) -> float:
        return len(self.answered) / self.seconds

    def in_time(self, limit_s: float) -> float:
        return sum(taken <= limit_s for taken in self.answered) / self.seconds


class Client:
    """One connection and when its request was due; 0 while it waits for nothing."""

    __slots__ = ("due", "received", "retry_s", "socket")

    def __init__(self, address: Address) -> None:
        self.socket = connect(address)
        self.socket.setblocking(False)
        self.due = self.retry_s = 0.0
        self.received = b""

    def answer(self) -> int:
        """The status of a whole answer; 0 while some of it is missing."""
        try:
            self.received += self.socket.recv(1 << 20)
        except BlockingIOError:
            return 0
        head, found, body = self.received.partition(b"\r\n\r\n")
        if not found or len(body) < _number(head, b"content-length: "):
            return 0
        self.retry_s = _number(head, b"retry-after: ")
        self.received = b""
        return int(head[9:12])


def _number(head: bytes, name: bytes) -> int:
    return int(head.lower().partition(name)[2].partition(b"\r\n")[0] or 0)


class Load:
    """Sends `requests` to a server and notes what comes back. The first second counts in `answers` only."""

    def __init__(self, address: Address, requests: list[bytes], connections: int) -> None:
        self._requests = requests
        self._epoll = select.epoll()
        self._clients = {client.socket.fileno(): client for client in (Client(address) for _ in range(connections))}
        for number in self._clients:
            self._epoll.register(number, select.EPOLLIN)
        self._random = random.Random(1)
        self.answered: list[float] = []
        self.refused: list[float] = []
        self.answers = 0

    def close(self) -> None:
        self._epoll.close()
        for client in self._clients.values():
            client.socket.close()

    def closed(self, seconds: float, *, warm_s: float = WARM_S) -> Seen:
        """Each client asks again once it is answered, or, after it was refused, when Retry-After says."""
        began = time.perf_counter()
        ends, counted_from = began + warm_s + seconds, began + warm_s
        resting = [(began + self._random.random() * min(0.2, warm_s), number) for number in self._clients]
        heapq.heapify(resting)
        while (now := time.perf_counter()) < ends:
            while resting and resting[0][0] <= now:
                number = heapq.heappop(resting)[1]
                self._send(number, now)
            pause = min(resting[0][0] - now, 0.05) if resting else 0.05
            for number, status in self._arrived(pause, counted_from):
                again = time.perf_counter() + self._clients[number].retry_s
                if status == 503:
                    heapq.heappush(resting, (again, number))
                else:
                    self._send(number, again)
        return Seen(self.answered, self.refused, seconds, 0)

    def open(self, rate: float, seconds: float, *, warm_s: float = WARM_S) -> Seen:
        """A request each 1 / `rate` seconds over any client that waits for nothing."""
        began = time.perf_counter()
        ends, counted_from = began + warm_s + seconds, began + warm_s
        free, due = deque(self._clients), began
        while (now := time.perf_counter()) < ends:
            while due <= now and free:
                self._send(free.popleft(), now)
                due += 1 / rate
            pause = max(min(due - now, 0.01), 0.0) if free else 0.01
            free.extend(number for number, _ in self._arrived(pause, counted_from))
        return Seen(self.answered, self.refused, seconds, max(0, int((ends - due) * rate)))

    def _send(self, number: int, due: float) -> None:
        client = self._clients[number]
        client.due = due
        client.socket.send(self._random.choice(self._requests))

    def _arrived(self, pause: float, counted_from: float) -> list[tuple[int, int]]:
        found = []
        for number, _ in self._epoll.poll(pause):
            client = self._clients[number]
            status = client.answer()
            if not status:
                continue
            now = time.perf_counter()
            self.answers += status == 200
            if now >= counted_from:
                assert status in (200, 403, 429, 503), status
                (self.answered if status == 200 else self.refused).append(now - client.due)
            found.append((number, status))
        return found


def requests(shape: Shape, *, batch: bool = False) -> list[bytes]:
    """Requests of random users, one each or 256."""
    pick = random.Random(0)
    found = []
    for _ in range(50 if batch else 2_000):
        users = [f'{{"user_id":"u{pick.randrange(shape.n_users)}"}}' for _ in range(BATCH if batch else 1)]
        body = f'{{"requests":[{",".join(users)}]}}' if batch else users[0]
        verb = "batch-recommend" if batch else "recommend"
        head = f"POST /v1/recipes/m:{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append((head + body).encode())
    return found


def loaded(address: Address, asked: list[bytes], connections: int) -> Load:
    gc.collect()
    return Load(address, asked, min(connections, MOST_CONNECTIONS))


def capacity(server: Running, asked: list[bytes], seconds: float, warm_s: float = WARM_S) -> Capacity:
    load = loaded(address_of(server.url), asked, CLIENTS)
    cpu_s = server.cpu_s()
    rate = load.closed(seconds, warm_s=warm_s).rate
    load.close()
    return Capacity(rate, (server.cpu_s() - cpu_s) / max(load.answers, 1))


class Capacity(NamedTuple):
    """Answers a second, and processor seconds of the server for each."""

    rate: float
    each_cpu_s: float


class Question(NamedTuple):
    """What is asked of a server: for so many seconds, with a limit in mind, measured against its capacity."""

    asked: list[bytes]
    most_s: float
    capacity: Capacity
    seconds: float


def row(kind: str, server: Running, limit: float, question: Question) -> None:
    """Load a server whose limit is `limit`, and print what became of it."""
    asked, most, (alone, alone_cpu_s), seconds = question
    address = address_of(server.url)
    load = loaded(address, asked, round(TIMES * alone * most) + CLIENTS)
    with probing(address) as health:
        cpu_s, own_s = server.cpu_s(), time.process_time()
        seen = load.open(TIMES * alone, seconds) if kind == "open" else load.closed(seconds)
        cpu_s, own_s = server.cpu_s() - cpu_s, time.process_time() - own_s
    load.close()
    after = capacity(server, asked, 1.0, warm_s=0.0).rate
    figures = (
        *(f"{kind} loop", f"{limit:g} s" if limit else "none", f"{seen.rate:,.0f}", f"{seen.rate / alone:.0%}"),
        *(f"{seen.in_time(most):,.0f}", f"{p99(seen.answered):,.0f}", f"{len(seen.refused) / seen.seconds:,.0f}"),
        f"{sorted(seen.refused)[len(seen.refused) // 2] * 1e3:.1f}" if seen.refused else "",
        *(f"{p99(seen.refused):.1f}" if seen.refused else "", f"{p99(health):.1f}", f"{after / alone:.0%}"),
        *(f"{alone_cpu_s * load.answers / cpu_s:.0%}", f"{own_s / (seen.seconds + WARM_S):.0%}"),
    )
    print(f"| {' | '.join(figures)} |", flush=True)


def beside_batches(address: Address, shape: Shape, seconds: float) -> None:
    """The singles of 16 clients, alone and beside four clients of batches."""
    asked, batches = requests(shape), requests(shape, batch=True)
    load = loaded(address, asked, SINGLE_CLIENTS)
    alone = load.closed(seconds)
    load.close()
    with sending_batches(address, batches, seconds + 30):
        load = loaded(address, asked, SINGLE_CLIENTS)
        beside = load.closed(seconds)
        load.close()
    print(
        f"\n{SINGLE_CLIENTS} clients of single requests: {alone.rate:,.0f}/s, p99 {p99(alone.answered):.1f} ms;"
        f" beside {BATCH_CLIENTS} of batches: {beside.rate:,.0f}/s, p99 {p99(beside.answered):.1f} ms,"
        f" {len(beside.refused)} refused"
    )


@contextmanager
def sending_batches(address: Address, asked: list[bytes], seconds: float) -> Iterator[None]:
    """Clients of batches in a process of their own while the block runs."""
    process = multiprocessing.get_context("fork").Process(target=_send_batches, args=(address, asked, seconds))
    process.start()
    time.sleep(1)
    try:
        yield
    finally:
        process.kill()
        process.join()


def _send_batches(address: Address, asked: list[bytes], seconds: float) -> None:
    load = Load(address, asked, BATCH_CLIENTS)
    load.closed(seconds, warm_s=0.0)
    load.close()


def measure(shape: Shape, limit: float, seconds: float, folder: Path) -> None:
    if not (folder / "m.svc").exists():
        prepare(shape, folder)
    asked = requests(shape)
    with ExitStack() as stack:
        servers = {most: served(stack, folder, most) for most in (limit, 0.0)}
        for server in servers.values():
            capacity(server, asked, 1.0)
        alone = capacity(servers[0.0], asked, seconds)
        print(
            f"\n({shape.name}) {shape.n_items:,} items: capacity {alone.rate:,.0f} answers/s,"
            f" {alone.each_cpu_s * 1e6:,.0f} µs of the server's processor time for each\n"
        )
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        for kind in ("open", "closed"):
            for most, server in servers.items():
                row(kind, server, most, Question(asked, limit, alone, seconds))
        beside_batches(address_of(servers[limit].url), shape, seconds)


def served(stack: ExitStack, folder: Path, limit: float) -> Running:
    port = free_port()
    command = [sys.executable, "-m", "svc", "serve", "--recipes", str(folder / "recipes"), "--port", str(port)]
    ENV["SVC_MAX_QUEUE_SECONDS"] = str(limit)
    return stack.enter_context(running(command, port, "/v1/health"))


def main(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", default="a,b")
    parser.add_argument("--limit", type=float, default=0.2, help="SVC_MAX_QUEUE_SECONDS of the server with a limit")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    parser.add_argument("--folder", type=Path, help="of models that are kept for the next time")
    options = parser.parse_args()
    print("\n".join(origin()))
    for name in options.shapes.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder / name if options.folder else Path(temporary)
            measure(SHAPES[name], options.limit, options.seconds, folder)
