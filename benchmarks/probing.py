"""How long `/v1/health` takes to answer, asked a hundred times a second from a process of its own.

Threads beside the one that asks would make it wait for their interpreter, and that would be told of the server.
"""

from __future__ import annotations

import gc
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import BinaryIO

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PROBE_S = 0.01
PATIENCE_S = 60.0
Address = tuple[str, int]


def connect(address: Address) -> socket.socket:
    client = socket.create_connection(address, timeout=PATIENCE_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


@contextmanager
def probing(address: Address) -> Iterator[list[float]]:
    """The seconds that each probe took while the block ran, known after it."""
    context = multiprocessing.get_context("spawn")
    over, (here, there) = context.Event(), context.Pipe()
    process = context.Process(target=_probe, args=(address, over.is_set, there))
    process.start()
    there.close()  # so that the end of the process is the end of what it says
    seconds: list[float] = []
    try:
        here.recv()
        yield seconds
        over.set()
        seconds += here.recv()
    finally:
        process.kill()
        process.join()


def _probe(address: Address, over: Callable[[], bool], results: Connection) -> None:
    gc.disable()
    seconds = []
    with connect(address) as client, client.makefile("rb") as answers:
        results.send("ready")
        while not over():
            began = time.perf_counter()
            client.sendall(HEALTH)
            _read(answers)
            seconds.append(time.perf_counter() - began)
            time.sleep(PROBE_S)
    results.send(seconds)


def _read(answers: BinaryIO) -> None:
    """Read one answer, in however many pieces it comes."""
    assert answers.readline().startswith(b"HTTP/1.1 200")
    length = 0
    while line := answers.readline().strip():
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    assert len(answers.read(length)) == length
